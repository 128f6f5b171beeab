"""HTTP for tools: the host makes the request, within what the policy grants, and hands back the answer.

``from engine import http``, then ``http.get("https://api.example.com/orders", params={"page": 2}).json()``. In a worker no connection is
opened here: the request goes to the host, on every kind of worker, in functions, generators, async tools and threads. It blocks until
the answer is there, so an async tool's other tasks wait meanwhile. Time and sizes are bounded by the policy alone, redirects are followed
to granted places alone, and answers come uncompressed.

In plain Python, where a tool's own tests run, the same face lies over ``http.client``: **there it is without any wall**.

Its job: a request as plain data, an answer with the names that requests and httpx made usual.
Not its job: what may be reached, redirects, certificates, secrets (all the host's).
Laws:
1. Bodies of any bytes come through as they are, both ways (tests/unit/test_http_face.py).
2. In plain Python a request is worded, and redirects are followed, as the host does it (tests/unit/test_http_face.py).
3. In a worker the host is asked and nobody else, by calls numbered together with the context's (tests/unit/test_hostcalls.py).
4. Importing this file loads nothing heavy (tests/house/test_guest_tree.py).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Body = bytes | bytearray | memoryview | str
Headers = Mapping[str, str] | Iterable[tuple[str, str]]
Params = Mapping[str, Any] | Iterable[tuple[str, Any]]
Door = Callable[[str, dict[str, Any]], tuple[bool, Any]]

NAME = "engine.http"  # of the host call; no tool's name can have a dot
door: Door | None = None  # where requests go: a worker's guest puts the way to its host here, None is plain Python
_PLAIN_SECONDS = 30  # without a host, which has bounds of its own
_WITH_BODY = ("POST", "PUT", "PATCH")  # say how long their body is even when it is empty (RFC 9110 section 8.6)
_OURS = frozenset({"host", "content-length", "expect", "accept-encoding"})  # headers that are not the tool's to say
_CREDENTIALS = frozenset({"authorization", "cookie"})
_HOPS = 5  # redirects that are followed
_SEPARATORS = frozenset('"(),/:;<=>?@[\\]{}')  # what no header's name and no method holds (RFC 9110 section 5.6.2)


class HTTPError(OSError):
    """What goes wrong with a request. ``response`` is the answer that says so, None when there is none."""

    def __init__(self, text: str, response: "Response | None" = None) -> None:
        super().__init__(text)
        self.response = response


class Refused(HTTPError):
    """There is no answer: the request was refused, or could not be carried. The text is the host's one line."""


class Response:
    """An answer: ``status``, ``url``, ``headers`` as pairs in their order, ``content`` as bytes. The URL is that of the last redirect."""

    __slots__ = ("content", "headers", "status", "url")

    def __init__(self, status: int, url: str, headers: Iterable[tuple[str, str]], content: bytes) -> None:
        self.status, self.url, self.headers, self.content = status, url, tuple(headers), content

    def __repr__(self) -> str:
        return f"<Response {self.status}>"

    @property
    def text(self) -> str:
        """The content as text, in the charset that the answer names, else in UTF-8; what does not decode is replaced."""
        named = (self.header("content-type") or "").lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
        try:
            return self.content.decode(named or "utf-8", "replace")
        except (LookupError, UnicodeError):  # no encoding of texts, or one that replaces nothing
            return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The content read as JSON. Raises ValueError when it is none."""
        from json import loads

        return loads(self.content)

    def header(self, name: str, default: str | None = None) -> str | None:
        """The header of that name in any case, several joined by a comma; the default when there is none."""
        found = [value for other, value in self.headers if other.lower() == name.lower()]
        return ", ".join(found) if found else default

    def raise_for_status(self) -> "Response":
        """This answer. Raises HTTPError for a status from 400 to 599."""
        if 400 <= self.status <= 599:
            raise HTTPError(f"the answer has the status {self.status}", self)
        return self


def request(
    method: str, url: str, *, headers: Headers | None = None, body: Body | None = None, params: Params | None = None, json: Any = None
) -> Response:
    """The answer to one request. ``body`` is bytes or text (as UTF-8), ``json`` plain data in its place, ``params`` go behind the ``?``.

    Raises Refused, an OSError, without an answer; ValueError or TypeError, before anything is asked, for what is no request.
    """
    pairs = _pairs(headers)
    content = _content(body, json, pairs)
    asked = {"method": _method(method), "url": _url(url, params), "headers": pairs, "body": content.decode("latin-1")}
    ok, value = (door or _plainly)(NAME, asked)
    if not ok:
        raise Refused(str(value))
    return Response(value["status"], value["url"], ((name, text) for name, text in value["headers"]), value["body"].encode("latin-1"))


def get(url: str, *, headers: Headers | None = None, params: Params | None = None) -> Response:
    """As ``request``."""
    return request("GET", url, headers=headers, params=params)


def head(url: str, *, headers: Headers | None = None, params: Params | None = None) -> Response:
    """As ``request``."""
    return request("HEAD", url, headers=headers, params=params)


def post(url: str, *, headers: Headers | None = None, body: Body | None = None, params: Params | None = None, json: Any = None) -> Response:
    """As ``request``."""
    return request("POST", url, headers=headers, body=body, params=params, json=json)


def put(url: str, *, headers: Headers | None = None, body: Body | None = None, params: Params | None = None, json: Any = None) -> Response:
    """As ``request``."""
    return request("PUT", url, headers=headers, body=body, params=params, json=json)


def patch(
    url: str, *, headers: Headers | None = None, body: Body | None = None, params: Params | None = None, json: Any = None
) -> Response:
    """As ``request``."""
    return request("PATCH", url, headers=headers, body=body, params=params, json=json)


def delete(
    url: str, *, headers: Headers | None = None, body: Body | None = None, params: Params | None = None, json: Any = None
) -> Response:
    """As ``request``."""
    return request("DELETE", url, headers=headers, body=body, params=params, json=json)


# -- what is asked, as plain data


def _method(method: str) -> str:
    if not _token(method):
        raise ValueError("want a method such as GET")
    return method.upper()


def _token(text: object) -> bool:
    return isinstance(text, str) and text != "" and all("!" <= char <= "~" and char not in _SEPARATORS for char in text)


def _pairs(headers: Headers | None) -> list[list[str]]:
    made = []
    for name, value in headers.items() if isinstance(headers, Mapping) else headers or ():
        if not isinstance(value, str):
            raise TypeError(f"the value of a header is text, not {type(value).__name__}")
        if not _token(name) or any((char < " " and char != "\t") or char == "\x7f" or char > "\xff" for char in value):
            raise ValueError("a header has a name of ASCII letters, digits and -, and a value of one line in latin-1")
        made.append([name, value.strip(" \t")])
    return made


def _content(body: Body | None, data: Any, pairs: list[list[str]]) -> bytes:
    """The body's bytes; what JSON says of itself is added to the headers."""
    if data is not None:
        if body is not None:
            raise ValueError("a request has a body or json, not both")
        from json import dumps

        if all(name.lower() != "content-type" for name, _ in pairs):
            pairs.append(["Content-Type", "application/json"])
        return dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    if body is None or isinstance(body, str):
        return (body or "").encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes or text, not {type(body).__name__}")


def _url(url: str, params: Params | None) -> str:
    """The URL with the parameters, without its fragment, which is never sent; what is no ASCII behind the host is percent-encoded."""
    if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
        raise ValueError("want a URL that begins with http:// or https://")
    if any(char < " " or char == "\x7f" for char in url):
        raise ValueError("a URL has no control characters")
    whole = url.partition("#")[0]
    start = whole.index("://") + 3
    end = min(f"{whole}{mark}".find(mark, start) for mark in "/?")
    tail = "".join(char if "!" <= char <= "~" else "".join(f"%{byte:02X}" for byte in char.encode()) for char in whole[end:])
    query = "" if params is None else _query(params)
    if query:
        tail += "?" if "?" not in tail else "" if tail.endswith(("?", "&")) else "&"
    return whole[:end] + tail + query


def _query(params: Params) -> str:
    """Lists say a name several times, None says it not at all, true and false are written small."""
    from urllib.parse import urlencode

    pairs: list[tuple[str, str]] = []
    for name, value in params.items() if isinstance(params, Mapping) else params:
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None:
                pairs.append((name, str(one).lower() if isinstance(one, bool) else str(one)))
    return urlencode(pairs)


# -- plain Python, where there is no host to ask


def _plainly(_: str, asked: dict[str, Any]) -> tuple[bool, Any]:
    """The same request made here, without any wall: as the host would answer it."""
    from http.client import HTTPException

    try:
        for _hop in range(_HOPS + 1):
            told = _exchanged(asked)
            places = [value for name, value in told["headers"] if name.lower() == "location"]
            if told["status"] not in (301, 302, 303, 307, 308) or len(places) != 1:
                return True, told
            asked = _following(asked, told["status"], places[0])
        return False, f"more than {_HOPS} redirects"
    except (OSError, ValueError, HTTPException) as error:
        return False, f"{type(error).__name__}: {error}"


def _exchanged(asked: dict[str, Any]) -> dict[str, Any]:
    """One request and its answer."""
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(asked["url"])
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PLAIN_SECONDS)
    try:
        connection.putrequest(asked["method"], (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        for name, value in asked["headers"]:
            if name.lower() not in _OURS:
                connection.putheader(name, value)
        content = asked["body"].encode("latin-1")
        if content or asked["method"] in _WITH_BODY:
            connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content or None)
        answer = connection.getresponse()
        headers = [[name, value] for name, value in answer.getheaders()]
        return {"status": answer.status, "url": asked["url"], "headers": headers, "body": answer.read().decode("latin-1")}
    finally:
        connection.close()


def _following(asked: dict[str, Any], status: int, place: str) -> dict[str, Any]:
    """What a redirect makes of a request (RFC 9110 section 15.4). What was meant for one host is not sent to another one."""
    from urllib.parse import urljoin, urlsplit

    url = _url(urljoin(asked["url"], place), None)
    method, body, headers = asked["method"], asked["body"], asked["headers"]
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", ""
        headers = [[name, value] for name, value in headers if not name.lower().startswith("content-")]
    if urlsplit(url)[:2] != urlsplit(asked["url"])[:2]:
        headers = [[name, value] for name, value in headers if name.lower() not in _CREDENTIALS]
    return {"method": method, "url": url, "headers": headers, "body": body}

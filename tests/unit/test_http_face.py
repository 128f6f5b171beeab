"""``engine.http``: what is asked of the host, what an answer says, and the same face over plain Python."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from engine import http as face
from engine import tool
from engine.authoring import http, rules
from engine.errors import DeclarationError

EVERY = bytes(range(256))
URL = "http://api.example.com/orders"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What is asked of a host that sends each body back."""
    taken: list[tuple[str, dict[str, Any]]] = []

    def answer(name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        taken.append((name, arguments))
        headers = [["Content-Type", "text/plain"], ["Set-Cookie", "a=1"], ["set-cookie", "b=2"]]
        return True, {"status": 200, "url": arguments["url"], "headers": headers, "body": arguments["body"]}

    monkeypatch.setattr(http, "door", answer)
    return taken


def calling(text: str) -> str:
    """For a declaration."""
    return text


def told(status: int = 200, content: bytes = b"", content_type: str | None = None) -> http.Response:
    """An answer."""
    return http.Response(status, URL, [] if content_type is None else [("content-type", content_type)], content)


class TestAsked:
    """A request as plain data."""

    def test_it_is_the_public_name(self) -> None:
        """``from engine import http``."""
        assert face is http

    def test_every_byte_goes_there_and_back(self, asked: list[Any]) -> None:
        """As one character a byte, both ways."""
        answer = http.post(URL, body=EVERY)
        assert (answer.status, answer.url, answer.content) == (200, URL, EVERY)
        assert answer.headers == (("Content-Type", "text/plain"), ("Set-Cookie", "a=1"), ("set-cookie", "b=2"))
        assert asked == [("engine.http", {"method": "POST", "url": URL, "headers": [], "body": EVERY.decode("latin-1")})]

    @pytest.mark.parametrize(
        ("act", "method"),
        [
            (http.get, "GET"),
            (http.head, "HEAD"),
            (http.post, "POST"),
            (http.put, "PUT"),
            (http.patch, "PATCH"),
            (http.delete, "DELETE"),
            (lambda url: http.request("m-search", url), "M-SEARCH"),
        ],
    )
    def test_each_verb(self, asked: list[Any], act: Callable[[str], http.Response], method: str) -> None:
        """By its name, in capitals."""
        act(URL)
        assert asked == [("engine.http", {"method": method, "url": URL, "headers": [], "body": ""})]

    @pytest.mark.parametrize("body", ["é", "é".encode(), bytearray("é".encode()), memoryview("é".encode())])
    def test_a_body_is_bytes_or_text(self, asked: list[Any], body: Any) -> None:
        """A text goes as UTF-8."""
        assert http.put(URL, body=body).content == "é".encode()

    def test_json_is_said_in_the_headers(self, asked: list[Any]) -> None:
        """Compact, in UTF-8; a type that the tool names stays."""
        http.post(URL, json={"é": [1, None]}, headers={"X": "y"})
        http.post(URL, json=0, headers=[("content-TYPE", "application/x")])
        bodies = [(arguments["headers"], arguments["body"].encode("latin-1")) for _, arguments in asked]
        assert bodies == [
            ([["X", "y"], ["Content-Type", "application/json"]], '{"é":[1,null]}'.encode()),
            ([["content-TYPE", "application/x"]], b"0"),
        ]

    @pytest.mark.parametrize(
        ("url", "params", "whole"),
        [
            ("http://a.b", None, "http://a.b"),
            ("HTTPS://a.b:8443/x?y=1#part", None, "HTTPS://a.b:8443/x?y=1"),
            ("http://a.b", {"q": "a b&c"}, "http://a.b?q=a+b%26c"),
            ("http://a.b/x?y=1", {"q": 2}, "http://a.b/x?y=1&q=2"),
            ("http://a.b/x?", {"q": 2}, "http://a.b/x?q=2"),
            ("http://a.b/x&", {"q": 2}, "http://a.b/x&?q=2"),
            ("http://a.b/x?y=1&", {"q": 2}, "http://a.b/x?y=1&q=2"),
            ("http://a.b/x", {}, "http://a.b/x"),
            ("http://a.b/x", [("q", 1), ("q", "é")], "http://a.b/x?q=1&q=%C3%A9"),
            ("http://a.b/x", {"q": [1, 2.5], "none": None, "yes": True}, "http://a.b/x?q=1&q=2.5&yes=true"),
            ("http://bücher.example/é ü?é=%C3", None, "http://bücher.example/%C3%A9%20%C3%BC?%C3%A9=%C3"),
        ],
    )
    def test_the_url_with_its_parameters(self, asked: list[Any], url: str, params: Any, whole: str) -> None:
        """Behind the host all is ASCII; the host's name stays as it is, and what is encoded already."""
        http.get(url, params=params)
        assert asked[0][1]["url"] == whole

    @pytest.mark.parametrize(
        ("act", "kind", "line"),
        [
            (lambda: http.get("file:///etc/passwd"), ValueError, "want a URL that begins with http:// or https://"),
            (lambda: http.get("a.b/c"), ValueError, "want a URL that begins with http:// or https://"),
            (lambda: http.get("http://a.b/\r\nx"), ValueError, "a URL has no control characters"),
            (lambda: http.request("GET /", URL), ValueError, "want a method such as GET"),
            (lambda: http.request("", URL), ValueError, "want a method such as GET"),
            (lambda: http.post(URL, body="a", json=1), ValueError, "a request has a body or json, not both"),
            (lambda: http.post(URL, body={"a": 1}), TypeError, "a body is bytes or text, not dict"),  # type: ignore[arg-type]  # an author does it all the same
            (lambda: http.post(URL, json=float("nan")), ValueError, "Out of range float values are not JSON compliant"),
            (lambda: http.get(URL, headers={"a": 1}), TypeError, "the value of a header is text, not int"),  # type: ignore[arg-type]  # an author does it all the same
        ],
    )
    def test_what_is_no_request(self, asked: list[Any], act: Callable[[], object], kind: type[Exception], line: str) -> None:
        """The tool's own mistake, told before anything is asked."""
        with pytest.raises(kind) as caught:
            act()
        assert (str(caught.value).partition(":")[0], asked) == (line.partition(":")[0], [])

    @pytest.mark.parametrize(
        ("name", "value"), [("", "x"), ("a b", "x"), ("a:", "x"), ("é", "x"), ("a", "x\r\ny: z"), ("a", "\0"), ("a", "☺")]
    )
    def test_what_is_no_header(self, asked: list[Any], name: str, value: str) -> None:
        """A name that is none, a value of two lines or outside latin-1."""
        with pytest.raises(ValueError, match="a header has a name of ASCII letters"):
            http.get(URL, headers={name: value})
        assert asked == []

    def test_a_refusal_is_an_oserror_with_the_hosts_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A tool that is ready for a network that fails is ready for it."""
        monkeypatch.setattr(http, "door", lambda name, arguments: (False, "not granted"))
        with pytest.raises(OSError, match=r"\Anot granted\Z") as caught:
            http.get(URL)
        assert (type(caught.value), getattr(caught.value, "response", "none")) == (http.Refused, None)

    def test_no_tool_can_have_the_host_calls_name(self) -> None:
        """A name has no dot, a nested tool's neither."""
        assert (rules.is_name(http.NAME), rules.is_name(http.NAME.replace(".", "_"))) == (False, True)
        tool(effect="external", description="d", nested_tools=[http.NAME.replace(".", "_")])(calling)
        with pytest.raises(DeclarationError, match=r'nested_tools: "engine\.http": "engine\.http" is no tool name'):
            tool(effect="external", description="d", nested_tools=[http.NAME])(calling)


class TestAnswer:
    """What can be read of one."""

    @pytest.mark.parametrize(
        ("content", "content_type", "text"),
        [
            ("é".encode(), None, "é"),
            ("é".encode(), "text/plain", "é"),
            ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1; x=y", "é"),
            ("é".encode("latin-1"), 'text/plain; Charset="latin1"', "é"),
            (b"\xff", None, "�"),
            (b"a", "text/plain; charset=none-such", "a"),
            (b"a", "text/plain; charset=zip", "a"),
            (b"a", "text/plain; charset=undefined", "a"),
        ],
    )
    def test_its_text(self, content: bytes, content_type: str | None, text: str) -> None:
        """In the charset that it names where that is one of texts, else in UTF-8."""
        assert told(content=content, content_type=content_type).text == text

    def test_its_json(self) -> None:
        """Of the bytes; what is none is a ValueError."""
        assert told(content='{"é": [1]}'.encode()).json() == {"é": [1]}
        with pytest.raises(ValueError, match="Expecting value"):
            told(content=b"<html>").json()

    def test_its_headers(self, asked: list[Any]) -> None:
        """In any case, several joined."""
        answer = http.get(URL)
        assert [answer.header(name) for name in ("CONTENT-type", "Set-Cookie", "none")] == ["text/plain", "a=1, b=2", None]
        assert answer.header("none", "x") == "x"

    @pytest.mark.parametrize(
        ("status", "raises"), [(100, False), (200, False), (302, False), (399, False), (400, True), (599, True), (600, False)]
    )
    def test_its_status(self, status: int, raises: bool) -> None:
        """From 400 to 599 it is an error that holds the answer; else the answer itself is handed back."""
        answer = told(status, b"why")
        if not raises:
            assert answer.raise_for_status() is answer
            return
        with pytest.raises(http.HTTPError, match=rf"\Athe answer has the status {status}\Z") as caught:
            answer.raise_for_status()
        assert (caught.value.response, repr(answer)) == (answer, f"<Response {status}>")


class _Echo(BaseHTTPRequestHandler):
    """Sends back what came; "/302?PLACE" redirects there, "/302" to itself."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, _, place = self.path.removeprefix("/").partition("?")
        moved = status.isdecimal()
        self.send_response_only(int(status) if moved else 200)
        if moved:
            self.send_header("Location", place or self.path)
        self.send_header("Asked", f"{self.command} {self.path}")
        self.send_header("Length", str(self.headers.get("Content-Length")))
        self.send_header("Type", str(self.headers.get("Content-Type")))
        self.send_header("Twice", ",".join(self.headers.get_all("Twice") or []))
        self.send_header("Known", ",".join(name for name in ("Authorization", "Cookie", "X-Own") if name in self.headers))
        self.send_header("Coding", str(self.headers.get("Accept-Encoding")))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = _answer
    do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on loopback, and no host to ask."""
    monkeypatch.setattr(http, "door", None)
    with HTTPServer(("127.0.0.1", 0), _Echo) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def heard(answer: http.Response) -> tuple[str | None, ...]:
    """What the server says that it was asked."""
    return tuple(answer.header(name) for name in ("Asked", "Length", "Type", "Twice"))


class TestPlain:
    """Without a host: what a tool's own tests run over."""

    def test_every_byte_goes_there_and_back(self, server: str) -> None:
        """As by way of a host."""
        answer = http.post(f"{server}/x?y", body=EVERY, headers=[("Twice", "a"), ("Twice", "b")], params={"z": 1})
        assert (answer.status, answer.url, answer.content) == (200, f"{server}/x?y&z=1", EVERY)
        assert heard(answer) == ("POST /x?y&z=1", "256", "None", "a,b")

    def test_nothing_is_said_that_the_tool_did_not_say(self, server: str) -> None:
        """No type of a body, and a length where the method has one."""
        assert heard(http.get(server)) == ("GET /", "None", "None", "")
        assert heard(http.delete(server)) == ("DELETE /", "None", "None", "")
        assert heard(http.post(server)) == ("POST /", "0", "None", "")
        assert heard(http.post(server, json=[])) == ("POST /", "2", "application/json", "")

    def test_what_is_the_hosts_to_say(self, server: str) -> None:
        """Lengths, and whether an answer may be compressed."""
        answer = http.post(server, body="ab", headers={"Content-Length": "1", "accept-encoding": "gzip", "Host": "other"})
        assert (heard(answer), answer.header("Coding"), answer.content) == (("POST /", "2", "None", ""), "identity", b"ab")

    @pytest.mark.parametrize(
        ("method", "status", "told"),
        [
            ("POST", 301, ("GET /there", "None", "None", "")),
            ("POST", 302, ("GET /there", "None", "None", "")),
            ("PUT", 303, ("GET /there", "None", "None", "")),
            ("HEAD", 303, ("HEAD /there", "1", "a/b", "")),
            ("PUT", 302, ("PUT /there", "1", "a/b", "")),
            ("POST", 307, ("POST /there", "1", "a/b", "")),
            ("DELETE", 308, ("DELETE /there", "1", "a/b", "")),
        ],
    )
    def test_a_redirect_is_followed(self, server: str, method: str, status: int, told: tuple[str, ...]) -> None:
        """With the method and the body that RFC 9110 leaves it; the answer says where it came from."""
        answer = http.request(method, f"{server}/{status}?/there#part", body="x", headers={"Content-Type": "a/b"})
        assert (answer.status, answer.url, heard(answer)) == (200, f"{server}/there", told)

    @pytest.mark.parametrize(("host", "known"), [("127.0.0.1", "Authorization,Cookie,X-Own"), ("localhost", "X-Own")])
    def test_credentials_stay_with_their_host(self, server: str, host: str, known: str) -> None:
        """Another name is another host."""
        there = server.replace("127.0.0.1", host)
        answer = http.get(f"{server}/302?{there}/x", headers={"authorization": "a", "Cookie": "b", "X-Own": "c"})
        assert (answer.url, answer.header("Known")) == (f"{there}/x", known)

    def test_other_answers_with_a_place_are_answers(self, server: str) -> None:
        """Created, and not modified."""
        assert [http.get(f"{server}/{status}?/x").status for status in (201, 304)] == [201, 304]

    @pytest.mark.parametrize("path", ["/302", "/302?file:///etc/passwd"])
    def test_a_redirect_without_end_or_to_a_file_is_refused(self, server: str, path: str) -> None:
        """After five of them, and at once."""
        with pytest.raises(http.Refused, match=r"more than 5 redirects|http://"):
            http.get(server + path)

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://127.0.0.1:x/", "http://[::1", "http:///x"])
    def test_what_cannot_be_carried(self, server: str, url: str) -> None:
        """A closed port, and what is no address: refused as a host would."""
        with pytest.raises(http.Refused):
            http.get(url)

"""The address of a request as a tool writes it, taken apart once.

Its job: text to scheme, place and target, or none; what a redirect leads to.
Not its job: whether the place was granted (``client.py``).
Laws:
1. What two readers could take for two places is none: no user, backslash, blank or control character (tests/unit/test_egress_url.py).
2. What is connected to, and what is asked of it, come out of the one reading (tests/unit/test_egress_url.py).
"""

import dataclasses
import re
import urllib.parse

from engine.policy.network import Place, place_of

LONGEST = 8 << 10  # characters, as common servers have it
_USUAL = {"http": 80, "https": 443}
_BARRED = re.compile(r"[\s\\#\x00-\x20\x7f-\xa0]")
_AUTHORITY = re.compile(r"[^/?]*")
_KEPT = "/%:@!$&'()*+,;=-._~?[]|"  # in a target; all else becomes UTF-8 in percent signs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Url:
    """One address; ``target`` in origin form."""

    scheme: str
    place: Place
    target: str

    def __str__(self) -> str:
        usual = f":{_USUAL[self.scheme]}"
        return f"{self.scheme}://{str(self.place).removesuffix(usual)}{self.target}"


def url_of(text: str) -> Url:
    """Raises ValueError with words that do not repeat the text."""
    problem = "want 'http://' or 'https://', a host, perhaps a port, and a path, without user, fragment, blank or backslash"
    if len(text) > LONGEST or not text.isprintable() or _BARRED.search(text):
        raise ValueError(problem)
    scheme, mark, rest = text.partition("://")
    if not mark or (scheme := scheme.lower()) not in _USUAL:
        raise ValueError(problem)
    # not urlsplit: it folds characters, drops some, and repeats a host in its errors
    authority = _AUTHORITY.match(rest).group()  # type: ignore[union-attr]  # it fits every text
    # security: "https://allowed.example@other" is the first host to a glance and the second one to a client
    if "@" in authority or not authority or "%" in authority:
        raise ValueError(problem)
    target = urllib.parse.quote(rest.removeprefix(authority), safe=_KEPT)
    ported = ":" in authority and not authority.endswith("]")
    place = place_of(authority if ported else f"{authority}:{_USUAL[scheme]}")
    return Url(scheme=scheme, place=place, target=target if target.startswith("/") else "/" + target)


def redirected(url: Url, location: str) -> Url:
    """Where a redirect leads, seen from there. Raises ValueError."""
    problem = "the redirect leads to nothing that can be asked"
    whole = location.partition("#")[0]
    if len(whole) > LONGEST or _BARRED.search(whole):
        raise ValueError(problem)
    try:
        joined = urllib.parse.urljoin(str(url), whole)
    except ValueError:
        raise ValueError(problem) from None
    return url_of(joined)

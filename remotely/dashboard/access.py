"""The door of the dashboard: which requests are served, and the headers of every answer.  Pure.

    1. Host      a name or address that this dashboard goes by.  A page elsewhere can have a name
                 of its own resolve to 127.0.0.1 (DNS rebinding), but not change this header
    2. link      `/open?link=...` is printed on the terminal, works once, and sets a cookie.  The
                 next link is printed as soon as it was used
    3. cookie    HttpOnly and SameSite=Strict: no script reads it, no other site sends it along
    4. bearer    `/metrics` also takes a token of a file, which Prometheus reads too

A request without a cookie is told how to get one, and nothing else.  Only GET and HEAD are served,
and nothing that is served changes anything.
"""

import hmac
import secrets
from collections.abc import Iterable

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
METHODS = ("GET", "HEAD")
OPEN_TO_ALL = ("/healthz", "/open")
MAX_COOKIES = 64  # browsers; the first one has to open a new link when more have come

# Everything comes from here, and no page elsewhere may show this one in a frame.  Inline scripts
# and styles are refused, so that markup in a name would be inert even if it were not a text node.
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def host_of(header: str) -> str:
    """Return the name or address in a Host header, without the port and in lower case."""
    if header.startswith("["):  # IPv6
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


class Access:
    """Who may look at one dashboard."""

    def __init__(self, hosts: Iterable[str], cookie_name: str, bearer: str = "") -> None:
        self.cookie_name = cookie_name
        self._hosts = frozenset(host.lower() for host in hosts)
        self._bearer = bearer
        self._cookies: list[str] = []
        self.link = secrets.token_urlsafe(24)

    def knows_host(self, header: str) -> bool:
        """Tell whether a request means this dashboard, as its Host header says."""
        return host_of(header) in self._hosts

    def use_link(self, link: str) -> str:
        """Return a new cookie and use the link up; empty if it is another link."""
        if not _same(link, self.link):
            return ""
        self.link = secrets.token_urlsafe(24)
        self._cookies = [*self._cookies, secrets.token_urlsafe(24)][-MAX_COOKIES:]
        return self._cookies[-1]

    def admits(self, cookie: str) -> bool:
        return any(_same(cookie, each) for each in self._cookies)

    def admits_bearer(self, authorization: str) -> bool:
        """Tell whether an Authorization header has the token of `/metrics`, if there is one."""
        return bool(self._bearer) and _same(authorization, f"Bearer {self._bearer}")


def _same(said: str, known: str) -> bool:
    return hmac.compare_digest(said.encode("utf-8", "replace"), known.encode())

"""Access control of the dashboard, and the security headers of every response.  Pure.

    1. Host      must be a known name or address of this dashboard.  A malicious page can have its
                 own name resolve to 127.0.0.1 (DNS rebinding), but cannot change this header
    2. link      `/open?link=...` is printed on the terminal, works once, and sets a cookie.  When
                 it is used, the next link is printed
    3. cookie    HttpOnly and SameSite=Strict: scripts cannot read it, other sites cannot send it
    4. bearer    `/metrics` also accepts a token from a file, which Prometheus reads too

A request without a cookie only learns how to get one, and whether the master answers (HEALTH).
Only GET and HEAD are served, and no request changes the cluster.
"""

import hmac
import secrets
from collections.abc import Iterable

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
METHODS = ("GET", "HEAD")
# For probes, which come by any address, without a cookie.  They say one word.
HEALTH = ("/healthz", "/livez", "/readyz")
OPEN_TO_ALL = (*HEALTH, "/open")
MAX_COOKIES = 64  # browsers; with more, the oldest one needs a new link

# All content comes from this server, and no other page may show this one in a frame.  Inline
# scripts and styles are refused, so markup in a name would be inert even outside a text node.
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
    """The hosts, cookies and tokens that one dashboard accepts."""

    def __init__(self, hosts: Iterable[str], cookie_name: str, bearer: str = "") -> None:
        self.cookie_name = cookie_name
        self._hosts = frozenset(host.lower() for host in hosts)
        self._bearer = bearer
        self._cookies: list[str] = []
        self.link = secrets.token_urlsafe(24)

    def knows_host(self, header: str) -> bool:
        """Return whether a Host header names this dashboard."""
        return host_of(header) in self._hosts

    def use_link(self, link: str) -> str:
        """Return a new cookie and replace the link; "" if `link` is not the current one."""
        if not _same(link, self.link):
            return ""
        self.link = secrets.token_urlsafe(24)
        self._cookies = [*self._cookies, secrets.token_urlsafe(24)][-MAX_COOKIES:]
        return self._cookies[-1]

    def admits(self, cookie: str) -> bool:
        return any(_same(cookie, each) for each in self._cookies)

    def admits_bearer(self, authorization: str) -> bool:
        """Return whether an Authorization header has the token of `/metrics`."""
        return bool(self._bearer) and _same(authorization, f"Bearer {self._bearer}")


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())

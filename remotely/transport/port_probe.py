"""A non-blocking probe of a port: whether anything listens there."""

import contextlib
import errno
import socket

UNKNOWN = -1  # not tried


class PortProbe:
    """A connection attempt that starts immediately; read its outcome, `code`, once, later."""

    def __init__(self, host: str, port: int) -> None:
        """`host` must be an IP address; a name is not tried, because resolving it would block."""
        self._code = UNKNOWN
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # including that no descriptor is left
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.inet_pton(family, host)
            self._socket = socket.socket(family)
            self._socket.setblocking(False)
            self._code = self._socket.connect_ex((host, port))

    def answers(self) -> bool:
        """Return whether something is known to listen; if not, call again later."""
        if self._socket and self._code == errno.EINPROGRESS:
            with contextlib.suppress(OSError):
                self._socket.getpeername()
                self._code = 0
        return self._code == 0

    def code(self) -> int:
        """Close, and return 0 if something listens, EINPROGRESS for silence, else the errno."""
        if self._socket and not self.answers() and self._code == errno.EINPROGRESS:
            failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._code = failure or errno.EINPROGRESS
        self.close()
        return self._code

    def refused(self) -> bool:
        """Close, and return whether the connection was refused.  Silence is not a refusal."""
        return self.code() == errno.ECONNREFUSED

    def close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None

    def __del__(self) -> None:
        self.close()

"""A probe of a port of another machine: does anything listen there?  Nobody waits meanwhile."""

import contextlib
import errno
import socket

UNKNOWN = -1  # it was not tried


class PortProbe:
    """A connection that is begun at once; read its outcome, `code`, some time later, once."""

    def __init__(self, host: str, port: int) -> None:
        """`host` is an IP address: to resolve a name would block, and so a name is not tried."""
        self._code = UNKNOWN
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # no descriptor is left, too
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.inet_pton(family, host)
            self._socket = socket.socket(family)
            self._socket.setblocking(False)
            self._code = self._socket.connect_ex((host, port))  # of this machine, at once

    def answers(self) -> bool:
        """Return whether something is known to listen by now; ask again later if not."""
        if self._socket and self._code == errno.EINPROGRESS:
            with contextlib.suppress(OSError):
                self._socket.getpeername()
                self._code = 0
        return self._code == 0

    def code(self) -> int:
        """Return 0 if something listens, EINPROGRESS for silence, else the errno; and close."""
        if self._socket and not self.answers() and self._code == errno.EINPROGRESS:
            failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._code = failure or errno.EINPROGRESS
        self.close()
        return self._code

    def refused(self) -> bool:
        """Return whether it said that nothing listens, and close.  Silence is not a refusal."""
        return self.code() == errno.ECONNREFUSED

    def close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None

    def __del__(self) -> None:
        self.close()  # nobody has read it: the process ends

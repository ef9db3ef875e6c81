"""Asks whether anything listens at a port of another machine, while nobody waits for the answer."""

import contextlib
import errno
import socket

UNKNOWN = -1


class PortProbe:
    """A connection that is begun at once; read its outcome, `code`, some time later, once."""

    def __init__(self, host: str, port: int) -> None:
        """`host` is an IP address: to resolve a name would block, and so a name is not tried."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setblocking(False)
        self._code = UNKNOWN
        with contextlib.suppress(OSError):
            socket.inet_pton(self._socket.family, host)
            self._code = self._socket.connect_ex((host, port))  # of this machine, at once

    def code(self) -> int:
        """Return 0 if something listens, EINPROGRESS for silence, else the errno; and close."""
        if not self.answers() and self._code == errno.EINPROGRESS:
            failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._code = failure or errno.EINPROGRESS
        self._socket.close()
        return self._code

    def answers(self) -> bool:
        """Return whether something is known to listen by now; ask again later if not."""
        if self._code == errno.EINPROGRESS:
            with contextlib.suppress(OSError):
                self._socket.getpeername()
                self._code = 0
        return self._code == 0

    def refused(self) -> bool:
        """Return whether it said that nothing listens, and close.  Silence is not a refusal."""
        return self.code() == errno.ECONNREFUSED

    def __del__(self) -> None:
        self._socket.close()  # nobody has read it: the process ends

"""SIGTERM of a script whose master is on another machine: its actors end at once.

The default action of SIGTERM ends the process before it can say anything.  A master on the same
machine sees that at once; another one would only see that the script is silent, and what its actors
hold would stay taken until its lease has expired.  So there the script says goodbye, for up to
GOODBYE_S, and then ends as it would have: by the default action, without `finally` or `atexit`.

    1. nothing is installed if the program handles or ignores SIGTERM, or if the connection is not
       made on the main thread, where alone handlers can be set
    2. SIGTERM: the default action is back; a second one ends the process at once
    3. the goodbye, unless this is a forked child, to which the session does not belong
    4. SIGTERM again, to itself

Python runs handlers between two bytecodes of the main thread: code in C that runs for long there
delays the end.  So does a system call that the signal does not interrupt, because it began just
after it, or because another thread has taken the signal: see machine/threads.py.
"""

import os
import signal
import threading
from types import FrameType

from remotely.client.master_session import MasterSession

GOODBYE_S = 1.0


class Termination:
    def __init__(self, session: MasterSession) -> None:
        self._session = session
        self._handler = self._end  # a single object, so that `is` recognises it

    def install(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # 1
            signal.signal(signal.SIGTERM, self._handler)

    def remove(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is self._handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # 2
        try:
            if self._session.gate.is_open and not self._session.is_forked:
                self._session.leave(GOODBYE_S)  # 3
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # 4

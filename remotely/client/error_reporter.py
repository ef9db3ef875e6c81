"""Prints the errors of submitted calls that nobody has retrieved (futures/unretrieved.py)."""

from collections import deque

from remotely.client.display import Display
from remotely.client.master_session import MasterSession
from remotely.errors import ActorRaised, NotConnected, RemotelyError
from remotely.futures import unretrieved
from remotely.transport.loop import Loop


class ErrorReporter:
    """Collects errors on any thread, and prints them on the loop's thread."""

    def __init__(self, session: MasterSession, display: Display, loop: Loop) -> None:
        self._session = session
        self._display = display
        self._loop = loop
        self._errors: deque[tuple[str, BaseException]] = deque()

    def note(self, what: str, error: BaseException) -> None:
        """On any thread, in the middle of anything: a future with this error was dropped."""
        session = self._session
        is_ours = isinstance(error, RemotelyError) and not isinstance(error, ActorRaised)
        is_expected = session.is_leaving and is_ours
        if is_expected or isinstance(error, NotConnected) or session.is_forked:
            return
        self._errors.append((what, error))
        if not session.is_closed:
            self._loop.call(self.report)

    def report(self) -> None:
        """Print what has been noted."""
        while self._errors:
            what, error = self._errors.popleft()
            text = unretrieved.report_text(what, error)
            self._display.complain(unretrieved.report_key(what, error), text)

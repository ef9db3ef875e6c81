"""The handler of an actor's root logger: it sends what the actor logs to its worker.

The worker writes a record to the actor's file, and passes it on to the script, whose handlers get
it (log_listener.py).  So logging is set up once, in the script, and an actor need not do anything.
What an actor sets up itself takes effect as follows:

    when the script's modules are imported  no effect: the script has these handlers, and gets the
                                            records.  They would write to the same file twice
    in the class, or later                  the actor has its own handlers.  A record that one of
                                            them shows is not sent: it would appear twice

`logging.basicConfig` does nothing if the root logger has a handler.  In an actor it ignores ours.
"""

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from remotely.protocol import control
from remotely.reporting import log_records

_root = logging.getLogger()


class Sender(logging.Handler):
    def __init__(self, send: Callable[[bytes], object]) -> None:
        super().__init__()
        self._send = send

    def handle(self, record: logging.LogRecord) -> bool:
        """Take no lock: a thread may block here while the worker is stopped, and must not hold up
        the thread that watches the lease."""
        if kept := bool(self.filter(record)):
            self.emit(record)
        return kept

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_shown_here(record):
            return
        try:
            logged = control.encode(log_records.pack(record))
        except Exception:  # arguments that do not fit the message, or that cannot be formatted
            self.handleError(record)
            return
        with contextlib.suppress(OSError):  # the worker is gone, and this process is about to be
            self._send(logged)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in `logging`
        """Report a wrong logging call in one line; most of its stack would be ours."""
        if logging.raiseExceptions:
            print(
                f"logging error: {sys.exc_info()[1]!r}: the message is {record.msg!r} and its "
                f"arguments are {record.args!r}, in {record.pathname}, line {record.lineno}",
                file=sys.stderr,
            )

    def _is_shown_here(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for handler in logger.handlers:
                if handler is not self and _shows(handler) and record.levelno >= handler.level:
                    return True
            logger = logger.parent
        return False


def _shows(handler: logging.Handler) -> bool:
    """Return whether a handler shows records to people, and does not just write a file."""
    return not isinstance(handler, logging.FileHandler | logging.NullHandler)


_sender: Sender | None = None


def install(name: str, send: Callable[[bytes], object]) -> None:
    """Send what this process logs, with the name of its actor, from now on."""
    global _sender
    log_records.name_actors(lambda: name)
    _sender = Sender(send)
    _root.addHandler(_sender)


def drop_the_scripts() -> None:
    """Remove the handlers that the script's modules have set up: the script has them."""
    if _sender is None:
        return
    for logger in list(_root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            _drop_handlers(logger, _sender)
    _root.handlers[:] = [_sender]
    plain = logging.basicConfig

    def basic_config(**settings: Any) -> None:
        assert _sender is not None
        _root.removeHandler(_sender)
        try:
            plain(**settings)
        finally:
            _root.addHandler(_sender)

    logging.basicConfig = basic_config


def _drop_handlers(logger: logging.Logger, sender: Sender) -> None:
    """Leave the NullHandlers, by which a library says that it stays quiet."""
    dropped = [one for one in logger.handlers if not isinstance(one, logging.NullHandler)]
    for handler in dropped:
        logger.removeHandler(handler)
    if dropped and not logger.propagate:  # the root never sees these records
        logger.addHandler(sender)

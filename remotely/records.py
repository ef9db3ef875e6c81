"""What an actor logs: a record of `logging`, as text that can travel, and as a record again.

The message is formatted, and an exception is text, where they came up: nothing of a record has to
be pickled, and a handler of the script's never touches an object of the actor's.  Long ones are
cut: a message at its end, a traceback at its beginning, for what went wrong is said last.  Pure.
"""

import logging
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from remotely.control import Logged
from remotely.terminal import shown

# Together they stay below what a message to the worker may have.
MAX_TEXT_BYTES = 16_384  # of the message, and of the traceback
MAX_STACK_BYTES = 4_096
MAX_WORD_BYTES = 512  # of names, paths and extra values
MAX_EXTRAS = 16
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "actor"}
_FORMATTER = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def pack(record: logging.LogRecord) -> Logged:
    """Return what travels of a record.  Raises what its formatting raises."""
    trace = record.exc_text or ""
    if record.exc_info and not trace:
        trace = _FORMATTER.formatException(record.exc_info)
    extra = [item for item in vars(record).items() if item[0] not in _STANDARD]
    return Logged(
        logger=_head(record.name, MAX_WORD_BYTES),
        level=max(0, record.levelno),
        level_name=_head(record.levelname, MAX_WORD_BYTES),
        message=_head(record.getMessage(), MAX_TEXT_BYTES),
        exc_text=_tail(trace, MAX_TEXT_BYTES),
        stack=_tail(record.stack_info or "", MAX_STACK_BYTES),
        created=record.created,
        path=_tail(record.pathname, MAX_WORD_BYTES),
        line=record.lineno,
        function=_head(record.funcName or "", MAX_WORD_BYTES),
        process=record.process or 0,
        process_name=_head(record.processName or "", MAX_WORD_BYTES),
        thread=record.thread or 0,
        thread_name=_head(record.threadName or "", MAX_WORD_BYTES),
        extra={
            _head(name, MAX_WORD_BYTES): _head(value, MAX_WORD_BYTES)
            if isinstance(value, str)
            else value
            for name, value in extra[:MAX_EXTRAS]
            if value is None or isinstance(value, str | bool | float) or _is_short(value)
        },
    )


def unpack(logged: Logged) -> logging.LogRecord:
    """Return the record, as handlers and formats know it, with `actor`: the name of the actor."""
    path = PurePath(logged.path)
    attributes = {
        **logged.extra,
        "name": logged.logger,
        "msg": shown(logged.message),
        "args": None,
        "levelno": logged.level,
        "levelname": logged.level_name,
        "pathname": logged.path,
        "filename": path.name,
        "module": path.stem,
        "lineno": logged.line,
        "funcName": logged.function,
        "created": logged.created,
        "msecs": logged.created % 1 * 1000 // 1,
        "process": logged.process,
        "processName": logged.process_name,
        "thread": logged.thread,
        "threadName": logged.thread_name,
        "exc_text": shown(logged.exc_text) or None,
        "stack_info": shown(logged.stack) or None,
        "actor": logged.name,
    }
    return logging.makeLogRecord(attributes)


def line(logged: Logged) -> str:
    """Return how a record looks in the file of what its actor prints."""
    return f"{_FORMATTER.format(unpack(logged))}\n"


def levels() -> dict[str, int]:
    """Return the levels of this process's loggers, where they were set; "" is the root."""
    root = logging.getLogger()
    loggers = list(root.manager.loggerDict.items())
    named = {name: a.level for name, a in loggers if isinstance(a, logging.Logger) and a.level}
    return {**named, "": root.level}


def set_levels(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def name_actors(name: Callable[[], str]) -> Callable[[], None]:
    """Let each record that is made here have `actor`, if there is a name; return what undoes it."""
    plain = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = plain(*args, **kwargs)
        if actor := name():
            record.actor = actor
        return record

    def undo() -> None:
        if logging.getLogRecordFactory() is make:
            logging.setLogRecordFactory(plain)

    logging.setLogRecordFactory(make)
    return undo


def _is_short(value: object) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 62


def _head(text: str, size: int) -> str:
    data = text.encode(errors="replace")
    if len(data) <= size:
        return data.decode()
    return f"{data[:size].decode(errors='ignore')} ... ({len(data) - size:,} bytes were cut)"


def _tail(text: str, size: int) -> str:
    data = text.encode(errors="replace")
    return data.decode() if len(data) <= size else f"... {data[-size:].decode(errors='ignore')}"

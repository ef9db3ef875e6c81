"""Conversion of an actor's log records to messages of plain text, and back to records.

The actor formats the message and the exception, so no part of a record has to be pickled, and
handlers in the script never touch objects of the actor.  Long texts are cut: a message at its end,
a traceback at its beginning, because the error itself is at the end.  Pure.
"""

import logging
from collections.abc import Callable
from numbers import Integral, Rational, Real
from pathlib import PurePath
from typing import Any

from remotely.protocol.control import Logged
from remotely.reporting.terminal import shown

# Their sum stays below the limit on a message to the worker.
MAX_TEXT_BYTES = 16_384  # of the message, and of the traceback
MAX_STACK_BYTES = 4_096
MAX_WORD_BYTES = 512  # of names, paths and extra values
MAX_EXTRAS = 16
_MAX_AMOUNT = 1 << 62
_MAX_PID = (1 << 31) - 1
_MAX_MOMENT = 1e12
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = _STANDARD | frozenset(dir(logging.LogRecord))  # a malicious worker might set these
_FORMATTER = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def pack(record: logging.LogRecord) -> Logged:
    """Convert a record to a message.  Raises what the formatting of the record raises."""
    trace = record.exc_text or ""
    if record.exc_info and not trace:
        trace = _FORMATTER.formatException(record.exc_info)
    extra = [item for item in vars(record).items() if item[0] not in _STANDARD]
    return Logged(
        logger=_head(record.name, MAX_WORD_BYTES),
        level=int(_within(record.levelno, _MAX_AMOUNT)),
        level_name=_head(record.levelname, MAX_WORD_BYTES),
        message=_head(record.getMessage(), MAX_TEXT_BYTES),
        exc_text=_tail(trace, MAX_TEXT_BYTES),
        stack=_tail(record.stack_info, MAX_STACK_BYTES),
        created=float(_within(record.created, _MAX_MOMENT)),
        path=_tail(record.pathname, MAX_WORD_BYTES),
        line=int(_within(record.lineno, _MAX_AMOUNT)),
        function=_head(record.funcName, MAX_WORD_BYTES),
        process=int(_within(record.process, _MAX_PID)),
        process_name=_head(record.processName, MAX_WORD_BYTES),
        thread=int(_within(record.thread, _MAX_AMOUNT)),
        thread_name=_head(record.threadName, MAX_WORD_BYTES),
        extra={
            _head(name, MAX_WORD_BYTES): _plain(value)
            for name, value in extra[:MAX_EXTRAS]
            if value is None or isinstance(value, str) or _is_number(value)
        },
    )


def unpack(logged: Logged) -> logging.LogRecord:
    """Convert a message back to a record.

    Its `actor` is the name of the actor, unless the user's `extra` has that key.
    """
    path = PurePath(logged.path)
    attributes = {
        "actor": logged.name,
        **{name: value for name, value in logged.extra.items() if name not in _OWN},
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
    }
    return logging.makeLogRecord(attributes)


def line(logged: Logged) -> str:
    """Return the line for a record in the actor's log file."""
    return f"{_FORMATTER.format(unpack(logged))}\n"


def levels() -> dict[str, int]:
    """Return the levels that were set on loggers of this process; "" is the root logger."""
    root = logging.getLogger()
    loggers = list(root.manager.loggerDict.items())
    named = {name: a.level for name, a in loggers if isinstance(a, logging.Logger) and a.level}
    return {**named, "": root.level}


def set_levels(levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def name_actors(name: Callable[[], str]) -> Callable[[], None]:
    """Set `actor` on each record logged here, if `name` returns one; return a function to undo it.

    Not with a log record factory: `logging` would then refuse an `extra` with the key `actor`.
    """
    plain = logging.Logger.handle

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if actor := name():
            record.__dict__.setdefault("actor", actor)
        plain(logger, record)

    def undo() -> None:
        if logging.Logger.handle is handle:
            logging.Logger.handle = plain  # type: ignore[method-assign]

    logging.Logger.handle = handle  # type: ignore[method-assign,assignment]
    return undo


def _within(value: Any, most: float) -> Any:
    """Return the nearest number that the worker accepts; 0 for anything else."""
    number: Any = value if isinstance(value, Real) else 0
    return min(max(0, number), most)


def _is_number(value: Any) -> bool:
    number: Any = value
    is_exact = isinstance(value, Rational)  # integers and fractions may have any size
    return isinstance(value, Real) and not (is_exact and abs(number) >= _MAX_AMOUNT)


def _plain(value: Any) -> str | int | float | bool | None:
    """Convert a value to a built-in type: a NumPy number may be a subclass of `float`, say."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _head(value, MAX_WORD_BYTES)
    return int(value) if isinstance(value, Integral) else float(value)


def _encoded(text: object) -> bytes:
    plain = text if isinstance(text, str) else "" if text is None else str(text)
    return plain.encode(errors="replace")


def _head(text: object, size: int) -> str:
    data = _encoded(text)
    if len(data) <= size:
        return data.decode()
    return f"{data[:size].decode(errors='ignore')} ... ({len(data) - size:,} bytes were cut)"


def _tail(text: object, size: int) -> str:
    data = _encoded(text)
    return data.decode() if len(data) <= size else f"... {data[-size:].decode(errors='ignore')}"

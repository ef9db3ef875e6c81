"""The parts that an actor is made from: settings, code and files; and the handler of its log.

    message    what it brings
    PREPARE    the client's settings, the names of its files, and the code that is loaded there
    FILE       one shipped file that this machine lacks
    SOURCES    code that the client has loaded later; it may come at any time
    INIT       the class and the arguments of its constructor

A detached actor that may be restarted also leaves PREPARE and INIT in a file, because the client
that could send them again may be gone by then (restart_file.py).

Logging is set up once, in the script: a handler of the root logger (`Sender`) sends what the actor
logs to its worker, which writes it to the actor's file and passes it on to the script, whose
handlers get it (client/printing.py).  What an actor sets up itself takes effect as follows:

    when the script's modules are imported  no effect: the script has these handlers, and gets the
                                            records.  They would write to the same file twice
    in the class, or later                  the actor has its own handlers.  A record that one of
                                            them shows is not sent: it would appear twice

`logging.basicConfig` does nothing if the root logger has a handler.  In an actor it ignores ours.
"""

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from remotely.api import connection
from remotely.api.current_actor import serve
from remotely.engine import Engine
from remotely.objects.construct import construct
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.reporting import log_records
from remotely.values import (
    codec,
    restart_file,
    shipping,
    sources,
)
from remotely.values.payload import Unpacked

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


def send_records(name: str, send: Callable[[bytes], object]) -> None:
    """Send what this process logs, with the name of its actor, from now on."""
    global _sender
    log_records.name_actors(lambda: name)
    _sender = Sender(send)
    _root.addHandler(_sender)


def drop_the_scripts_handlers() -> None:
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


class Unpacks(Protocol):
    """Takes values out of messages, however they travel."""

    def unpack(self, route: bytes, message: Message) -> Unpacked:
        """Return the pickle and the buffers of a value."""


class Preparation:
    """Sets up the process for the user's class, and constructs the object.

    host       what this machine is to the client's: see `this_machine.identity`
    folder     for shipped files
    client     makes the engine of this actor, if it makes calls of its own
    kept_as    the name under which what makes it is left for its next life; empty if a client
               keeps that
    """

    def __init__(
        self,
        host: str,
        folder: Path,
        payloads: Unpacks,
        client: Callable[[control.Prepare], Engine],
        kept_as: str = "",
    ) -> None:
        self._host = host
        self._folder = folder
        self._payloads = payloads
        self._client = client
        self._kept_as = kept_as
        self._prepared: control.Prepare | None = None

    def prepare(self, route: bytes, message: Message) -> list[str]:
        """Take over the client's settings.  Return the hashes of the files that are missing."""
        prepare = control.Decoder(control.Prepare).decode(message.payload)
        assert isinstance(prepare, control.Prepare)
        self._prepared = prepare
        connection.adopt(functools.partial(self._client, prepare))
        log_records.set_levels(prepare.log_levels)
        sys.argv = prepare.argv or [""]  # as multiprocessing does: modules may read it
        sources.finder.is_elsewhere = prepare.host != self._host
        sources.finder.install(first=True)
        sources.send_code_to_children()
        if prepare.sources:
            _learn(sources.batch_of(prepare.sources))
        if prepare.host == self._host:
            sys.path.extend(entry for entry in prepare.path if entry not in sys.path)
        return shipping.missing(self._folder, prepare.files)

    def store_file(self, route: bytes, message: Message) -> None:
        _, (content,) = self._payloads.unpack(route, message)
        shipping.store(self._folder, message.name, content)

    def learn_sources(self, route: bytes, message: Message) -> None:
        _, (content,) = self._payloads.unpack(route, message)
        _learn(sources.Batch(message.name, bytes(content)))

    def lay_out_files(self) -> None:
        """Put the shipped files where the user's modules find them."""
        assert self._prepared is not None
        if self._prepared.files:
            root = shipping.lay_out(self._folder, self._prepared.files)
            sys.path.insert(0, str(root))
            connection.set_shipped_root(root)
            sources.finder.shipped_root = root

    def construct(self, route: bytes, message: Message) -> tuple[Any, int]:
        """Return the object, and how many calls it serves at a time."""
        assert self._prepared is not None
        payload, buffers = self._payloads.unpack(route, message)
        self._keep_for_restart(self._prepared, payload, buffers)
        cls, args, kwargs = codec.decode(payload, buffers)
        serve(cls)
        drop_the_scripts_handlers()
        return construct(cls, args, kwargs), self._prepared.concurrency

    def kept_messages(self) -> list[list[bytes | memoryview]]:
        """Return the messages from which the previous life of this actor was made."""
        kept_as, self._kept_as = self._kept_as, ""  # they are there already
        return restart_file.read(self._folder, kept_as)

    def release(self) -> None:
        self._prepared = None

    def _keep_for_restart(
        self, prepared: control.Prepare, payload: bytes | memoryview, buffers: Sequence[Any]
    ) -> None:
        """Keep what made this actor, if no client may be left to make it again."""
        if not self._kept_as:
            return
        prepare = wire.encode(Kind.PREPARE, 0, "", [control.encode(prepared)])
        init = wire.encode(Kind.INIT, 0, "", [payload], buffers)
        restart_file.write(self._folder, self._kept_as, [prepare, init])


def _learn(batch: sources.Batch) -> None:
    for name in sources.finder.offer(sources.library.add(batch)):
        print(
            f"remotely: {name} has changed since this actor imported it, and stays here as it "
            "was; make a new actor for the new one",
            file=sys.stderr,
        )

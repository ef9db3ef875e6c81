"""The setup of an actor: the client's settings, code and files, and logging.

    message    contents
    PREPARE    the client's settings, the names of its files, and the code that it has loaded
    FILE       one shipped file that this machine lacks
    SOURCES    code that the client loaded later; may arrive at any time
    INIT       the class and the arguments of its constructor

A detached actor with restarts also writes PREPARE and INIT to a file, because its client may be
gone when they are needed again (restart_file.py).

Logging is configured once, in the script.  A handler of the root logger (`Sender`) sends the
records of the actor to its worker, which writes them to the actor's file and passes them on to the
script, whose handlers process them (client/printing.py).  Handlers that are set up in the actor:

    by an import of the script's modules    removed: the script has the same handlers and gets the
                                            records, so a file would be written twice
    by the class, or later                  kept.  A record that one of them shows is not sent, or
                                            it would appear twice

`logging.basicConfig` does nothing if the root logger has a handler; in an actor it ignores Sender.
"""

import functools
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from remotely.api import connection
from remotely.api.current_actor import set_class
from remotely.engine import Engine
from remotely.objects.construct import construct
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.reporting import log_records
from remotely.values import (
    codec,
    maker_state,
    restart_file,
    shipping,
    sources,
)
from remotely.values.payload import Unpacked

_FROM_CLIENT = control.Decoder("client > actor")
_root = logging.getLogger()


class Sender(logging.Handler):
    def __init__(self, send: Callable[[control.Logged], object]) -> None:
        super().__init__()
        self._send = send

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit without the handler's lock: a thread may block here while the worker is stopped, and
        must not delay the thread that checks the lease."""
        if kept := bool(self.filter(record)):
            self.emit(record)
        return kept

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_shown_here(record):
            return
        try:
            self._send(log_records.pack(record))
        except Exception:  # the arguments do not fit the message, or cannot be formatted
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in `logging`
        """Report a wrong logging call in one line, without the stack of this handler."""
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
    """Return whether a handler shows records to people, rather than writing them to a file."""
    return not isinstance(handler, logging.FileHandler | logging.NullHandler)


_sender: Sender | None = None


def send_records(name: str, send: Callable[[control.Logged], object]) -> None:
    """From now on, send the log records of this process, with the name of its actor."""
    global _sender
    log_records.name_actors(lambda: name)
    _sender = Sender(send)
    _root.addHandler(_sender)


def drop_script_handlers() -> None:
    """Remove the handlers that the script's modules have set up: the script has the same."""
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
    """Remove all handlers but NullHandlers, with which a library silences its own warnings."""
    dropped = [one for one in logger.handlers if not isinstance(one, logging.NullHandler)]
    for handler in dropped:
        logger.removeHandler(handler)
    if dropped and not logger.propagate:  # its records do not reach the root logger
        logger.addHandler(sender)


class Unpacks(Protocol):
    def unpack(self, route: bytes, message: Message) -> Unpacked:
        """Return the pickle and the buffers of the value of a message."""


class Preparation:
    """Sets up the process for the user's class, and constructs the object.

    host       `this_machine.identity`, to be compared with the client's
    folder     for shipped files
    client     returns an engine with which this actor makes calls of its own
    given      the environment variables that `env=` has set
    kept_as    name of the restart file; empty if a client can send the messages again
    """

    def __init__(
        self,
        host: str,
        folder: Path,
        payloads: Unpacks,
        client: Callable[[control.Prepare], Engine],
        given: Collection[str],
        kept_as: str = "",
    ) -> None:
        self._host = host
        self._folder = folder
        self._payloads = payloads
        self._client = client
        self._given = given
        self._kept_as = kept_as
        self._prepared: control.Prepare | None = None

    def prepare(self, route: bytes, message: Message) -> list[str]:
        """Apply the client's settings; return the hashes of the files that are missing here."""
        prepare = _FROM_CLIENT.decode(message.payload)
        assert isinstance(prepare, control.Prepare)
        self._prepared = prepare
        connection.adopt(functools.partial(self._client, prepare))
        is_same_host = prepare.host == self._host
        maker_state.apply(prepare.state, is_same_host, self._given)
        sources.finder.is_elsewhere = not is_same_host
        sources.finder.install(first=True)
        sources.send_code_to_children()
        if prepare.sources:
            _learn(sources.batch_of(prepare.sources))
        return shipping.missing(self._folder, prepare.files)

    def store_file(self, route: bytes, message: Message) -> None:
        _, (content,) = self._payloads.unpack(route, message)
        shipping.store(self._folder, message.name, content)

    def learn_sources(self, route: bytes, message: Message) -> None:
        _, (content,) = self._payloads.unpack(route, message)
        _learn(sources.SourceBatch(message.name, bytes(content)))

    def lay_out_files(self) -> None:
        """Put the shipped files where the user's modules find them."""
        assert self._prepared is not None
        if self._prepared.files:
            root = shipping.lay_out(self._folder, self._prepared.files)
            sys.path.insert(0, str(root))
            connection.set_shipped_root(root)
            sources.finder.shipped_root = root

    def construct(self, route: bytes, message: Message) -> tuple[Any, int]:
        """Return the object and its concurrency."""
        assert self._prepared is not None
        payload, buffers = self._payloads.unpack(route, message)
        self._keep_for_restart(self._prepared, payload, buffers)
        cls, args, kwargs = codec.decode(payload, buffers)
        set_class(cls)
        drop_script_handlers()
        return construct(cls, args, kwargs), self._prepared.concurrency

    def kept_messages(self) -> list[list[bytes | memoryview]]:
        """Return the messages that set up the previous life of this actor."""
        kept_as, self._kept_as = self._kept_as, ""  # so they are not written again
        return restart_file.read(self._folder, kept_as)

    def release(self) -> None:
        self._prepared = None

    def _keep_for_restart(
        self, prepared: control.Prepare, payload: bytes | memoryview, buffers: Sequence[Any]
    ) -> None:
        """Write PREPARE and INIT to the restart file, if this actor has one."""
        if not self._kept_as:
            return
        prepare = wire.encode(Kind.PREPARE, 0, "", [control.encode(prepared)])
        init = wire.encode(Kind.INIT, 0, "", [payload], buffers)
        restart_file.write(self._folder, self._kept_as, [prepare, init])


def _learn(batch: sources.SourceBatch) -> None:
    for name in sources.finder.offer(sources.library.add(batch)):
        print(
            f"remotely: {name} has changed since this actor imported it, and this actor keeps the "
            "old version; create a new actor to use the new one",
            file=sys.stderr,
        )

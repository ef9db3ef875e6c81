"""The engine of a cluster: places actors through the master, and calls them directly.

The calling thread sends a call, and the thread that waits for it receives the reply.  One daemon
thread runs the loop, which talks to the master, prints the output of actors, and receives the
replies of submitted calls.  It never blocks.  The only user code that it runs is what unpickling
runs.  The user's done-callbacks have a thread of their own (futures/callbacks.py).

Client connects these parts; each uses only those above it:

    printing.py         output, log records and warnings
    master_session.py   the client's session with the master: its id, its questions
    bulk_transfer.py    large values in the stores of other machines
    channels.py         the channel of each actor
    calls.py            sending calls
    actors.py           actors, from birth to end
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from remotely.calling import spare
from remotely.client.actors import Actors, ArrivalQuestion
from remotely.client.bulk_transfer import Stores
from remotely.client.calls import Calls
from remotely.client.channel import Shared
from remotely.client.channels import Channels
from remotely.client.deadlock import WaitReporter
from remotely.client.master_session import Handlers, MasterSession
from remotely.client.printing import Display, ErrorReporter, LogListener
from remotely.client.ref import Ref
from remotely.engine import Arguments, Options, Prepared, Promises, RemoteActor
from remotely.errors import VersionMismatch
from remotely.futures import callbacks
from remotely.futures.future import CallFuture
from remotely.machine import daemons, folders, this_machine
from remotely.protocol import control
from remotely.protocol.address import OWN_CLUSTER, parse_address
from remotely.protocol.lease import DRAIN_S, PLACE_S
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus, cluster_status
from remotely.transport import key_files
from remotely.transport.keys import MemberKey
from remotely.transport.listening import reach
from remotely.values import arena, codec, forks
from remotely.values.owned import NOTHING, own
from remotely.values.shipping import Shipment
from remotely.values.unpicklable import PartNames

RECOVER_EVERY_S = 1.0  # all channels
MAX_DESCRIPTORS = 65_536  # each called actor takes six; many systems allow 1,024


class Client:
    """Implements `engine.Engine` on a cluster.

    `on_shutdown` stops a cluster that belongs to this client alone; `on_forget`, in a forked child,
    releases what keeps that cluster alive.
    """

    promises = Promises()

    def __init__(
        self,
        address: str,
        key: MemberKey,
        shipment: Shipment,
        patience_s: float = PLACE_S,
        show_output: bool = True,
        job: str = "",
        inside: str = "",
        on_shutdown: Callable[[], None] = lambda: None,
        on_forget: Callable[[], None] = lambda: None,
    ) -> None:
        if not inside:
            arena.size_wanted()  # raises for an invalid setting: here, not at a large value
        self.address = address
        self.cluster = f"{address} {key.master_public.decode()}"
        self._on_shutdown = on_shutdown
        self._on_forget = on_forget
        self._display = Display(show_output)
        self._log_listener = LogListener(self._display.show)
        daemons.raise_descriptor_limit(at_most=MAX_DESCRIPTORS)
        self._session = session = MasterSession(
            address,
            key,
            job,
            inside,
            patience_s,
            self._display.warn,
            self._on_return,
            self._table(),
        )
        self.session_id, loop = session.id, session.loop
        self._stores = Stores(session.context, loop, key.pair, this_machine.machine_name())
        wait_reporter = WaitReporter(inside, session.send) if inside else None
        shared = Shared(key.pair, session, self._stores, wait_reporter)
        self._channels = Channels(shared)
        self._error_reporter = ErrorReporter(session, self._display)
        self._calls = calls = Calls(
            session, self._channels, self._stores, self._error_reporter.note
        )
        self._actors = Actors(self, shared, self._channels, calls, shipment)
        loop.every(arena.TIDY_EVERY_S, arena.tidy)
        loop.every(arena.TIDY_EVERY_S, forks.tidy)
        loop.every(RECOVER_EVERY_S, self._channels.recover)
        callbacks.lend(loop)
        try:
            session.start(self._run, "client")
        except BaseException:
            self._close()
            raise

    def check_python(self) -> None:
        """Raise VersionMismatch if no worker runs the Python of this process."""
        pythons = self._session.pythons
        if pythons and this_machine.PYTHON not in pythons:
            self.shutdown()
            raise VersionMismatch(
                f"this is Python {this_machine.PYTHON}; the workers at {self.address} run "
                f"{' and '.join(pythons)}, and code does not travel between versions"
            )

    # --- verbs of `Engine`: actors ----------------------------------------------------------------

    def place(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        return self._actors.place(cls, arguments, options)

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        self._actors.end(remotes, grace_s)

    def release(self, remote: RemoteActor) -> None:
        self._actors.release(remote)

    def find(self, name: str) -> RemoteActor:
        return self._actors.find(name)

    def await_arrival(self, class_name: str) -> ArrivalQuestion:
        return ArrivalQuestion(self._session, self._actors, class_name)

    def borrow(self, actor: str, name: str) -> RemoteActor:
        return self._actors.borrow(actor, name)

    def hold(self, actor: str, name: str, giver: str) -> RemoteActor:
        return self._actors.hold(actor, name, giver)

    # --- verbs of `Engine`: calls and values ------------------------------------------------------

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        encoded, named = codec.encode_arguments(remotes, method, args, kwargs)
        return self._calls.send(remotes, Kind.CALL, method, encoded, background, retries, named)

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        encoded, named = codec.encode_arguments((), method, args, kwargs, names)
        return self._calls.prepare(method, encoded, named)

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        return self._calls.send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        encoded = codec.encode(value, name)
        return self._calls.send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def is_any_elsewhere(self, remotes: Sequence[RemoteActor]) -> bool:
        """Tell whether large values for any of these go through the store of another machine."""
        return bool(self._calls.stores_of(remotes))

    def put(self, value: object) -> Ref:
        return Ref(own(codec.encode(value)))

    def value_of(self, ref: object) -> Any:
        if not isinstance(ref, Ref):
            raise TypeError(
                f"get() takes what ref() or put() returned, or the future of a call; {ref!r} is "
                "none of these"
            )
        return ref.get()

    def report(self, fresh: bool = True) -> ClusterStatus:
        return cluster_status(self.status(fresh), self.address.removeprefix("tcp://"))

    def forget(self) -> None:
        """In a forked child: leave everything, also the end of the cluster, to the parent."""
        self._on_forget()

    def shutdown(self) -> None:
        if self._session.is_closed or self._session.is_forked:
            return
        try:
            self._session.leave()
        finally:
            try:
                self._close()
            finally:
                self._on_shutdown()

    # --- for the command line ---------------------------------------------------------------------

    def status(self, fresh: bool = True) -> control.Status:
        """Return the status of the cluster; with `fresh`, with current activity and usage."""
        found: control.Status = self._session.ask(control.AskStatus, fresh=fresh).result()
        return found

    def read_log(self, actor: str, offset: int) -> Future[control.LogPiece]:
        """Return the future of the next chunk of an actor's output."""
        return self._session.ask(control.ReadLog, actor=actor, offset=offset)

    # --- on the loop's thread ---------------------------------------------------------------------

    def _table(self) -> Handlers:
        """Return what to do about the messages that are not about the session."""
        return {
            control.Died: self._on_death,
            control.Held: lambda held: self._actors.on_held(held.actor),
            control.LetGoHeard: lambda heard: self._actors.on_let_go(heard.actor),
            control.RoomWanted: lambda _: spare.give_back(),
            control.Printed: self._display.show,
            control.Logged: self._log_listener.hear,
            control.AskFigures: lambda _: self._report_unanswered(),
            control.Notice: lambda notice: self._display.warn(
                notice.text, f"remotely: {notice.text}"
            ),
        }

    def _on_return(self) -> None:
        self._actors.repeat_requests()

    def _on_death(self, died: control.Died) -> None:
        self._session.arrivals.discard(died.obituary.actor)
        self._actors.on_death(died.obituary)

    def _report_unanswered(self) -> None:
        self._session.link.send(control.Unanswered(calls=self._channels.unanswered()))

    def _run(self) -> None:
        self._session.loop.run()
        self._session.loop.run_calls()
        self._channels.end_all()  # on this thread, which no signal interrupts

    def _close(self) -> None:
        """Release everything in this process, whatever state it is in."""
        callbacks.withdraw(self._session.loop)
        self._session.stop()
        self._log_listener.close()
        self._channels.end_all()
        self._calls.close()
        self._stores.close()
        callbacks.users.finish(DRAIN_S)
        self._error_reporter.report()
        self._display.close()
        self._session.close()
        arena.trim()


def client_of(
    address: str,
    key: str | Path | None = None,
    ship: str | Path | Iterable[str | Path] = (),
    patience_s: float | None = None,
    show_output: bool = True,
) -> Client:
    """Return another client, of the cluster at `address`.

    With `patience_s`, wait that long for a cluster that does not answer yet.
    """
    host, port = parse_address(address)
    shipment = Shipment(ship)
    file = key or os.environ.get("REMOTELY_KEY") or folders.key_folder() / "client.key"
    where = reach(host, port, OWN_CLUSTER, patience_s or 0.0)
    member = key_files.load_member(Path(file), "client")
    patience_s = PLACE_S if patience_s is None else patience_s
    return Client(f"tcp://{where}", member, shipment, patience_s, show_output)

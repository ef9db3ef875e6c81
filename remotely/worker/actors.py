"""The actors of one worker: a row for each that lives, and everything that may change it.

    the master asks        spawn, end, end_all, tell, admit
    the spawner reports    prepared, started, spawn_lost, spawn_failed, exited   (spawner.Parent)
    a process reports      bound, its calls, what it logs, that it ends    (_hear)
    the reaper reports     the last words, the end

An actor may be asked for again while its last process is being killed: the next life waits until
the one before has ended.

The class is a little over 250 lines: each event reads or changes the same row, and a second class
would share all of its state with the first.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable

import msgspec

from remotely.protocol import control
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport.access_list import AccessRelay
from remotely.transport.loop import Loop
from remotely.values import restart_file
from remotely.worker.memory_limit import MemoryLimit
from remotely.worker.output import LogFiles, read_piece
from remotely.worker.reaper import Child, Reaper, Stage
from remotely.worker.spawner import Home, Spawner
from remotely.worker.store_line import StoreLine

log = logging.getLogger("remotely.worker")

SAY_AGAIN_S = 1.0  # what a process had no room for, as it was stopped
STORE = "store"  # who asks about keys, beside the actors
MOST_LAST_WORDS = 300  # of an actor; more than its socket holds


class Actors:
    """What lives on a worker.

    `send` takes what the master is to hear; `emptied` is called when the last actor has ended.
    """

    def __init__(
        self,
        loop: Loop,
        home: Home,
        send: Callable[[msgspec.Struct], object],
        emptied: Callable[[], object],
        store: StoreLine | None,
    ) -> None:
        self._loop = loop
        self._folder = home.folder
        self._send = send
        self._emptied = emptied
        self._children: dict[str, Child] = {}
        self._next_lives: dict[str, control.Spawn] = {}  # for when the one before has ended
        self._decoder = control.Decoder(control.FromActor)
        self._logs = LogFiles(home.folder / "logs")
        self._reaper = Reaper(loop, home.worker, self._children, self._last_words, self._reaped)
        self._spawner = Spawner(loop, home, self._logs, self, ThrottledLog(log.warning))
        self._access = AccessRelay(send, self._answer_asker)
        self._store = store
        self._memory_limit = MemoryLimit(loop, self.children)
        self._says_again = False  # soon
        self._is_for_good = False  # the whole cluster ends
        self._are_lost = False  # the master hears of their end as one, with that of the worker

    def listen(self) -> None:
        """Hear of processes that end from now on."""
        self._reaper.listen()

    def close(self) -> None:
        """Kill what still lives.  Nothing is left but the folder."""
        self._spawner.close()
        self._reaper.kill_all()

    # --- what there is ----------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._children)

    @property
    def children(self) -> Iterable[Child]:
        """The processes of actors, those that are starting or ending included."""
        return self._children.values()

    def statuses(self) -> list[control.ActorStatus]:
        """Return the actors that the master may take for living."""
        return [child.as_status() for child in self._children.values() if child.announced]

    def births(self) -> list[control.Spawn]:
        """Return those that were asked for, and of which `Spawned` has not been said."""
        return [
            *(child.as_spawn() for child in self._children.values() if not child.announced),
            *self._spawner.waiting,
            *self._next_lives.values(),
        ]

    def begin_figures(self) -> bool:
        """Begin to measure what the actors use; tell whether that takes CPU_AT_LEAST_S."""
        now = time.monotonic()
        return bool([child for child in self._children.values() if child.begin_figures(now)])

    def figures(self) -> list[control.Figures]:
        return [child.figures() for child in self._children.values() if child.announced]

    def read_log(self, asked: control.ReadLog) -> control.LogPiece:
        """Return a piece of what an actor has printed, whether it lives or has ended."""
        actor, file = self._logs.find(asked.actor)
        text, end = read_piece(file, asked.offset) if file else ("", 0)
        return control.LogPiece(
            ticket=asked.ticket,
            text=text,
            offset=end,
            known=file is not None,
            ended=actor not in self._children,
        )

    # --- who may call them ------------------------------------------------------------------------

    def list_keys(self, keys: list[bytes]) -> None:
        """From now on these keys are listed."""
        if keys != self._spawner.client_keys:
            self._spawner.client_keys = keys
            self.admit()
            self._access.ask_again()
            if self._store is not None:
                self._store.list_keys(keys)

    def admit(self) -> None:
        """Have the actors admit the newest keys, and no others."""
        keys = self._spawner.client_keys
        message = control.encode(control.Admit(client_keys=keys))
        for child in self._children.values():
            if child.client_keys is not keys:
                try:
                    child.socket.send(message)
                except OSError:
                    self._say_again_soon()
                else:
                    child.client_keys = keys

    def hear_of(self, caller: control.Caller) -> None:
        """The master says whether a key may call."""
        self._access.handle_reply(caller)

    def ask_for_store(self, question: control.MayCall) -> None:
        """The store asks whether a key may call."""
        self._access.handle_question(STORE, question)

    def forget_store(self) -> None:
        """The store has ended, and lets nobody in."""
        self._access.forget(STORE)

    def _answer_asker(self, asker: str, caller: control.Caller) -> None:
        if asker != STORE:
            self.tell(asker, caller)
        elif self._store is not None:
            self._store.tell(caller)

    def _introduce(self, child: Child) -> None:
        """Give an actor a line to the store, or say that there is none."""
        line = self._store.meet() if self._store is not None else None
        with contextlib.suppress(OSError):  # it has ended, or asks again
            fds = [line.fileno()] if line else []
            socket.send_fds(child.socket, [control.encode(control.Meet())], fds)
        if line is not None:
            line.close()

    def ask_again(self) -> None:
        """Ask the master again about each key: the connection to it is new."""
        self._access.ask_again()

    def tell(self, actor: str, message: msgspec.Struct) -> None:
        """Send a message to an actor's process, now or when it has room."""
        if child := self._children.get(actor):
            child.unsaid.append(control.encode(message))
            self._say(child)

    def _say(self, child: Child) -> None:
        try:
            while child.unsaid:
                child.socket.send(child.unsaid[0])
                child.unsaid.popleft()
        except OSError:
            self._say_again_soon()

    def _say_again_soon(self) -> None:
        """A process is stopped, and its socket full; or it has ended, and that will be seen."""
        if not self._says_again:
            self._says_again = True
            self._loop.after(SAY_AGAIN_S, self._say_again)

    def _say_again(self) -> None:
        self._says_again = False
        self.admit()
        for child in self._children.values():
            self._say(child)

    # --- asked for, and asked to end --------------------------------------------------------------

    def preload(self, modules: list[str]) -> None:
        """Have the zygote import these modules, for the actors to come."""
        self._spawner.preload(modules)

    def spawn(self, spawn: control.Spawn) -> None:
        """Start an actor, unless this life of it is here already."""
        request = spawn.request
        if (before := self._children.get(request.actor)) is not None:
            # The end of an earlier life was not told to the master, or that has given this one up.
            if before.request.life < request.life or before.asked or before.is_killed:
                self._next_lives[request.actor] = spawn
                before.kill()
            elif before.request.life == request.life and before.announced:
                self._send(control.Spawned(location=before.location, since=before.since))
            return
        if faults.ON:
            faults.at("worker.spawn")
        self._spawner.ask(spawn)

    def end(self, end: control.End) -> None:
        """End an actor, whether it lives, is starting, or waits for either."""
        if spawn := self._next_lives.pop(end.actor, None):
            self._died(_never_started(spawn.request, "closed", asked=True))
        elif child := self._children.get(end.actor):
            self._reaper.end(child, end.grace_s, end.kill, end.by)
        elif request := self._spawner.withdraw(end.actor):
            self._died(_never_started(request, "closed", asked=True))
        else:
            restart_file.discard(self._folder, end.actor)

    def end_all(self, grace_s: float, for_good: bool) -> None:
        """End every actor, and start none any more.

        Unless the whole cluster ends, nobody has asked for their end: with the worker, the master
        loses them all, and some have another life elsewhere.  That it does end holds, whoever has
        the worker end again.
        """
        self._is_for_good |= for_good
        self._are_lost = not self._is_for_good
        self._spawner.stop()
        self._withdraw_all("closed", asked=True)
        for child in list(self._children.values()):
            self._reaper.end(child, grace_s)

    def give_up(self, why: str) -> None:
        """Kill every actor at once: the master may place them elsewhere, and each exists once."""
        self._withdraw_all(why)
        for child in self._children.values():
            if not child.why:
                child.why = why
                restart_file.discard(self._folder, child.request.actor)
                child.kill()
                log.warning("ended %s: no word from the master", child.request.name)

    def _withdraw_all(self, why: str, asked: bool = False) -> None:
        for spawn in self._spawner.waiting:
            self._spawner.withdraw(spawn.request.actor)
            self._died(_never_started(spawn.request, why, asked))

    # --- what the spawner reports -----------------------------------------------------------------

    def prepared(self, child: Child) -> None:
        self._children[child.request.actor] = child
        self._memory_limit.begin()
        self._loop.watch(child.socket.fileno(), lambda: self._hear(child))
        for fd, is_error in child.pipes.items():
            self._loop.watch(fd, self._reader_of(child, fd, is_error))

    def started(self, child: Child) -> None:
        self._reaper.watch(child)

    def spawn_lost(self, child: Child) -> None:
        self._reaper.clear(child)

    def spawn_failed(self, request: control.Request, why: str) -> None:
        why = f"its machine could not start a process: {why}"
        log.warning("%s: %s", request.name, why)
        if child := self._children.get(request.actor):
            child.why = why
            self._reaper.reap(child)
        else:
            self._died(_never_started(request, why))

    def exited(self, pid: int, status: int) -> None:
        self._reaper.exited(pid, status)

    # --- what an actor says -----------------------------------------------------------------------

    def said(self, request: control.Request, is_error: bool, text: str) -> None:
        self._send(
            control.Printed(
                actor=request.actor,
                name=request.name,
                job=request.job,
                error=is_error,
                text=text,
            )
        )

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        self._send(
            msgspec.structs.replace(logged, actor=request.actor, name=request.name, job=request.job)
        )

    def _reader_of(self, child: Child, fd: int, is_error: bool) -> Callable[[], None]:
        def read() -> None:
            if not child.output.read(fd, is_error):
                self._loop.unwatch(fd)

        return read

    def _hear(self, child: Child) -> None:
        try:
            data, descriptor = child.receive()
        except OSError:
            data, descriptor = b"", None
        if not data:
            self._loop.unwatch(child.socket.fileno())
            return
        match message := self._decoder.decode(data):
            case control.Bound(tcp=tcp):
                child.location = msgspec.structs.replace(child.location, tcp=tcp)
                child.announced = True
                if faults.ON:
                    faults.at("worker.spawned")
                self._send(control.Spawned(location=child.location, since=child.since))
            case control.NotBound(why=why):
                child.why = child.why or why
            case control.Count(calls=calls):
                child.calls = calls
            case control.Logged():
                child.log.take(message)
            case control.Delegate(key=key):
                child.delegate = child.delegate or key
                self._send(control.Delegate(actor=child.request.actor, key=child.delegate))
            case control.MayCall() as question:
                self._access.handle_question(child.request.actor, question)
            case control.FlightRecorder():
                child.keep_recorder(descriptor)
            case control.Meet():
                self._introduce(child)
            case control.Ending(why=why):
                child.asked = True
                child.why = child.why or why
                self._reaper.leave_time(child, Stage.ENDS)
            case control.Exiting(calls=calls):
                child.calls = calls
                self._reaper.leave_time(child, Stage.EXITS)

    # --- what the reaper reports --------------------------------------------------------------

    def _last_words(self, child: Child) -> None:
        """Take what a dead process logged and recorded, and whether it had given its last reply;
        what else it said does not matter now."""
        with contextlib.suppress(OSError):
            for _ in range(MOST_LAST_WORDS):  # what it started may hold the other end, and talk on
                data, descriptor = child.receive()
                if not data:
                    break
                with contextlib.suppress(Exception):  # whatever it has sent, it is to be reaped
                    match message := self._decoder.decode(data):
                        case control.Logged():
                            child.log.take(message)
                        case control.FlightRecorder():
                            child.keep_recorder(descriptor)
                        case control.NotBound(why=why):
                            child.why = child.why or why
                        case control.Exiting():
                            child.stage = Stage.EXITS
        child.log.end()

    def _reaped(self, child: Child, obituary: control.Obituary) -> None:
        # For a master that has been started again since and does not know the actor.
        is_of_use = child.announced and child.request.max_restarts and not obituary.asked
        self._died(obituary, child.as_status() if is_of_use else None)

    def _died(self, obituary: control.Obituary, lived: control.ActorStatus | None = None) -> None:
        if obituary.asked:
            restart_file.discard(self._folder, obituary.actor)
        self._logs.end(obituary.actor)
        self._access.forget(obituary.actor)
        spawn = self._next_lives.pop(obituary.actor, None)
        is_newest = spawn is None or spawn.request.life > obituary.life  # else taken for that
        if is_newest and not self._are_lost:
            self._send(control.Died(obituary=obituary, lived=lived))
        if spawn is not None:
            self.spawn(spawn)
        if not self._children:
            self._emptied()


def _never_started(request: control.Request, why: str, asked: bool = False) -> control.Obituary:
    return control.Obituary(actor=request.actor, life=request.life, why=why, asked=asked)

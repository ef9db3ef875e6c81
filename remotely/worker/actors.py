"""The actors of one worker: a `Child` for each that lives, and every event that changes it.

    from the master         spawn, end, end_all, tell, admit
    from the spawner        prepared, preparing, started, unbound, spawn_lost, spawn_failed, exited
                            (spawner.Parent)
    from an actor process   its port, its number of calls, its log records, its end   (_on_message)
    from the reaper         the drained line, the end

The master may request the next life of an actor while the last process is still being killed: the
next life starts when that process has ended.
"""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport.access_list import AccessRelay
from remotely.transport.loop import Loop
from remotely.values import restart_file
from remotely.worker.memory_limit import MemoryLimit, OwnMemory
from remotely.worker.output import LogFiles, read_piece
from remotely.worker.output_relay import OutputRelay
from remotely.worker.reaper import Child, Reaper, Stage
from remotely.worker.spawner import Spawner, WorkerInfo
from remotely.worker.store_line import StoreLine
from remotely.worker.timeline import WorkerTimeline

log = logging.getLogger("remotely.worker")

STORE = "store"  # asks about keys, as the actors do
WALK_AT_MOST_S = 0.1  # for a report, if the memory of many actors is asked for
MAX_LAST_MESSAGES = 300  # of an actor; more than its socket holds


class WorkerActors:
    """`send` sends a message to the master; `emptied` is called when the last actor has ended."""

    def __init__(
        self,
        loop: Loop,
        info: WorkerInfo,
        send: Callable[[msgspec.Struct], object],
        emptied: Callable[[], object],
        store: StoreLine | None,
    ) -> None:
        self._loop = loop
        self._folder = info.folder
        self._send = send
        self._emptied = emptied
        self._children: dict[str, Child] = {}
        self._next_lives: dict[str, control.Spawn] = {}  # wait for the end of the last life
        self._undecided: set[str] = set()  # have died, and the master may have them restarted here
        self._logs = LogFiles(info.folder / "logs")
        self.output = OutputRelay(send, loop.after)
        self._reaper = Reaper(loop, info.worker, self._children, self._drain, self._reaped)
        self._spawner = Spawner(loop, info, self._logs, self, ThrottledLog(log.warning))
        self._access = AccessRelay(send, self._answer_asker)
        self._store = store
        self._host = info.host
        self._timeline: WorkerTimeline | None = None  # while it is recorded
        self._memory = OwnMemory()
        self._memory_limit = MemoryLimit(loop, self.children, self._memory)
        self._is_for_good = False  # the whole cluster ends
        self._are_lost = False  # the master learns of their end from that of the worker

    def listen(self) -> None:
        """Start to watch for processes that end."""
        self._reaper.listen()

    def close(self) -> None:
        """Kill every process that is left."""
        self._spawner.close()
        self._reaper.kill_all()

    # --- state ------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._children)

    @property
    def is_idle(self) -> bool:
        """Whether there is no actor, and none is about to start, or may be."""
        is_starting = self._spawner.waiting or self._next_lives
        return not (self._children or is_starting or self._undecided)

    @property
    def children(self) -> Iterable[Child]:
        """The actor processes, including those that are starting or ending."""
        return self._children.values()

    def statuses(self) -> list[control.ActorStatus]:
        """Return the actors of which the master was sent `Spawned`."""
        return [child.as_status() for child in self._children.values() if child.announced]

    def births(self) -> list[control.Spawn]:
        """Return the requests for which the master was not sent `Spawned` yet."""
        return [
            *(child.as_spawn() for child in self._children.values() if not child.announced),
            *self._spawner.waiting,
            *self._next_lives.values(),
        ]

    def start_measuring(self) -> bool:
        """Start to measure the usage of actors; return whether that takes CPU_AT_LEAST_S."""
        now = time.monotonic()
        children = self._children.values()
        return bool([c for c in children if c.gauge.start_measuring(c.pid, now)])

    def figures(self) -> list[control.Figures]:
        living = [child for child in self._children.values() if child.announced]
        self._memory.walk_oldest([child.pid for child in living], WALK_AT_MOST_S)
        return [child.figures(self._memory.of(child.pid)) for child in living]

    def record_timeline(self, asked: control.RecordTimeline) -> None:
        """Record the calls of all actors for so long, then send them to the master.

        A timeline that goes on is dropped: its asker has ended, or the master was restarted.
        Without an id, none is recorded in its place.
        """
        if self._timeline is not None:
            self._timeline.drop()
            self._timeline = None
        if not asked.timeline:
            return
        self._timeline = timeline = WorkerTimeline(asked, self._host, self._children.values())
        self._send(control.TimelineClock(timeline=timeline.id, clock=time.monotonic()))
        self._loop.after(asked.seconds, partial(self._end_timeline, timeline))

    def _end_timeline(self, timeline: WorkerTimeline) -> None:
        if self._timeline is not timeline:
            return  # it was dropped
        self._timeline = None
        for each in timeline.results():
            self._send(each)
        self._send(control.TimelineEnd(timeline=timeline.id))

    def read_log(self, asked: control.ReadLog) -> control.LogPiece:
        """Return a piece of the log of an actor, which may have ended."""
        if not asked.actor:
            text = self._logs.last_ended()
            return control.LogPiece(
                ticket=asked.ticket, text=text, offset=0, known=bool(text), ended=True
            )
        actor, file = self._logs.find(asked.actor)
        text, end = read_piece(file, asked.offset) if file else ("", 0)
        return control.LogPiece(
            ticket=asked.ticket,
            text=text,
            offset=end,
            known=file is not None,
            ended=actor not in self._children,
        )

    # --- the keys of callers ----------------------------------------------------------------------

    def list_keys(self, keys: list[bytes]) -> None:
        """Replace the list of client keys, and ask about the others again: this worker has
        registered."""
        self._access.list_keys(keys)

    def update_caller(self, caller: control.Caller) -> None:
        """Pass on to the actors, and to the store, whether a key may call."""
        self._access.handle_reply(caller)

    def ask_for_store(self, message: control.MayCall | control.CallerHeard) -> None:
        """Pass on what the store asks or confirms about a key."""
        self._hear_of_key(STORE, message)

    def forget_store(self) -> None:
        """The store has ended: withdraw its questions."""
        self._access.forget(STORE)

    def _hear_of_key(self, asker: str, message: control.MayCall | control.CallerHeard) -> None:
        if isinstance(message, control.MayCall):
            self._access.handle_question(asker, message)
        else:
            self._access.handle_heard(asker, message.key)

    def _answer_asker(self, asker: str, caller: control.Caller) -> None:
        if asker != STORE:
            self.tell(asker, caller)
        elif self._store is not None:
            self._store.tell(caller)

    def _introduce(self, child: Child) -> None:
        """Send an actor a socket to the store, or none if there is no store."""
        end = self._store.meet() if self._store is not None else None
        child.line.send(control.Meet(), [end.fileno()] if end else [])
        if end is not None:
            end.close()

    def tell(self, actor: str, message: msgspec.Struct) -> None:
        """Send a message to an actor's process."""
        if child := self._children.get(actor):
            child.line.send(message)

    # --- requests of the master -------------------------------------------------------------------

    def preload(self, modules: list[str]) -> None:
        """Have the zygote import these modules, for future actors."""
        self._spawner.preload(modules)

    def spawn(self, spawn: control.Spawn) -> None:
        """Start an actor, unless this life of it runs already."""
        request = spawn.request
        self._undecided.discard(request.actor)
        if (before := self._children.get(request.actor)) is not None:
            # The master has not learned of the end of an earlier life, or has given this life up.
            if before.request.life < request.life or before.asked or before.is_killed:
                self._next_lives[request.actor] = spawn
                before.kill()
            elif before.request.life == request.life and before.announced:
                self._send(control.Spawned(location=before.location, since=before.since))
            elif before.request.life == request.life and before.has_begun:
                self._send(control.Begun(actor=request.actor))
            return
        if faults.ON:
            faults.at("worker.spawn")
        self._spawner.ask(spawn)

    def end(self, end: control.End) -> None:
        """End an actor, whether it lives, is starting, or waits to start."""
        if end.moves:
            if (child := self._children.get(end.actor)) and end.actor not in self._next_lives:
                self._reaper.end_when_idle(child)
            return
        self._undecided.discard(end.actor)
        if spawn := self._next_lives.pop(end.actor, None):
            self._died(_never_started(spawn.request, "closed", asked=True))
        elif child := self._children.get(end.actor):
            self._reaper.end(child, end.grace_s, end.kill, end.by)
        elif request := self._spawner.withdraw(end.actor):
            self._died(_never_started(request, "closed", asked=True))
        else:
            restart_file.discard(self._folder, end.actor)
            if not self._children:
                self._emptied()

    def stay(self, actor: str) -> None:
        """Keep an actor that was to move, and confirm it, unless it ends already."""
        child = self._children.get(actor)
        if child is not None and self._reaper.withdraw_move(child):
            self._send(control.Stay(actor=actor))

    def stay_all(self) -> None:
        """Keep all actors that were to move."""
        for child in self._children.values():
            if child.moves:
                self.stay(child.request.actor)

    def end_all(self, grace_s: float, for_good: bool) -> None:
        """End every actor, and start no more.

        `for_good`: the whole cluster ends; a later call without it does not undo this.  Otherwise
        the worker does not report their ends: the master loses the actors with the worker, and
        restarts some of them elsewhere.
        """
        self._is_for_good |= for_good
        self._are_lost = not self._is_for_good
        self._spawner.stop()
        self._withdraw_all("closed", asked=True)
        for child in list(self._children.values()):
            self._reaper.end(child, grace_s)

    def give_up(self, why: str) -> None:
        """Kill every actor now: the master may place them elsewhere, and none may exist twice."""
        self._withdraw_all(why)
        for child in self._children.values():
            if not child.why:
                child.why = why
                restart_file.discard(self._folder, child.request.actor)
                child.kill()
                log.warning("ended %s: heard nothing from the master", child.request.name)

    def _withdraw_all(self, why: str, asked: bool = False) -> None:
        for spawn in self._spawner.waiting:
            self._spawner.withdraw(spawn.request.actor)
            self._died(_never_started(spawn.request, why, asked))

    # --- reports of the spawner -------------------------------------------------------------------

    def admitted(self, request: control.Request) -> list[bytes]:
        return self._access.begin(request.actor, request.key)

    def prepared(self, child: Child) -> None:
        self._children[child.request.actor] = child
        if self._timeline is not None:
            self._timeline.begin(child)
        self._memory_limit.begin()
        # Its end is seen by the reaper.
        child.line.watch(self._loop, partial(self._on_message, child), lambda: None)
        for fd, is_error in child.pipes.items():
            self._loop.watch(fd, self._reader_of(child, fd, is_error))

    def started(self, child: Child) -> None:
        self._reaper.watch(child)
        self._announce(child)

    def preparing(self, child: Child, what: str) -> None:
        if what:
            child.output.say(what)
        self._send(control.Preparing(actor=child.request.actor))

    def unbound(self, child: Child, told: control.NotBound) -> None:
        child.note_unbound(told)
        self._reaper.reap(child)

    def spawn_lost(self, child: Child) -> None:
        self._reaper.clear(child)

    def spawn_failed(self, request: control.Request, why: str, is_refused: bool = False) -> None:
        why = f"its machine could not start a process: {why}"
        log.warning("%s: %s", request.name, why)
        if child := self._children.get(request.actor):
            child.why, child.is_refused = why, is_refused
            self._reaper.reap(child)
        else:
            self._died(_never_started(request, why, unstarted=not is_refused, refused=is_refused))

    def exited(self, pid: int, status: int) -> None:
        self._reaper.exited(pid, status)

    # --- messages of an actor ---------------------------------------------------------------------

    def printed(self, request: control.Request, is_error: bool, text: str) -> None:
        printed = control.Printed(
            actor=request.actor, name=request.name, job=request.job, error=is_error, text=text
        )
        self.output.add_text(printed, self._kept_in(request))

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        whose = {"actor": request.actor, "name": request.name, "job": request.job}
        self.output.add_record(msgspec.structs.replace(logged, **whose), self._kept_in(request))

    def _kept_in(self, request: control.Request) -> str:
        child = self._children.get(request.actor)
        return child.output.kept_in if child else ""

    def _reader_of(self, child: Child, fd: int, is_error: bool) -> Callable[[], None]:
        def read() -> None:
            if not child.output.read(fd, is_error):
                self._loop.unwatch(fd)

        return read

    def _on_message(self, child: Child, message: object, fds: list[OwnedFd]) -> None:
        match message:
            case control.Bound(tcp=tcp):
                child.location = msgspec.structs.replace(child.location, tcp=tcp)
                child.is_bound = True
                self._announce(child)
            case control.Begun():
                child.has_begun = True
                self._send(control.Begun(actor=child.request.actor))
            case control.NotBound():
                child.note_unbound(message)
            case control.Preparing(what=what):
                self.preparing(child, what)
            case control.Count(calls=calls):
                child.calls = calls
            case control.Logged():
                child.log.take(message)
            case control.Delegate(key=key):
                child.delegate = child.delegate or key
                self._send(control.Delegate(actor=child.request.actor, key=child.delegate))
            case control.MayCall() | control.CallerHeard():
                self._hear_of_key(child.request.actor, message)
            case control.FlightRecorder():
                child.keep_recorder(fds)
            case control.Meet():
                self._introduce(child)
            case control.Ending(why=why):
                child.asked = child.asked or not child.is_moved
                child.why = child.why or why
                self._reaper.extend_deadline(child, Stage.ENDS)
            case control.Exiting(calls=calls):
                child.calls = calls
                self._reaper.extend_deadline(child, Stage.EXITS)

    def _announce(self, child: Child) -> None:
        """Tell the master of a child with a pid and a port; it may be quicker than its zygote."""
        if child.is_bound and child.pid and not child.announced:
            child.announced = True
            if faults.ON:
                faults.at("worker.spawned")
            self._send(control.Spawned(location=child.location, since=child.since))

    # --- reports of the reaper --------------------------------------------------------------------

    def _drain(self, child: Child) -> None:
        """Read the log records and the flight recorder that a dead process has sent, whether it
        had started, and whether it had sent its last reply.  Its other messages no longer matter.
        """
        for message, fds in child.line.rest(MAX_LAST_MESSAGES):  # a process of its may still send
            match message:
                case control.Logged():
                    child.log.take(message)
                case control.FlightRecorder():
                    child.keep_recorder(fds)
                case control.NotBound():
                    child.note_unbound(message)
                case control.Preparing(what=what) if what:
                    child.output.say(what)
                case control.Begun() | control.Bound():
                    child.has_begun = True
                case control.Exiting():
                    child.stage = Stage.EXITS
        child.log.end()

    def _reaped(self, child: Child, obituary: control.Obituary) -> None:
        # A restarted master that does not know the actor needs its status to start its next life.
        self.output.flush(child.request.actor, child.request.job)
        if self._timeline is not None:
            self._timeline.end(child, obituary)
        may_restart = child.announced and child.request.max_restarts and not obituary.asked
        if may_restart and not child.request.owner:
            self._undecided.add(child.request.actor)
        self._died(obituary, child.as_status() if may_restart else None)

    def _died(self, obituary: control.Obituary, lived: control.ActorStatus | None = None) -> None:
        if obituary.asked:
            restart_file.discard(self._folder, obituary.actor)
        self._logs.end(obituary.actor)
        self._access.forget(obituary.actor)
        spawn = self._next_lives.pop(obituary.actor, None)
        # The master would take an obituary of this life for that of the process still to start.
        is_restarting = spawn is not None and spawn.request.life <= obituary.life
        if not is_restarting and not self._are_lost:
            self._send(control.Died(obituary=obituary, lived=lived))
        if spawn is not None:
            self.spawn(spawn)
        if not self._children:
            self._emptied()


def _never_started(
    request: control.Request,
    why: str,
    asked: bool = False,
    unstarted: bool = False,
    refused: bool = False,
) -> control.Obituary:
    return control.Obituary(
        actor=request.actor,
        life=request.life,
        why=why,
        asked=asked,
        unstarted=unstarted,
        refused=refused,
    )

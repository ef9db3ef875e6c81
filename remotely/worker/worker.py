"""The worker: the daemon of one machine, which starts, watches and reaps its actors.

It is the authority on them: a restarted master learns from its workers which actors live.  It never
unpickles anything; classes and arguments go from the client to the actor directly.

    the table of actors      actors.py
    the start of an actor    spawner.py
    the end of an actor      reaper.py
    the lease expires        kill every actor, before the master may place them elsewhere (fence.py)
    the machine is drained   end when no actor is left, or in time (master/draining.py)
    the worker ends          kill every actor, remove the folder

SIGTERM has the machine drained for as long as whoever sent it can wait (`grace_s`); a second one,
or SIGINT, ends the worker at once.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

import msgspec
import zmq

from remotely.errors import RemotelyError
from remotely.machine import (
    daemons,
    file_lock,
    gpus,
    guest_folder,
    pid_file,
    prctl,
    processes,
    this_machine,
)
from remotely.protocol import control
from remotely.protocol.configs import WorkerConfig
from remotely.protocol.lease import DRAIN_S, FENCE_S
from remotely.protocol.resources import Resources, Shares, parse_labels, parse_others
from remotely.transport import fence, sockets
from remotely.transport.fence import LOOK_EVERY_S, WorkerFence
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop, Timer
from remotely.transport.master_link import MasterLink
from remotely.transport.relay import RelayServer
from remotely.values import arena
from remotely.worker.actors import WorkerActors
from remotely.worker.gauge import CPU_AT_LEAST_S
from remotely.worker.machine_use import MINUTE_S, MachineMeter
from remotely.worker.spawner import WorkerInfo
from remotely.worker.store_line import StoreLine

log = logging.getLogger("remotely.worker")

END_GRACE_S = 1.0  # for actors when the worker itself ends
# Before a drained machine has to leave, for actors that may still end their calls.
LAST_CALLS_S = DRAIN_S + END_GRACE_S
LINGER_MS = 500


class Worker:
    """The connection to the master, the lease, and the end of this process."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._key = MemberKey.from_dict(config.key)
        self._folder = Path(config.folder)
        self._meter = MachineMeter(self._folder, config.gpus)
        self._folder_lock = file_lock.hold(self._folder)  # until this process ends
        self._host = this_machine.identity()
        self._machine = this_machine.machine_name()
        self._announced = False
        self._registered_at = 0.0  # when the last Register was sent
        self._leaving = False
        self._drains_until = 0.0  # nonzero while this machine is drained
        self._drain_timers: list[Timer] = []
        self._is_told = False  # by SIGTERM, to leave
        self._must_leave = False  # somebody who was sent SIGTERM will not wait
        self._is_drained_from_afar = False  # else whoever does it is here, and knows
        self._loop = Loop()
        self._store = self._make_store() if config.listening.host and arena.SUPPORTED else None
        info = WorkerInfo(
            worker=config.worker,
            folder=self._folder,
            master=config.master,
            master_public=self._key.master_public,
            listening=config.listening,
            gpus=config.gpus,
            host=self._host,
            machine=self._machine,
            store=self._store.address if self._store else None,
            stays=not config.lifeline,
        )
        self._actors = WorkerActors(self._loop, info, self._send, self._stop_if_done, self._store)
        self._fence = WorkerFence(self._folder, config.master)
        self._context = sockets.new_context()
        self._relay: RelayServer | None = None  # an embedded cluster admits no other machines
        if config.listening.host:
            self._relay = RelayServer(self._loop, config.listening, guest_folder.sweep)
        self._link = MasterLink(
            self._loop,
            self._context,
            config.master,
            self._key,
            self._register,
            self._on_master_message,
            self._refused,
            self._fence.renew if sockets.is_remote(config.master) else None,
        )
        self._check_lease()
        self._loop.every(MINUTE_S, self._meter.keep_minute)
        if config.lifeline or config.attached:
            self._loop.watch(0, self._read_lifeline)

    def run(self) -> None:
        """Serve until told to leave, then kill all actors and remove the folder."""
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call(self._terminate))
        if not self._config.lifeline:
            signal.signal(signal.SIGINT, lambda *_: self._loop.call(self._leave))
        self._actors.listen()
        self._loop.run()
        self._actors.close()
        if self._store is not None:
            self._store.close()
        if self._relay is not None:
            self._relay.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._config.pid_file:
            pid_file.leave(Path(self._config.pid_file))
        self._link.send(control.Left())
        # The master of an embedded cluster ends at the same time and does not read it.
        self._context.destroy(linger=0 if self._config.lifeline else LINGER_MS)

    def _make_store(self) -> StoreLine:
        return StoreLine(
            self._loop,
            self._config.listening,
            self._machine,
            lambda message: self._actors.ask_for_store(message),
            lambda: self._actors.forget_store(),
        )

    # --- the master -------------------------------------------------------------------------------

    def _send(self, message: msgspec.Struct) -> None:
        self._link.send(message)

    def _register(self) -> control.Register:
        self._registered_at = fence.now()
        self._loop.call(self._actors.output.begin_again)
        relay = self._relay
        memory = self._config.memory or this_machine.memory_for_actors()
        return control.Register(
            worker=self._config.worker,
            python=this_machine.PYTHON,
            host=self._host,
            machine=self._machine,
            address=self._config.listening.address or "this machine",
            pid=os.getpid(),
            resources=Resources(
                self._config.cpus,
                len(self._config.gpus),
                memory,
                parse_others(self._config.resources),
                parse_labels(self._config.labels),
            ),
            gpu_names=self._config.gpus,
            shares=_shares(self._config.gpus, memory),
            actors=self._actors.statuses(),
            births=self._actors.births(),
            nonce=self._config.nonce,
            predecessors=self._config.predecessors,
            relay=relay.address if relay else "",
            relay_token=relay.token if relay else b"",
            drains_s=self._drains_s(),
            must_leave=self._must_leave,
        )

    def _on_master_message(self, message: object) -> None:
        match message:
            case control.Registered(client_keys=keys):
                self._actors.list_keys(keys)
                self._fence.renew(self._registered_at)
                self._announce("REGISTERED")
            case control.Spawn():
                if not self._leaving:
                    self._actors.spawn(message)
            case (
                control.Delegated(actor=actor)
                | control.Cancel(actor=actor)
                | control.Attend(actor=actor)
            ):
                self._actors.tell(actor, message)
            case control.Caller():
                self._actors.update_caller(message)
            case control.End():
                self._actors.end(message)
            case control.Preload(modules=modules):
                self._actors.preload(modules)
            case control.OutputHeard():
                self._actors.output.handle_reply(message)
            case control.AskFigures():
                self._begin_report()
            case control.RecordTimeline():
                self._actors.record_timeline(message)
            case control.ReadLog():
                self._link.send(self._actors.read_log(message))
            case control.Drain(within_s=within_s, undo=undo):
                self._is_drained_from_afar = True
                if not undo:
                    self._drain(within_s)
                elif not self._must_leave:
                    self._drain(None)
                    self._actors.stay_all()
                    self._send(control.Leaving(within_s=0.0))
            case control.Stay(actor=actor):
                self._actors.stay(actor)
            case control.Leave():
                self._leave(for_good=True)

    def _check_lease(self) -> None:
        if self._fence.look():
            self._actors.give_up(f"its worker heard nothing from the master for {FENCE_S:.0f} s")
        limit_s = self._config.end_without_master_s
        if limit_s and self._link.silent_s() > limit_s and not self._leaving:
            log.warning("heard nothing from the master for %.0f s: this machine leaves", limit_s)
            self._leave()
        self._loop.after(LOOK_EVERY_S if limit_s else self._fence.until_look_s(), self._check_lease)

    def _refused(self, error: RemotelyError) -> None:
        if self._config.lifeline:  # its master has the same keys: it is slow, or about to end
            return
        if self._announced:
            log.error("the master refused this worker: %s", error)
        self._announce(f"{type(error).__name__} {error}")
        self._leave()

    def _announce(self, line: str) -> None:
        """Write on stdout, once, whether the master accepted this worker."""
        if not self._announced:
            self._announced = True
            with contextlib.suppress(OSError):  # the launcher need not read it
                os.write(1, f"{line}\n".encode())

    def _begin_report(self) -> None:
        """Report what the actors run and use; CPU usage needs an interval to be measured."""
        if self._actors.start_measuring() | self._meter.start_measuring():
            self._loop.after(CPU_AT_LEAST_S, self._report)
        else:
            self._report()

    def _report(self) -> None:
        self._link.send(control.Report(actors=self._actors.figures(), use=self._meter.use()))

    # --- the end ----------------------------------------------------------------------------------

    def _terminate(self) -> None:
        """Handle SIGTERM: have this machine drained, or leave at the second one."""
        if self._is_told or not self._config.grace_s:
            self._leave()
        else:
            self._is_told = True
            self._begin_grace()

    def _begin_grace(self) -> None:
        """Have this machine drained for as long as whoever ends it can wait."""
        grace_s = self._config.grace_s
        self._must_leave = True
        if not self._drains_until or grace_s < self._drains_s():
            self._drain(grace_s)
        if not self._leaving:
            self._link.send(control.Leaving(within_s=self._drains_s()))

    def _drain(self, within_s: float | None) -> None:
        """Leave within this time, or before that when no actor is left; None: stay after all.

        The actors that are left are asked to end LAST_CALLS_S before that: calls that run may go
        on, and no others begin.  If the time is short, that is when half of it has passed.
        """
        for timer in self._drain_timers:
            timer.cancel()
        if within_s is None:
            self._drains_until = 0.0
            return
        self._drains_until = fence.now() + within_s
        self._drain_timers = [
            self._loop.after(max(within_s - LAST_CALLS_S, within_s / 2), self._end_drain),
            self._loop.after(within_s, self._loop.stop),  # which kills what is left
        ]
        self._stop_if_done()

    def _end_drain(self) -> None:
        log.warning("this machine was drained, and its time is almost up: what is left on it ends")
        self._leave()

    def _drains_s(self) -> float:
        """Return the time until this machine leaves; zero if it is not being drained."""
        return max(0.001, self._drains_until - fence.now()) if self._drains_until else 0.0

    def _read_lifeline(self) -> None:
        if os.read(0, 4096):  # the process that holds the other end was sent SIGTERM
            self._begin_grace()
        else:
            self._loop.unwatch(0)
            if self._config.lifeline:
                self._loop.stop()
            else:
                self._leave()

    def _leave(self, for_good: bool = False) -> None:
        """End the actors, then this process; `for_good`: the whole cluster ends."""
        self._leaving = True
        self._actors.end_all(END_GRACE_S, for_good)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        """If this worker is leaving, or is drained, and no actor is left, end."""
        if self._leaving and not self._actors:
            self._loop.stop()
        elif self._drains_until and self._actors.is_idle:
            if self._is_drained_from_afar:
                log.warning("this machine was drained, and leaves the cluster")
            self._leave()


def _shares(gpu_names: list[str], memory: int) -> Shares:
    """Return what this worker, which offers so much memory, offers together with others of its
    machine.

    A container with a limit of its own has memory of its own; two without one have that of the
    machine together.
    """
    size, pool = this_machine.memory_pool()
    for_all = max(memory, this_machine.memory_for_actors(size))
    boot = this_machine.boot()
    return Shares(pool, for_all, tuple(f"{boot}:{gpu}" for gpu in gpus.identities(gpu_names)))


def main() -> None:
    """Run a worker with the configuration in the first line of standard input."""
    line = sys.stdin.buffer.readline()
    if not line:  # the launcher was interrupted
        return
    config = msgspec.json.decode(line, type=WorkerConfig)
    daemons.log_to(config.log, "worker", not config.lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl.adopt_orphans()
    daemons.raise_descriptor_limit()
    if _is_needed(config):
        try:
            Worker(config).run()
        except (OSError, zmq.ZMQError):
            if _is_needed(config):
                raise
            processes.kill_descendants()  # the zygote may have started
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.wait()


def _is_needed(config: WorkerConfig) -> bool:
    """Return false if the script was interrupted at startup: it has removed the folder."""
    return not config.lifeline or Path(config.folder).exists()

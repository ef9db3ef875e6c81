"""The core of the master: events in, instructions out.

No clock, no socket, no process: the shell (master.py) calls a method of `Core` for each event, with
`now`, and carries out the instructions that it returns (`Instruction` in state.py).  So a test can
simulate 10,000 workers in a loop.  state.py has the state, actors.py the life cycle of an actor,
reregistration.py the registration of a worker that has actors.  Peers are identified by the id of
their session or worker.

The cost of an event depends on what it touches, not on the size of the cluster (figures are in
docs/lab/benchmarks.md).  Three events visit every worker: a module that no client used before, a
request for the log of an actor that has ended, and a status.
"""

from collections.abc import Collection, Iterable

import msgspec

from remotely.master import actors, draining, guests, lending, reregistration, sickness
from remotely.master.admission import Admission
from remotely.master.ledger import WhyClosed
from remotely.master.state import ClientSession, Forget, Instruction, Log, RouteProbe, State
from remotely.master.wait_graph import Wait, why_deadlocked
from remotely.protocol import control
from remotely.protocol.lease import LEASE_S, OWNER_GRACE_S, Leases


class Core:
    """The master without I/O.  Each method handles one event and returns the instructions."""

    def __init__(
        self,
        admission: Admission,
        lease_s: float = LEASE_S,
        recovers_until: float = 0.0,
        is_embedded: bool = False,
        counts_cpus: bool = True,
        host: str = "",
    ) -> None:
        leases = Leases(lease_s)
        self.state = State(admission, leases, recovers_until, is_embedded, counts_cpus, host)

    def _finish(self) -> list[Instruction]:
        """Settle what this event has changed; return its instructions.  Each event ends so, but the
        registration of a worker, which `reconcile_worker` completes."""
        actors.settle_loans(self.state)
        return self.state.take_instructions()

    # --- time, keys, shutdown ---------------------------------------------------------------------

    def renew(self, peer: str, now: float) -> None:
        """Renew the lease of a peer."""
        self.state.now = now
        self.state.leases.renew(peer, now)

    def extend_leases(self, seconds: float) -> None:
        """Extend all leases: the master did not run for `seconds`, so no peer could renew."""
        self.state.leases.extend(seconds)
        for worker in self.state.workers.records.values():
            worker.start_heard_at += seconds

    def expire(self, now: float) -> list[Instruction]:
        """Remove the peers whose lease has expired, and refuse overdue requests."""
        state = self.state
        state.now = now
        expired = state.leases.expired(now)
        for peer in expired:
            if machine := state.workers.records.get(peer):
                name = machine.register.machine
                state.instructions.append(Log(f"lost the worker on {name}"))
                why = f"{name} was last heard from {state.leases.lease_s:.0f} s ago"
                self._remove_worker(peer, why, may_return=True)
            elif session := state.sessions.get(peer):
                state.instructions.append(Log(f"lost the client with {session.hello}"))
                actors.end_session(state, peer)
            else:  # it owned actors before this master started, and did not reconnect
                actors.close_owned(state, peer)
        if expired:
            actors.retry_waiting(state)
        for actor in state.wait_graph.not_heard_since(now - lending.STALE_S):
            self._end_wait(actor)
        actors.review_starts(state)
        actors.review_drains(state)
        actors.ask_to_replace(state)
        actors.review_waiting(state)
        actors.send_due_statuses(state)
        state.timelines.expire(now)
        self._give_up_on_absent_workers()
        return self._finish()

    def _give_up_on_absent_workers(self) -> None:
        """Answer the requests that waited for workers which did not come back in time."""
        state = self.state
        has_forgotten = state.workers.forget_overdue(state.now)
        has_recovered = state.recovers_until and not state.is_recovering
        if has_recovered:
            state.recovers_until = 0.0
            actors.retry_requests(state, state.deferred.release_unknown())
            actors.send_arrivals(state, state.arrivals.open())
            state.delegates.refuse_unknown()
        if has_forgotten or has_recovered:
            actors.retry_waiting(state)

    def set_keys(
        self,
        client_keys: Collection[bytes],
        worker_keys: Collection[bytes],
        viewer_keys: Collection[bytes] = (),
    ) -> list[Instruction]:
        """Replace the lists of keys, and have the workers inform their actors.

        Actors that were placed with a key that is no longer listed are closed, detached or not.
        """
        listed = {*client_keys, *worker_keys, *viewer_keys}
        if revoked := sorted(self.state.admission.keys - listed):
            named = ", ".join(key.decode(errors="replace") for key in revoked)
            self.state.note("revoked", "", f"no longer admitted: {named}")

        state = self.state
        before = state.admission.client_keys
        state.admission.set_keys(client_keys, worker_keys, viewer_keys)
        for key in before:
            if not state.admission.is_listed(key):
                state.delegates.end(key, state.workers.records)
        for actor, record in list(state.actors.records.items()):
            if not state.admission.may_live(record.request):
                state.delegates.revoke(actor)
                actors.close(state, control.End(actor=actor, grace_s=OWNER_GRACE_S))
        return self._finish()

    def _key_state(self, asked: control.AskKey) -> control.KeyState:
        state = self.state
        machines = {state.workers.records[w].register.machine for w in state.delegates.unheard()}
        if state.is_recovering:
            machines.add("what an earlier master has left and has not come back yet")
        role = state.admission.role_of(asked.key) or ""
        return control.KeyState(ticket=asked.ticket, role=role, unheard=sorted(machines))

    def _send_keys(self, peer: str) -> None:
        admission, record = self.state.admission, self.state.actors.records.get(peer)
        seal = admission.seals.seal(peer, record.request, record.gpu_ids) if record else b""
        registered = control.Registered(client_keys=admission.client_keys, seal=seal)
        self.state.send(peer, registered)
        self.state.delegates.begin(peer)

    def close(self) -> list[Instruction]:
        """Stop the cluster: place nothing more, and tell every worker to leave."""
        self.state.is_closing = True
        for name in self.state.workers.records:
            self.state.send(name, control.Leave())
        return self._finish()

    # --- clients ----------------------------------------------------------------------------------

    def greet(self, hello: control.Hello, key: bytes, now: float) -> list[Instruction]:
        """Add a vetted client, or welcome it back."""
        state, peer = self.state, hello.session
        self.renew(peer, now)
        if peer not in state.sessions:
            home = state.actors.records.get(hello.actor)
            root, job = (home.request.key, home.request.job) if home else (key, peer)
            is_viewer = state.admission.role_of(key) == "viewer"
            state.sessions.add(ClientSession(hello, root, job, is_viewer))
        state.arrivals.claim(peer, hello.arrivals)
        if unused := state.sessions.use(peer, hello.modules):
            for name in state.workers.of_python(hello.python):
                state.send(name, control.Preload(modules=unused))
        state.send(peer, control.Welcome(pythons=state.workers.ledger.pythons, host=state.host))
        for pending in state.restarts.pending_of(peer):  # it may have missed the obituary
            state.send(peer, control.Died(obituary=pending.obituary))
        draining.tell_moves(state, peer)
        return self._finish()

    def handle_client(self, peer: str, message: object, now: float) -> list[Instruction]:
        """Handle a message of a client."""
        state = self.state
        self.renew(peer, now)
        match message:
            case control.Place() if not state.sessions[peer].leaving:
                actors.request_actor(state, peer, message)
            case control.End():
                actors.handle_end(state, peer, message)
            case control.Hold(actor=actor, giver=giver):
                actors.hold(state, peer, actor, giver)
            case control.LetGo(actor=actor):
                actors.let_go(state, peer, actor)
            case control.Cancel(actor=actor) | control.Attend(actor=actor):
                if record := state.actors.records.get(actor):
                    state.send(record.worker, message)
            case control.Locate(actor=actor, unreached=True) if actor in state.actors.records:
                # Test the route to its worker now, not at the next tick.
                worker = state.actors.records[actor].worker
                state.instructions.append(RouteProbe(worker, peer, message))
            case control.Locate():
                actors.locate(state, peer, message)
            case control.AskArrival():
                actors.send_arrivals(state, state.arrivals.request(peer, message))
            case control.NoArrival(ticket=ticket):
                actors.send_arrivals(state, state.arrivals.withdraw(peer, ticket))
            case control.AskStatus(ticket=ticket, fresh=False):
                actors.send_status(state, peer, ticket)
            case control.AskStatus(ticket=ticket):
                callers = (s.hello.session for s in state.sessions if not s.is_viewer)
                peers = [*state.workers.records, *callers]
                state.status_queries.query(peer, ticket, peers, now)
            case control.AskTimeline(ticket=ticket, seconds=seconds):
                hosts = {
                    name: worker.register.host
                    for name, worker in state.workers.records.items()
                    if worker.register.python  # else it is a guest
                }
                for each in state.sessions:
                    if not each.is_viewer:
                        hosts[each.hello.session] = each.hello.host
                state.timelines.begin(peer, ticket, seconds, hosts, now)
            case control.TimelineClock() | control.ProcessTimeline() | control.TimelineEnd():
                self._handle_timeline(peer, message, now)
            case control.AskEvents(ticket=ticket, after=after):
                events = state.history.after(after, now)
                last = state.history.last
                state.send(peer, control.Events(ticket=ticket, events=events, last=last))
            case control.Unanswered(calls=calls, metrics=metrics):
                session = state.sessions[peer]
                session.unanswered, session.metrics = calls, metrics
                actors.handle_figures(state, peer)
            case control.ReadLog():
                self._read_log(peer, message)
            case control.Drain():
                actors.handle_drain(state, peer, message)
            case control.AskKey():
                state.send(peer, self._key_state(message))
            case control.Blocked():
                self._handle_blocked(peer, message)
            case control.Unblocked():
                self._end_wait(state.sessions[peer].hello.actor, session=peer)
            case control.Goodbye():
                state.sessions[peer].leaving = True
                state.waiting.remove_session(peer)
                for actor in state.actors.held_by.of(peer):
                    state.actors.let_go(peer, actor)
                actors.close_owned(state, peer)
                actors.finish_goodbye(state, peer)
        return self._finish()

    def locate(self, peer: str, request: control.Locate) -> list[Instruction]:
        """Answer a request whose `RouteProbe` was carried out."""
        actors.retry_requests(self.state, [(peer, request)])
        return self._finish()

    def end_session(self, peer: str, now: float) -> list[Instruction]:
        """Remove a client that has ended, and close the actors that it owns."""
        self.state.now = now
        actors.end_session(self.state, peer)
        return self._finish()

    def _handle_timeline(
        self,
        peer: str,
        message: control.TimelineClock | control.ProcessTimeline | control.TimelineEnd,
        now: float,
    ) -> None:
        timelines = self.state.timelines
        match message:
            case control.TimelineClock():
                timelines.hear_clock(peer, message, now)
            case control.ProcessTimeline():
                timelines.pass_on(peer, message)
            case control.TimelineEnd(timeline=timeline):
                timelines.end(peer, timeline)

    def _handle_blocked(self, peer: str, blocked: control.Blocked) -> None:
        """Record that an actor waits for another; notify their scripts once if they deadlock."""
        state = self.state
        actor = state.sessions[peer].hello.actor
        if (record := state.actors.records.get(actor)) is None:
            return
        within = f" in {blocked.method}" if blocked.method else ""
        sentence = f"{record.request.name} waits{within} for {blocked.call}"
        wait = Wait(
            blocked.wait,
            blocked.actor,
            sentence,
            peer,
            begun=state.now,
            heard=state.now,
            has_timeout=blocked.has_timeout,
        )
        self._end_wait(actor, unless=wait.number)
        if cycle := state.wait_graph.record(actor, wait):
            self._notify(cycle, why_deadlocked(cycle))

    def _end_wait(self, actor: str, unless: int = 0, session: str = "") -> None:
        """End an actor's wait, `unless` it has this number, or another session has reported it;
        report the end of a deadlock."""
        if session and not self.state.wait_graph.is_of(session, actor):
            return
        if wait := self.state.wait_graph.end(actor, unless):
            self._notify([wait], f"the deadlock is resolved: this wait has ended: {wait.sentence}")

    def _notify(self, waits: Iterable[Wait], text: str) -> None:
        """Send a notice to the scripts of the waiting actors, or to an actor if its script has
        gone."""
        state = self.state
        if not state.is_embedded:  # else the master logs to the script's terminal
            state.instructions.append(Log(text))
        for job, peer in {state.sessions[w.session].job: w.session for w in waits}.items():
            state.send(job if job in state.sessions else peer, control.Notice(text=text))

    def _read_log(self, peer: str, request: control.ReadLog) -> None:
        state = self.state
        actor = state.actors.names.get(request.actor, request.actor)
        record = state.actors.records.get(actor)
        workers = {record.worker} if record else set(state.workers.records)
        state.log_queries.query(peer, msgspec.structs.replace(request, actor=actor), workers)

    # --- workers ----------------------------------------------------------------------------------

    @property
    def workers(self) -> list[str]:
        return list(self.state.workers.records)

    def register_worker(
        self,
        register: control.Register,
        now: float,
        is_near: bool = False,
        predecessors: Collection[str] = (),
    ) -> list[Instruction]:
        """Add a worker, or welcome it back.  `reconcile_worker` must follow.

        `is_near`: it is on the master's machine.  `predecessors` were killed on its machine with
        their actors; they are removed now, before their leases expire.
        """
        state, name = self.state, register.worker
        is_new = name not in state.workers
        self.renew(name, now)
        if is_new:
            why = f"its worker on {register.machine} was killed"
            for before in predecessors:  # `may_return`: requests for that machine wait for this one
                self._remove_worker(before, why, may_return=True)
            state.workers.add(register, is_near, predecessors)
            if not guests.is_guest(register):
                text = f"{register.machine} has joined with {register.resources}"
                state.note("joined", register.machine, text)
        if register.drains_s and (register.must_leave or name not in state.workers.undone):
            draining.begin(state, name, register.drains_s, register.must_leave)
        reregistration.adopt_all(state, register, is_new)
        self._send_keys(name)
        # Nothing is placed yet: the worker would be told twice to start it, by `reconcile` too.
        return state.take_instructions()

    def reconcile_worker(self, register: control.Register) -> list[Instruction]:
        """Reconcile what was lost while a worker's connection was broken."""
        state, name = self.state, register.worker
        reregistration.reconcile(state, register)
        if modules := state.sessions.modules_of(register.python):
            state.send(name, control.Preload(modules=modules))
        state.log_queries.resend(name)
        if state.workers.ledger.is_away(name):
            state.workers.ledger.reopen(name, WhyClosed.AWAY)
            for record in state.actors.on_worker(name):
                actors.retry_requests(state, state.deferred.release(record.request.actor))
        actors.retry_waiting(state)
        if (within_s := draining.left_s(state, name)) and not register.drains_s:
            state.send(name, control.Drain(within_s=within_s))
        if name in state.workers.undone:
            if register.drains_s:
                state.send(name, control.Drain(within_s=0.0, undo=True))
            else:
                draining.confirm_undone(state, name)
        if state.is_closing:
            state.send(name, control.Leave())
        return self._finish()

    def refusal_of(self, register: control.Register, now: float) -> control.Refused | None:
        """Return the refusal of a guest that cannot be admitted; None if it can be."""
        self.state.now = now
        return guests.refusal_of(register, self.state)

    def handle_worker(self, peer: str, message: object, now: float) -> list[Instruction]:
        """Handle a message of a worker."""
        state = self.state
        self.renew(peer, now)
        match message:
            case control.Beat(asked=asked) if asked:
                state.send(peer, control.Tick(asked=asked))
            case control.MayCall(key=key, again=again):
                state.delegates.query(peer, key, state.is_recovering, again)
            case control.CallerHeard(key=key):
                state.delegates.handle_heard(peer, key)
            case control.Spawned(location=location, since=since):
                actors.handle_spawned(state, peer, location, since)
            case control.Preparing(actor=actor) if state.actors.is_on(actor, peer):
                sickness.note_outcome(state, peer)  # so it is not taken for stuck
            case control.Begun(actor=actor) if state.actors.is_on(actor, peer):
                actors.handle_begun(state, state.actors.records[actor])
            case control.Died(obituary=obituary, lived=lived):
                reregistration.handle_death(state, peer, obituary, lived)
            case control.Report(actors=figures, use=use):
                record = state.workers.records[peer]
                record.reports, record.use = {each.actor: each for each in figures}, use
                actors.handle_figures(state, peer)
            case control.TimelineClock() | control.ProcessTimeline() | control.TimelineEnd():
                self._handle_timeline(peer, message, now)
            case control.OutputBatch(items=items):
                self._pass_on_output(peer, items)
            case control.LogPiece():
                state.log_queries.handle_reply(peer, message)
            case control.Delegate(actor=actor, key=key) if state.actors.is_on(actor, peer):
                reregistration.delegate(state, actor, key)
            case control.Leaving(within_s=within_s) if within_s:
                actors.begin_drain(state, peer, within_s)
            case control.Leaving():
                draining.confirm_undone(state, peer)
            case control.Stay(actor=actor) if state.actors.is_on(actor, peer):
                actors.handle_stay(state, state.actors.records[actor])
            case control.Left():
                is_drained = peer in state.workers.draining
                self._remove_worker(
                    peer, draining.WHY_LOST if is_drained else "its worker was stopped"
                )
                actors.retry_waiting(state)
        return self._finish()

    def _pass_on_output(self, peer: str, items: Iterable[control.Printed | control.Logged]) -> None:
        """Send each script the output of its actors on this worker, as one message."""
        state = self.state
        by_job: dict[str, list[control.Printed | control.Logged]] = {}
        for item in items:
            record = state.actors.records.get(item.actor)
            if record is not None and record.worker == peer:
                named = msgspec.structs.replace(item, name=record.request.name)
                by_job.setdefault(record.request.job, []).append(named)
        for job, shown in by_job.items():
            if job in state.sessions:
                state.send(job, control.OutputBatch(items=shown))
        unshown = [job for job in by_job if job not in state.sessions]
        state.send(peer, control.OutputHeard(unshown=unshown))

    def lose_route(self, peer: str, now: float) -> list[Instruction]:
        """Handle an unreachable peer: place nothing on a worker until it is back.

        Nothing is ever placed on a guest.  It is removed once its last messages are read
        (master.py).
        """
        state = self.state
        state.now = now
        if not self._is_guest(peer) and state.workers.suspend(peer):
            actors.handle_unreachable(state, peer)
        actors.handle_figures(state, peer)
        return self._finish()

    def _is_guest(self, name: str) -> bool:
        record = self.state.workers.records.get(name)
        return record is not None and guests.is_guest(record.register)

    def remove_worker(
        self, name: str, why: str, now: float, may_return: bool = False
    ) -> list[Instruction]:
        """Remove a worker and its actors.  `may_return`: it is lost, not stopped."""
        self.state.now = now
        self._remove_worker(name, why, may_return)
        actors.retry_waiting(self.state)  # some may fit on no machine any more
        return self._finish()

    def _note_end(self, name: str, why: str, may_return: bool) -> None:
        """Record that a machine, not a guest, is about to be removed."""
        state = self.state
        if self._is_guest(name) or state.is_embedded:
            return
        machine = state.workers.records[name].register.machine
        if why == draining.WHY_LOST:
            state.note("drained", machine, f"{machine} was drained, and has left")
        else:
            state.note("lost" if may_return else "left", machine, f"{machine}: {why}")

    def _remove_worker(self, name: str, why: str, may_return: bool = False) -> None:
        state = self.state
        if name not in state.workers:
            return
        is_drained = name in state.workers.draining
        self._note_end(name, why, may_return)
        state.leases.end(name)
        state.instructions.append(Forget(name))
        state.workers.remove(name, state.now, may_return and not self._is_guest(name))
        actors.handle_unreachable(state, name)
        for record in state.actors.on_worker(name):
            actors.end_life(state, record.lost(why, moved=is_drained))
        state.log_queries.remove_worker(name)
        state.timelines.remove_peer(name)
        state.delegates.remove_worker(name)
        actors.handle_figures(state, name)

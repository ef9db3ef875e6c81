"""The core of the master: events in, instructions out.

No clock, no socket, no process: the shell (master.py) calls a method of `Core` for each event, with
`now`, and does what is returned (`Instruction` in state.py).  So a loop can play 10,000 workers.
What is known is in state.py, what becomes of an actor in actors.py, what a worker brings along in
reregistration.py.  Peers are known by their ids: of a session, of a worker.

An event costs what it touches, and not what there is (docs/benchmarks.md has the figures).  Three
things are still done one by one: all workers are told of a module that no client used before, and
asked for the log of an actor that has ended, and a status looks at everything.
"""

from collections.abc import Collection, Iterable

import msgspec

from remotely.master import actors, guests, reregistration
from remotely.master.admission import Admission
from remotely.master.state import Instruction, LetGo, Log, Probe, Session, State
from remotely.master.wait_graph import Wait, why_deadlocked
from remotely.protocol import control
from remotely.protocol.lease import LEASE_S, OWNER_GRACE_S, Leases


class Core:
    """The cluster, as its master knows it.  Each event returns what is to be done about it."""

    def __init__(
        self,
        admission: Admission,
        lease_s: float = LEASE_S,
        learns_until: float = 0.0,
        is_embedded: bool = False,
        counts_cpus: bool = True,
    ) -> None:
        self.state = State(admission, Leases(lease_s), learns_until, is_embedded, counts_cpus)

    # --- time, keys, the end ----------------------------------------------------------------------

    def renew(self, who: str, now: float) -> None:
        """A peer has given proof of its life."""
        self.state.now = now
        self.state.leases.renew(who, now)

    def extend_leases(self, seconds: float) -> None:
        """The master was away for so long: nobody could renew."""
        self.state.leases.extend(seconds)

    def expire(self, now: float) -> list[Instruction]:
        """End those whose lease is over, and requests that have waited long enough."""
        state = self.state
        state.now = now
        expired = state.leases.expired(now)
        for who in expired:
            if machine := state.workers.records.get(who):
                name = machine.register.machine
                state.instructions.append(Log(f"lost the worker on {name}"))
                why = f"{name} was last heard {state.leases.lease_s:.0f} s ago"
                self._remove_worker(who, why, may_return=True)
            elif session := state.sessions.get(who):
                state.instructions.append(Log(f"lost the client on {session.hello.machine}"))
                actors.end_session(state, who)
            else:  # it owned actors before this master started, and is not back
                actors.end_owned(state, who)
        if expired:
            actors.retry(state)
        actors.look_after_waiting(state)
        actors.answer_status(state)
        self._expect_no_longer()
        return state.take_instructions()

    def _expect_no_longer(self) -> None:
        """Answer those who have waited in vain for workers that were to come back."""
        state = self.state
        given_up = state.workers.give_up(state.now)
        has_learnt = state.learns_until and not state.is_learning
        if has_learnt:
            state.learns_until = 0.0
            actors.answer(state, state.questions.release_unknown())
            actors.tell_gifts(state, state.arrivals.open())
            state.delegates.give_up()
        if given_up or has_learnt:
            actors.retry(state)

    def list_keys(
        self,
        client_keys: Iterable[bytes],
        worker_keys: Iterable[bytes],
        viewer_keys: Iterable[bytes] = (),
    ) -> list[Instruction]:
        """From now on these keys are listed: the workers tell their actors.

        What was placed by a key that is not among them has to end, detached or not.
        """
        state = self.state
        state.admission.relist(client_keys, worker_keys, viewer_keys)
        for name in state.workers.records:
            self._tell_keys(name)
        for actor, record in list(state.actors.records.items()):
            if not state.admission.may_live(record.request):
                state.delegates.take_back(actor)
                actors.close(state, control.End(actor=actor, grace_s=OWNER_GRACE_S))
        return state.take_instructions()

    def _tell_keys(self, who: str) -> None:
        client_keys = self.state.admission.client_keys
        self.state.tell(who, control.Registered(client_keys=client_keys))

    def close(self) -> list[Instruction]:
        """The cluster is being stopped: nothing is placed any more, and every worker leaves."""
        self.state.is_closing = True
        for name in self.state.workers.records:
            self.state.tell(name, control.Leave())
        return self.state.take_instructions()

    # --- clients ----------------------------------------------------------------------------------

    def greet(self, hello: control.Hello, key: bytes, now: float) -> list[Instruction]:
        """Take in a client that was vetted, new or back."""
        state, who = self.state, hello.session
        self.renew(who, now)
        if who not in state.sessions:
            home = state.actors.records.get(hello.actor)
            root, job = (home.request.key, home.request.job) if home else (key, who)
            is_viewer = state.admission.role_of(key) == "viewer"
            state.sessions.begin(Session(hello, root, job, is_viewer))
        state.arrivals.claim(who, hello.arrivals)
        if unused := state.sessions.use(who, hello.modules):
            for name in state.workers.of_python(hello.python):
                state.tell(name, control.Preload(modules=unused))
        state.tell(who, control.Welcome(pythons=state.workers.ledger.pythons))
        for due in state.restarts.due_by(who):  # it may not have heard
            state.tell(who, control.Died(obituary=due.obituary))
        return state.take_instructions()

    def hear_client(self, who: str, message: object, now: float) -> list[Instruction]:
        """A client says something."""
        state = self.state
        self.renew(who, now)
        match message:
            case control.Place() if not state.sessions[who].leaving:
                actors.ask(state, who, message)
            case control.End():
                actors.hear_end(state, who, message)
            case control.Cancel(actor=actor):
                if record := state.actors.records.get(actor):
                    state.tell(record.worker, message)
            case control.Locate(actor=actor, unreached=True) if actor in state.actors.records:
                # Learn now whether its worker can be reached, and not at the next tick.
                worker = state.actors.records[actor].worker
                state.instructions.append(Probe(worker, who, message))
            case control.Locate():
                actors.locate(state, who, message)
            case control.AskArrival():
                actors.tell_gifts(state, state.arrivals.ask(who, message))
            case control.NoArrival(ticket=ticket):
                actors.tell_gifts(state, state.arrivals.withdraw(who, ticket))
            case control.AskStatus(ticket=ticket, fresh=False):
                actors.tell_status(state, who, ticket)
            case control.AskStatus(ticket=ticket):
                callers = (s.hello.session for s in state.sessions if not s.is_viewer)
                peers = [*state.workers.records, *callers]
                state.status_queries.ask(who, ticket, peers, now)
            case control.Unanswered(calls=calls):
                state.sessions[who].unanswered = calls
                actors.hear_figures(state, who)
            case control.ReadLog():
                self._read_log(who, message)
            case control.Blocked():
                self._hear_blocked(who, message)
            case control.Unblocked():
                self._end_wait(state.sessions[who].hello.actor)
            case control.Goodbye():
                state.sessions[who].leaving = True
                state.waiting.remove_session(who)
                actors.end_owned(state, who)
                actors.say_farewell(state, who)
        return state.take_instructions()

    def locate(self, who: str, question: control.Locate) -> list[Instruction]:
        """The route to a worker was tried, as `Probe` said: answer the question."""
        actors.answer(self.state, [(who, question)])
        return self.state.take_instructions()

    def end_session(self, who: str, now: float) -> list[Instruction]:
        """A client has ended, and with it the actors that it owns."""
        self.state.now = now
        actors.end_session(self.state, who)
        return self.state.take_instructions()

    def _hear_blocked(self, who: str, blocked: control.Blocked) -> None:
        """An actor waits for another: tell their scripts, once, if that closes a cycle."""
        state = self.state
        actor = state.sessions[who].hello.actor
        if (record := state.actors.records.get(actor)) is None:
            return
        within = f" in {blocked.method}" if blocked.method else ""
        sentence = f"{record.request.name} waits{within} for {blocked.call}"
        wait = Wait(blocked.wait, blocked.actor, sentence, who, state.now, state.now)
        self._end_wait(actor, unless=wait.number)
        if cycle := state.wait_graph.hear(actor, wait):
            self._notify(cycle, why_deadlocked(cycle))

    def _end_wait(self, actor: str, unless: int = 0) -> None:
        """An actor's wait has ended, `unless` it is of this number: tell if it was in a cycle."""
        if wait := self.state.wait_graph.end(actor, unless):
            self._notify([wait], f"no deadlock any more, as this has ended: {wait.sentence}")

    def _notify(self, waits: Iterable[Wait], text: str) -> None:
        """Tell the scripts whose actors wait; of one that has gone, an actor, which has a log."""
        state = self.state
        if not state.is_embedded:  # else the log is the terminal of the script
            state.instructions.append(Log(text))
        for job, who in {state.sessions[w.session].job: w.session for w in waits}.items():
            state.tell(job if job in state.sessions else who, control.Notice(text=text))

    def _read_log(self, who: str, question: control.ReadLog) -> None:
        state = self.state
        actor = state.actors.names.get(question.actor, question.actor)
        record = state.actors.records.get(actor)
        workers = {record.worker} if record else set(state.workers.records)
        state.log_queries.ask(who, msgspec.structs.replace(question, actor=actor), workers)

    # --- workers ----------------------------------------------------------------------------------

    @property
    def workers(self) -> list[str]:
        return list(self.state.workers.records)

    def enlist(
        self,
        register: control.Register,
        now: float,
        is_near: bool = False,
        predecessors: Collection[str] = (),
    ) -> list[Instruction]:
        """Take in a worker, near the master or not, new or back.  `settle` is to follow.

        `predecessors` were killed on its machine, with their actors: their leases need not end.
        """
        state, name = self.state, register.worker
        is_new = name not in state.workers
        self.renew(name, now)
        if is_new:
            why = f"its worker on {register.machine} was killed"
            for before in predecessors:  # who needs that machine waits: it is back in a moment
                self._remove_worker(before, why, may_return=True)
            state.workers.join(register, is_near, predecessors)
        reregistration.adopt_all(state, register, is_new)
        self._tell_keys(name)
        return state.take_instructions()

    def settle(self, register: control.Register) -> list[Instruction]:
        """Make right what was lost on the way while a worker's connection was broken."""
        state, name = self.state, register.worker
        reregistration.settle(state, register)
        if modules := state.sessions.modules_of(register.python):
            state.tell(name, control.Preload(modules=modules))
        state.log_queries.ask_again(name)
        if name in state.workers.ledger.away:
            state.workers.ledger.resume(name)
            for record in state.actors.on_worker(name):
                actors.answer(state, state.questions.release(record.request.actor))
        actors.retry(state)
        if state.is_closing:
            state.tell(name, control.Leave())
        return state.take_instructions()

    def relay_for_guest(self) -> control.Relay | control.Refused:
        """Return which worker is to relay what the callers of a guest send."""
        return guests.relay_for_guest(self.state)

    def why_not(self, register: control.Register, now: float) -> control.Refused | None:
        """Return what a guest is told that cannot be taken in; what it was before has ended."""
        self.state.now = now
        return guests.why_not(register, self.state)

    def hear_worker(self, who: str, message: object, now: float) -> list[Instruction]:
        """A worker says something."""
        state = self.state
        self.renew(who, now)
        match message:
            case control.Beat(asked=asked) if asked:
                state.tell(who, control.Tick(asked=asked))
            case control.MayCall(key=key):
                state.delegates.ask(who, key, state.is_learning)
            case control.Spawned(location=location, since=since):
                actors.spawned(state, who, location, since)
            case control.Died(obituary=obituary, lived=lived):
                reregistration.hear_death(state, who, obituary, lived)
            case control.Report(actors=figures):
                state.workers.records[who].reports = {each.actor: each for each in figures}
                actors.hear_figures(state, who)
            case control.Printed() | control.Logged() if state.actors.is_on(message.actor, who):
                request = state.actors.records[message.actor].request
                state.tell(request.job, msgspec.structs.replace(message, name=request.name))
            case control.LogPiece():
                state.log_queries.hear(who, message)
            case control.Delegate(actor=actor, key=key) if state.actors.is_on(actor, who):
                reregistration.delegate(state, actor, key)
            case control.Left():
                self._remove_worker(who, "its worker was stopped")
                actors.retry(state)
        return state.take_instructions()

    def lose_route(self, who: str, now: float) -> list[Instruction]:
        """A peer cannot be reached now: nothing is placed on a worker until it is back.

        Nothing ever is on a guest.  It is removed when its last words are read (master.py).
        """
        state = self.state
        state.now = now
        if not self._is_guest(who) and state.workers.suspend(who):
            actors.place_elsewhere(state, who)
        actors.hear_figures(state, who)
        return state.take_instructions()

    def _is_guest(self, name: str) -> bool:
        record = self.state.workers.records.get(name)
        return record is not None and guests.is_guest(record.register)

    def remove_worker(
        self, name: str, why: str, now: float, may_return: bool = False
    ) -> list[Instruction]:
        """A worker has ended, and its actors with it.  `may_return`: it is only lost."""
        self.state.now = now
        self._remove_worker(name, why, may_return)
        actors.retry(self.state)  # for some, no machine may be left that is large enough
        return self.state.take_instructions()

    def _remove_worker(self, name: str, why: str, may_return: bool = False) -> None:
        state = self.state
        if name not in state.workers:
            return
        state.leases.end(name)
        state.instructions.append(LetGo(name))
        state.workers.leave(name, state.now, may_return and not self._is_guest(name))
        actors.place_elsewhere(state, name)
        for record in state.actors.on_worker(name):
            actors.die(state, record.lost(why))
        state.log_queries.remove_worker(name)
        state.delegates.remove_worker(name)
        actors.hear_figures(state, name)

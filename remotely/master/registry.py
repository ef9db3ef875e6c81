"""What the master knows: who is there, which actor lives where, and who waits for room.

    who          is thought alive while                      its end is the end of
    worker       it has a route, or beat within the lease    its actors (WorkerLost)
    client       the same; or on this host, its process is   the actors that it owns
    actor        its worker says so                          the actors that it owns, as a client

No clock, no socket, no process: messages and `now` come in, messages go out by `tell`, and
`let_go` is called with a peer that has ended.  So a loop can play 1,000 workers.  state.py has what
is known, lifecycle.py what becomes of an actor, reregistration.py what a worker brings along.

An event costs what it touches, and not what there is: whatever would be a search among all actors,
sessions or workers has an index, kept where a record comes and goes (actor_table.py, sessions.py).
Three things are still done one by one: all workers are told of a module that no client used before,
and asked for the log of an actor that has ended, and a status looks at everything.

The class is a little over 250 lines: it has the two tables of all that clients and workers say.
"""

from collections.abc import Callable, Collection, Iterable

import msgspec

from remotely.master import guests, status
from remotely.master.admission import Admission
from remotely.master.arrivals import Arrivals
from remotely.master.delegates import Delegates
from remotely.master.lifecycle import ActorLifecycle
from remotely.master.log_queries import LogQueries
from remotely.master.reregistration import Reregistration
from remotely.master.sessions import Session
from remotely.master.state import State
from remotely.master.status_queries import StatusQueries
from remotely.master.wait_graph import Wait, WaitGraph, why_deadlocked
from remotely.protocol import control
from remotely.protocol.lease import LEASE_S, OWNER_GRACE_S, Leases


class Registry:
    """The state of a cluster.  Peers are known by their ids: of a session, of a worker."""

    def __init__(
        self,
        tell: Callable[[str, msgspec.Struct], bool],
        let_go: Callable[[str], None],
        admission: Admission,
        lease_s: float = LEASE_S,
        learns_until: float = 0.0,
        is_embedded: bool = False,
        counts_cpus: bool = True,
    ) -> None:
        self._tell = tell
        self._let_go = let_go
        self._admission = admission
        self._state = State(Leases(lease_s), learns_until, is_embedded, counts_cpus)
        self._sessions = self._state.sessions
        self._workers = self._state.workers
        self._actors = self._state.actors
        self._wait_graph = WaitGraph()
        self._to_log: list[str] = []
        self._log_queries = LogQueries(tell)
        self._status_queries = StatusQueries(tell, self._answer_status)
        self._delegates = Delegates(tell, admission)
        self._arrivals = Arrivals(self._state, tell)
        self._lifecycle = ActorLifecycle(
            self._state,
            tell,
            admission,
            self._delegates,
            self._arrivals,
            end_inside=self._end_inside,
            say_farewell=self._say_farewell,
        )
        self._placer, self._lookups = self._lifecycle.placer, self._lifecycle.lookups
        self._reregistration = Reregistration(
            self._state, tell, admission, self._delegates, self._lifecycle
        )

    @property
    def workers(self) -> list[str]:
        return list(self._workers.records)

    def renew(self, who: str, now: float) -> None:
        """A peer has given proof of its life."""
        self._state.now = now
        self._state.leases.renew(who, now)

    def extend_leases(self, seconds: float) -> None:
        """The master was away for so long: nobody could renew."""
        self._state.leases.extend(seconds)

    def expire(self, now: float) -> list[str]:
        """End those whose lease is over, and requests that have waited long enough.

        Returns what is to be logged: each peer that was lost, and what scripts were told.
        """
        self._state.now = now
        leases, lost = self._state.leases, self._to_log
        self._to_log = []
        for who in leases.expired(now):
            if machine := self._workers.records.get(who):
                name = machine.register.machine
                lost.append(f"lost the worker on {name}")
                why = f"{name} was last heard {leases.lease_s:.0f} s ago"
                self.remove_worker(who, why, may_return=True)
            elif session := self._sessions.get(who):
                lost.append(f"lost the client on {session.hello.machine}")
                self.end_session(who)
            else:  # it owned actors before this master started, and is not back
                self._lifecycle.end_owned(who)
        self._placer.look_after_waiting()
        self._status_queries.expire(now)
        self._expect_no_longer()
        return lost

    def _expect_no_longer(self) -> None:
        """Tell those who have waited in vain for workers that were to come back."""
        given_up = self._workers.give_up(self._state.now)
        has_learnt = self._state.learns_until and not self._state.is_learning
        if has_learnt:
            self._state.learns_until = 0.0
            self._lookups.hear_of_no_more()
            self._arrivals.hear_of_no_more()
            self._delegates.give_up()
        if given_up or has_learnt:
            self._placer.retry()

    def list_keys(self, client_keys: Iterable[bytes], worker_keys: Iterable[bytes]) -> None:
        """From now on these keys are listed: the workers tell their actors.

        What was placed by a key that is not among them has to end, detached or not.
        """
        self._admission.relist(client_keys, worker_keys)
        for name in self._workers.records:
            self._tell_keys(name)
        for actor, record in list(self._actors.records.items()):
            if not self._admission.may_live(record.request):
                self._delegates.take_back(actor)
                self._lifecycle.end(control.End(actor=actor, grace_s=OWNER_GRACE_S))

    def _tell_keys(self, who: str) -> None:
        self._tell(who, control.Registered(client_keys=self._admission.client_keys))

    def close(self) -> None:
        """The cluster is being stopped: nothing is placed any more, and every worker leaves."""
        self._state.is_closing = True
        for name in self._workers.records:
            self._tell(name, control.Leave())

    # --- clients ----------------------------------------------------------------------------------

    def greet(self, hello: control.Hello, key: bytes, now: float) -> bool:
        """Take in a client that was vetted; true if it is new, and not one that comes back."""
        who = hello.session
        new = who not in self._sessions
        if new:
            home = self._actors.records.get(hello.actor)
            root, job = (home.request.key, home.request.job) if home else (key, who)
            self._sessions.begin(Session(hello, root, job))
        self.renew(who, now)
        self._arrivals.claim(who, hello.arrivals)
        if unused := self._sessions.use(who, hello.modules):
            for name in self._workers.of_python(hello.python):
                self._tell(name, control.Preload(modules=unused))
        self._tell(who, control.Welcome(pythons=self._workers.ledger.pythons))
        for due in self._state.restarts.due_by(who):  # it may not have heard
            self._tell(who, control.Died(obituary=due.obituary))
        return new

    def hear_client(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Place() if not self._sessions[who].leaving:
                self._lifecycle.place(who, message)
            case control.End():
                self._lifecycle.hear_end(who, message)
            case control.Cancel(actor=actor):
                if record := self._actors.records.get(actor):
                    self._tell(record.worker, message)
            case control.Locate():
                if message.unreached:
                    self._look_for_machine_of(message.actor)
                self._lookups.locate(who, message)
            case control.AskArrival():
                self._arrivals.ask(who, message)
            case control.NoArrival(ticket=ticket):
                self._arrivals.withdraw(who, ticket)
            case control.AskStatus(ticket=ticket, fresh=False):
                self._answer_status(who, ticket)
            case control.AskStatus(ticket=ticket):
                peers = [*self._workers.records, *(s.hello.session for s in self._sessions)]
                self._status_queries.ask(who, ticket, peers, now)
            case control.Unanswered(calls=calls):
                self._sessions[who].unanswered = calls
                self._status_queries.hear(who)
            case control.ReadLog():
                self._read_log(who, message)
            case control.Blocked():
                self._hear_blocked(who, message, now)
            case control.Unblocked():
                self._end_wait(self._sessions[who].hello.actor)
            case control.Goodbye():
                self._sessions[who].leaving = True
                self._state.waiting.remove_session(who)
                self._lifecycle.end_owned(who)
                self._say_farewell(who)

    def _look_for_machine_of(self, actor: str) -> None:
        """Learn now whether an actor's worker can be reached, and not at the next tick."""
        record = self._actors.records.get(actor)
        if record is not None and not self._tell(record.worker, control.Tick()):
            self.lose_route(record.worker, self._state.now)

    def _hear_blocked(self, who: str, blocked: control.Blocked, now: float) -> None:
        """An actor waits for another: tell their scripts, once, if that closes a cycle."""
        actor = self._sessions[who].hello.actor
        if (record := self._actors.records.get(actor)) is None:
            return
        within = f" in {blocked.method}" if blocked.method else ""
        sentence = f"{record.request.name} waits{within} for {blocked.call}"
        wait = Wait(blocked.wait, blocked.actor, sentence, who, now, now)
        self._end_wait(actor, unless=wait.number)
        if cycle := self._wait_graph.hear(actor, wait):
            self._notify(cycle, why_deadlocked(cycle))

    def _end_wait(self, actor: str, unless: int = 0) -> None:
        """An actor's wait has ended, `unless` it is of this number: tell if it was in a cycle."""
        if wait := self._wait_graph.end(actor, unless):
            self._notify([wait], f"no deadlock any more, as this has ended: {wait.sentence}")

    def _notify(self, waits: Iterable[Wait], text: str) -> None:
        """Tell the scripts whose actors wait; of one that has gone, an actor, which has a log."""
        notice = control.Notice(text=text)
        if not self._state.is_embedded:  # else the log is the terminal of the script
            self._to_log.append(text)
        for job, who in {self._sessions[w.session].job: w.session for w in waits}.items():
            if not self._tell(job, notice):
                self._tell(who, notice)

    def end_session(self, who: str) -> None:
        """A client has ended, and with it the actors that it owns."""
        if (session := self._sessions.end(who)) is None:
            return
        self._state.leases.end(who)
        self._let_go(who)
        self._wait_graph.end(session.hello.actor)
        self._status_queries.hear(who)
        self._actors.unwatch(who)
        self._arrivals.end_session(who)
        self._state.waiting.remove_session(who)
        self._lifecycle.end_owned(who)

    def _answer_status(self, who: str, ticket: int) -> None:
        self._tell(who, status.status(ticket, self._state))

    def _end_inside(self, actor: str) -> None:
        """An actor lives no more, and neither does the client in it."""
        for session in self._sessions.inside.of(actor):
            self.end_session(session)

    def _say_farewell(self, who: str) -> None:
        """Let a client go when its actors have ended and their last output has passed."""
        session = self._sessions.get(who)
        if session and session.leaving and who not in self._actors.by_owner:
            self._tell(who, control.Farewell())
            self.end_session(who)

    def _read_log(self, who: str, question: control.ReadLog) -> None:
        actor = self._actors.names.get(question.actor, question.actor)
        record = self._actors.records.get(actor)
        workers = {record.worker} if record else set(self._workers.records)
        self._log_queries.ask(who, msgspec.structs.replace(question, actor=actor), workers)

    # --- workers ----------------------------------------------------------------------------------

    def enlist(
        self,
        register: control.Register,
        now: float,
        is_near: bool = False,
        predecessors: Collection[str] = (),
    ) -> bool:
        """Take in a worker, near the master or not; true if it is new.  `settle` is to follow.

        `predecessors` were killed on its machine, with their actors: their leases need not end.
        """
        name = register.worker
        new = name not in self._workers
        self.renew(name, now)
        if new:
            why = f"its worker on {register.machine} was killed"
            for before in predecessors:  # who needs that machine waits: it is back in a moment
                self.remove_worker(before, why, may_return=True)
            self._workers.join(register, is_near, predecessors)
        self._reregistration.adopt_all(register, new)
        self._tell_keys(name)
        return new

    def settle(self, register: control.Register) -> None:
        """Make right what was lost on the way while a worker's connection was broken."""
        name = register.worker
        self._reregistration.settle(register)
        if modules := self._sessions.modules_of(register.python):
            self._tell(name, control.Preload(modules=modules))
        self._log_queries.ask_again(name)
        if name in self._workers.ledger.away:
            self._workers.ledger.resume(name)
            for record in self._actors.on_worker(name):
                self._lookups.hear_of_news(record.request.actor)
        self._placer.retry()
        if self._state.is_closing:
            self._tell(name, control.Leave())

    def relay_for_guest(self) -> control.Relay | control.Refused:
        """Return which worker is to relay what the callers of a guest send."""
        return guests.relay_for_guest(self._state)

    def why_not(
        self, register: control.Register, predecessors: Collection[str], now: float
    ) -> control.Refused | None:
        """Return what a guest is told that cannot be taken in; what it was before ends now."""
        if not guests.is_guest(register):
            return None
        self._state.now = now
        for before in predecessors:
            self.remove_worker(before, guests.AGAIN)
        return guests.why_not(register, self._state)

    def hear_worker(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Beat(asked=asked) if asked:
                self._tell(who, control.Tick(asked=asked))
            case control.MayCall(key=key):
                self._delegates.ask(who, key, self._state.is_learning)
            case control.Spawned(location=location, since=since):
                self._lifecycle.spawned(who, location, since)
            case control.Died(obituary=obituary, lived=lived):
                self._reregistration.hear_death(who, obituary, lived)
            case control.Report(actors=actors):
                self._workers.records[who].reports = {figures.actor: figures for figures in actors}
                self._status_queries.hear(who)
            case control.Printed() | control.Logged() if self._actors.is_on(message.actor, who):
                request = self._actors.records[message.actor].request
                self._tell(request.job, msgspec.structs.replace(message, name=request.name))
            case control.LogPiece():
                self._log_queries.hear(who, message)
            case control.Delegate(actor=actor, key=key) if self._actors.is_on(actor, who):
                self._delegates.delegate(self._actors.records[actor], key)
            case control.Left():
                self.remove_worker(who, "its worker was stopped")

    def lose_route(self, name: str, now: float) -> None:
        """A worker cannot be reached now: until it is back, nothing is placed there.

        Nothing ever is on a guest.  It is removed when its last words are read (master.py).
        """
        self._state.now = now
        worker = self._workers.records.get(name)
        if worker is None or not guests.is_guest(worker.register):
            self._lifecycle.lose_route(name)

    def remove_worker(self, name: str, why: str, may_return: bool = False) -> None:
        """A worker has ended, and its actors with it.  `may_return`: it is only lost."""
        if name not in self._workers:
            return
        self._state.leases.end(name)
        self._let_go(name)
        may_return &= not guests.is_guest(self._workers.records[name].register)
        self._workers.leave(name, self._state.now, may_return)
        self._lifecycle.place_elsewhere(name)
        for record in self._actors.on_worker(name):
            self._lifecycle.hear_death(record.lost(why))
        self._log_queries.remove_worker(name)
        self._status_queries.hear(name)
        self._delegates.remove_worker(name)
        self._placer.retry()  # for some, no machine may be left that is large enough

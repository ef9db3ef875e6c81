"""What the master knows: who is there, which actor lives where, and who waits for room.

    who          is thought alive while                      its end is the end of
    worker       it has a route, or beat within the lease    its actors (WorkerLost)
    client       the same; or on this host, its process is   the actors that it owns
    actor        its worker says so                          the actors that it owns, as a client

No clock, no socket, no process: messages and `now` come in, messages go out by `tell`, and
`let_go` is called with a peer that has ended.  So 1,000 workers can be played by a loop.  What
becomes of an actor is in lives.py; what is known is in state.py.

An event costs what it touches, and not what there is: whatever would be a search among all actors,
sessions or workers has an index, kept where a record comes and goes (roster.py, sessions.py).  What
is still told or looked at one by one is a worker for the first client that uses a module, a worker
that is asked for the log of an actor that is no more, and everything for a status.

The class is over 250 lines: it is the table of all that peers say.
"""

from collections.abc import Callable, Iterable

import msgspec

from remotely.master import status
from remotely.master.admission import Admission
from remotely.master.callers import Callers
from remotely.master.lives import OWNER_GRACE_S, Lives
from remotely.master.log_asks import LogAsks
from remotely.master.reregistration import Brought, brought_by, is_wanted
from remotely.master.sessions import Session
from remotely.master.state import State
from remotely.master.status_asks import StatusAsks
from remotely.master.wait_graph import Circles
from remotely.protocol import control
from remotely.protocol.lease import LEASE_S, Leases


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
    ) -> None:
        self._tell = tell
        self._let_go = let_go
        self._admission = admission
        self._state = State(Leases(lease_s), learns_until, is_embedded)
        self._sessions = self._state.sessions
        self._fleet = self._state.fleet
        self._roster = self._state.roster
        self._actors = self._roster.actors
        self._circles = Circles()
        self._log_asks = LogAsks(tell)
        self._status_asks = StatusAsks(tell, self._answer_status)
        self._callers = Callers(tell, admission)
        self._lives = Lives(
            self._state,
            tell,
            admission,
            self._callers,
            end_inside=self._end_inside,
            say_farewell=self._say_farewell,
        )

    @property
    def workers(self) -> list[str]:
        return list(self._fleet.machines)

    def renew(self, who: str, now: float) -> None:
        """A peer has given proof of its life."""
        self._state.now = now
        self._state.leases.renew(who, now)

    def extend_leases(self, seconds: float) -> None:
        """The master was away for so long: nobody could renew."""
        self._state.leases.extend(seconds)

    def expire(self, now: float) -> list[str]:
        """End those whose lease is over, and requests that have waited long enough.

        Returns a sentence for each peer that was lost.
        """
        self._state.now = now
        leases, lost = self._state.leases, []
        for who in leases.expired(now):
            if machine := self._fleet.machines.get(who):
                name = machine.register.machine
                lost.append(f"lost the worker on {name}")
                why = f"{name} was last heard {leases.lease_s:.0f} s ago"
                self.remove_worker(who, why, may_return=True)
            elif session := self._sessions.get(who):
                lost.append(f"lost the client on {session.hello.machine}")
                self.end_session(who)
            else:  # it owned actors before this master started, and has not come back
                self._lives.end_owned(who)
        self._lives.refuse_overdue()
        self._status_asks.expire(now)
        self._expect_no_longer()
        return lost

    def _expect_no_longer(self) -> None:
        """Tell those who have waited in vain for workers that were to come back."""
        given_up = self._fleet.give_up(self._state.now)
        has_learnt = self._state.learns_until and not self._state.is_learning
        if has_learnt:
            self._state.learns_until = 0.0
            self._lives.answer_all()
            self._callers.give_up()
        if given_up or has_learnt:
            self._lives.retry()

    def list_keys(self, client_keys: Iterable[bytes], worker_keys: Iterable[bytes]) -> None:
        """From now on these keys are listed: the workers tell their actors.

        What was placed by a key that is not among them has to end, detached or not.
        """
        self._admission.relist(client_keys, worker_keys)
        for actor, record in list(self._actors.items()):
            if not self._admission.is_listed(record.request.key):
                self._callers.take_back(actor)
                self._lives.end(control.End(actor=actor, grace_s=OWNER_GRACE_S))
        registered = control.Registered(client_keys=self._admission.client_keys)
        for name in self._fleet.machines:
            self._tell(name, registered)

    def close(self) -> None:
        """The cluster is being stopped: nothing is placed any more, and every worker leaves."""
        self._state.is_closing = True
        for name in self._fleet.machines:
            self._tell(name, control.Leave())

    # --- clients ----------------------------------------------------------------------------------

    def greet(self, hello: control.Hello, key: bytes, now: float) -> bool:
        """Take in a client that was vetted; true if it is new, and not one that comes back."""
        who = hello.session
        new = who not in self._sessions
        if new:
            home = self._actors.get(hello.actor)
            root, job = (home.request.key, home.request.job) if home else (key, who)
            self._sessions.begin(Session(hello, root, job))
        self.renew(who, now)
        if unused := self._sessions.use(who, hello.modules):
            for name in self._fleet.of_python(hello.python):
                self._tell(name, control.Preload(modules=unused))
        ledger = self._fleet.ledger
        self._tell(who, control.Welcome(pythons=ledger.pythons, cpus=ledger.cpus))
        for due in self._state.restarts.due_by(who):  # it may not have heard
            self._tell(who, control.Died(obituary=due.obituary))
        return new

    def hear_client(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Place() if not self._sessions[who].leaving:
                self._lives.place(who, message)
            case control.End():
                self._lives.hear_end(who, message)
            case control.Locate():
                self._lives.locate(who, message)
            case control.AskStatus(ticket=ticket, fresh=False):
                self._answer_status(who, ticket)
            case control.AskStatus(ticket=ticket):
                peers = [*self._fleet.machines, *(s.hello.session for s in self._sessions)]
                self._status_asks.ask(who, ticket, peers, now)
            case control.Unanswered(calls=calls):
                self._sessions[who].unanswered = calls
                self._status_asks.hear(who)
            case control.ReadLog():
                self._read_log(who, message)
            case control.Blocked():
                self._hear_blocked(who, message, now)
            case control.Unblocked():
                self._circles.end(self._sessions[who].hello.actor)
            case control.Goodbye():
                self._sessions[who].leaving = True
                self._state.waiting.remove_session(who)
                self._lives.end_owned(who)
                self._say_farewell(who)

    def _hear_blocked(self, who: str, blocked: control.Blocked, now: float) -> None:
        """An actor waits for another: tell it if that closes a circle."""
        actor = self._sessions[who].hello.actor
        if (record := self._actors.get(actor)) is None:
            return
        sentence = f"{record.request.name} waits for {blocked.call}"
        if circle := self._circles.hear(actor, blocked.wait, blocked.actor, sentence, now):
            why = (
                f"{' and '.join(circle)}: none of them can go on. Have one of them not wait "
                "(submit), or serve others while it waits (concurrency=2, or async methods)"
            )
            self._tell(who, control.Deadlocked(wait=blocked.wait, why=why))

    def end_session(self, who: str) -> None:
        """A client has ended, and with it the actors that it owns."""
        if (session := self._sessions.end(who)) is None:
            return
        self._state.leases.end(who)
        self._let_go(who)
        self._circles.end(session.hello.actor)
        self._status_asks.hear(who)
        self._roster.unwatch(who)
        self._state.waiting.remove_session(who)
        self._lives.end_owned(who)

    def _answer_status(self, who: str, ticket: int) -> None:
        self._tell(who, status.status(ticket, self._state))

    def _end_inside(self, actor: str) -> None:
        """An actor lives no more, and neither does the client in it."""
        for session in self._sessions.inside.of(actor):
            self.end_session(session)

    def _say_farewell(self, who: str) -> None:
        """Let a client go when its actors have ended and their last output has passed."""
        session = self._sessions.get(who)
        if session and session.leaving and who not in self._roster.owned:
            self._tell(who, control.Farewell())
            self.end_session(who)

    def _read_log(self, who: str, question: control.ReadLog) -> None:
        actor = self._roster.names.get(question.actor, question.actor)
        record = self._actors.get(actor)
        workers = {record.worker} if record else set(self._fleet.machines)
        self._log_asks.ask(who, msgspec.structs.replace(question, actor=actor), workers)

    # --- workers ----------------------------------------------------------------------------------

    def enlist(self, register: control.Register, now: float) -> bool:
        """Take in a worker; true if it is new.  `settle` is to follow."""
        name = register.worker
        new = name not in self._fleet
        self.renew(name, now)
        if new:
            self._fleet.join(register)
        # With all that lives there, before anything else can be placed on it.
        all_brought = brought_by(register).values()
        for brought in all_brought:
            self._adopt_if_wanted(name, brought, new)
        for brought in all_brought:
            self._lives.hear_of(brought.request)
        self._tell(name, control.Registered(client_keys=self._admission.client_keys))
        return new

    def _adopt_if_wanted(self, worker: str, brought: Brought, is_new: bool) -> None:
        is_genuine = brought.is_genuine(worker, self._admission)
        if is_genuine and is_wanted(brought, worker, is_new, self._state):
            self._lives.adopt(worker, brought)

    def settle(self, register: control.Register) -> None:
        """Make right what was lost on the way while a worker's connection was broken."""
        name = register.worker
        all_brought = brought_by(register)
        for record in self._roster.at(name):
            self._lives.reconcile(record, all_brought.get(record.request.actor))
        for actor, brought in all_brought.items():  # given up, or made elsewhere meanwhile
            if not self._roster.is_housed(actor, name):
                self._tell(name, control.End(actor=actor, grace_s=0.0, kill=True))
            elif brought.status is not None and brought.status.delegate:
                self._callers.delegate(self._actors[actor], brought.status.delegate)
        if modules := self._sessions.modules_of(register.python):
            self._tell(name, control.Preload(modules=modules))
        self._log_asks.ask_again(name)
        self._fleet.ledger.resume(name)
        self._lives.retry()
        if self._state.is_closing:
            self._tell(name, control.Leave())

    def hear_worker(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Beat(asked=asked) if asked:
                self._tell(who, control.Tick(asked=asked))
            case control.Spawned(location=location, since=since):
                self._lives.spawned(who, location, since)
            case control.Died(obituary=obituary, lived=lived):
                self._hear_death(who, obituary, lived)
            case control.Report(actors=actors):
                self._fleet.machines[who].reports = {figures.actor: figures for figures in actors}
                self._status_asks.hear(who)
            case control.Printed() | control.Logged() if self._roster.is_housed(message.actor, who):
                request = self._actors[message.actor].request
                self._tell(request.job, msgspec.structs.replace(message, name=request.name))
            case control.LogPiece():
                self._log_asks.hear(who, message)
            case control.Delegate(actor=actor, key=key) if self._roster.is_housed(actor, who):
                self._callers.delegate(self._actors[actor], key)
            case control.MayCall(key=key):
                self._callers.ask(who, key, self._state.is_learning)
            case control.Left():
                self.remove_worker(who, "its worker was stopped")

    def _hear_death(
        self, worker: str, obituary: control.Obituary, lived: control.ActorStatus | None
    ) -> None:
        """An actor has ended: perhaps while there was no master, so that we never heard of it."""
        unheard_of = self._state.is_learning and obituary.actor not in self._actors
        if lived is not None and unheard_of:
            brought = Brought(lived.request, lived.gpu_ids, lived.seal, lived)
            self._adopt_if_wanted(worker, brought, is_new=True)
        if self._roster.is_housed(obituary.actor, worker):
            self._lives.hear_death(obituary)
        if lived is not None:
            self._lives.hear_of(lived.request)

    def lose_route(self, name: str) -> None:
        """A worker cannot be reached now: until it is back, nothing is placed there."""
        self._lives.lose_route(name)

    def remove_worker(self, name: str, why: str, may_return: bool = False) -> None:
        """A worker has ended, and its actors with it.  `may_return`: it is only lost."""
        if name not in self._fleet:
            return
        self._state.leases.end(name)
        self._let_go(name)
        self._fleet.leave(name, self._state.now, may_return)
        self._lives.place_elsewhere(name)
        for record in self._roster.at(name):
            self._lives.hear_death(record.lost(why))
        self._log_asks.remove_worker(name)
        self._status_asks.hear(name)
        self._callers.remove_worker(name)
        self._lives.retry()  # for some, no machine may be left that is large enough

"""Authorization, without sockets; test_placing.py tests a master on real sockets."""

import msgspec
import pytest

from remotely.errors import NotAllowed
from remotely.master.admission import LIST, Admission
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.transport.access_list import AccessList, AccessRelay
from remotely.transport.sockets import UnknownKey

CLIENT, WORKER, OURS, OTHERS = (
    name.ljust(40) for name in (b"client", b"worker", b"ours", b"other")
)


@pytest.fixture
def admission() -> Admission:
    return Admission([CLIENT], [WORKER], b"the master's secret")


def hello(key: bytes, actor: str = "", role: str = "client") -> control.Hello:
    who = bound_id(role, key, "nonce")
    return control.Hello(
        session=who, python="3.11", pid=1, host="", machine="", actor=actor, nonce="nonce"
    )


def request(**options: object) -> control.Request:
    fields = {"actor": "a", "name": "a", "class_name": "A", "owner": "", "job": "", **options}
    return control.Request(python="3.11", **fields)  # type: ignore[arg-type]


# --- ids ------------------------------------------------------------------------------------------


def test_an_id_depends_on_role_key_and_nonce() -> None:
    ids = {
        bound_id(role, key, nonce)
        for role in ("client", "worker")
        for key in (CLIENT, WORKER)
        for nonce in ("nonce", "another's")
    }
    assert len(ids) == 8


def test_another_clients_id_is_refused(admission: Admission) -> None:
    admission.set_keys([CLIENT, OTHERS], [WORKER])
    taken = hello(CLIENT)
    for liar in (
        msgspec.structs.replace(taken, nonce="guessed"),  # with the same key
        msgspec.structs.replace(hello(OTHERS), session=taken.session),
        hello(CLIENT, role="worker"),
    ):
        with pytest.raises(NotAllowed, match="does not match its key"):
            admission.vet_client(liar, OTHERS if liar.nonce == "nonce" else CLIENT)


# --- seals ----------------------------------------------------------------------------------------


def test_a_seal_is_valid_for_one_placement_on_one_worker(admission: Admission) -> None:
    placed = request()
    seal = admission.seals.seal("worker", placed, [0])
    is_ours = admission.seals.is_ours
    assert is_ours("worker", placed, [0], seal)
    assert not is_ours("another", placed, [0], seal)
    assert not is_ours("worker", placed, [0, 1], seal)
    assert not is_ours("worker", placed, [0], b"")
    for changed in (request(life=1), request(name="store", named=True), request(owner="another")):
        assert not is_ours("worker", changed, [0], seal)
    assert not Admission([], [], b"another's secret").seals.is_ours("worker", placed, [0], seal)


# --- delegates ------------------------------------------------------------------------------------


def test_a_delegate_is_a_client_inside_its_actor_until_that_ends(admission: Admission) -> None:
    assert [admission.role_of(key) for key in (CLIENT, WORKER)] == ["client", "worker"]
    assert admission.role_of(OURS) is None
    assert admission.delegate("a", OURS)
    assert admission.role_of(OURS) == "client"
    assert admission.vet_client(hello(OURS, "a"), OURS).actor == "a"
    for elsewhere in ("", "b"):
        with pytest.raises(NotAllowed, match="for that actor alone"):
            admission.vet_client(hello(OURS, elsewhere), OURS)
    admission.add_informed("near", OURS)
    admission.add_informed("far", OURS)
    assert admission.remove_delegate("a") == (OURS, ["near", "far"])
    assert admission.role_of(OURS) is None
    assert admission.remove_delegate("a") == (b"", [])


def test_a_listed_client_cannot_claim_to_be_in_an_actor(admission: Admission) -> None:
    assert admission.vet_client(hello(CLIENT, "a"), CLIENT).actor == ""


def test_an_actor_has_one_delegate_and_never_a_listed_key(admission: Admission) -> None:
    assert not admission.delegate("a", CLIENT)
    assert not admission.delegate("a", WORKER)
    assert not admission.delegate("a", b"short")
    assert admission.delegate("a", OURS)
    assert admission.delegate("a", OURS)  # repeated after a lost connection
    assert not admission.delegate("a", OTHERS)
    assert admission.role_of(OTHERS) is None


def test_claiming_anothers_delegate_does_not_revoke_it(admission: Admission) -> None:
    admission.delegate("victim", OURS)
    admission.delegate("liar", OURS)
    assert admission.remove_delegate("liar") == (b"", [])
    assert admission.vet_client(hello(OURS, "victim"), OURS) is not None
    assert admission.remove_delegate("victim") == (OURS, [])


def test_a_viewer_has_no_actor_modules_or_arrivals(admission: Admission) -> None:
    admission.set_keys([CLIENT], [WORKER], [OURS])
    assert admission.role_of(OURS) == "viewer"
    with pytest.raises(NotAllowed, match="does not match its key"):
        admission.vet_client(hello(OURS), OURS)
    message = msgspec.structs.replace(
        hello(OURS, "a", role="viewer"), modules=["torch"], arrivals=["b"]
    )
    vetted = admission.vet_client(message, OURS)
    assert (vetted.actor, vetted.modules, vetted.arrivals) == ("", [], [])
    assert not admission.delegate("a", OURS)
    assert not admission.may_live(request(key=OURS))


# --- access lists of actors -----------------------------------------------------------------------


def test_an_actor_asks_about_an_unlisted_key_and_forgets_it_when_revoked() -> None:
    asked: list[bytes] = []
    access = AccessList([CLIENT], asked.append)
    assert access.admit(CLIENT) == "client"
    assert access.admit(OURS) is UnknownKey.ASKED
    assert asked == [OURS]
    access.update(control.Caller(key=OURS, admitted=True))
    assert access.admit(OURS) == "client"
    assert not access.some_revoked
    access.update(control.Caller(key=OURS, admitted=False))
    assert not access.may_call(OURS)
    assert access.some_revoked


def test_revoking_a_key_that_never_connected_costs_calls_nothing() -> None:
    access = AccessList([CLIENT], lambda key: None)
    access.update(control.Caller(key=OURS, admitted=False))
    assert not access.some_revoked


class Machine:
    """A worker's AccessRelay, and the messages to its master and actors."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.confirmed: list[bytes] = []
        self.sent: list[tuple[str, bool]] = []
        self.access_relay = AccessRelay(
            self._tell_master,
            lambda actor, caller: self.sent.append((actor, caller.admitted)),
        )

    def _tell_master(self, message: control.MayCall | control.CallerHeard) -> None:
        told = self.asked if isinstance(message, control.MayCall) else self.confirmed
        told.append(message.key)

    def asks(self, actor: str) -> None:
        self.access_relay.handle_question(actor, control.MayCall(key=OURS))

    def is_answered(self, admitted: bool) -> None:
        self.access_relay.handle_reply(control.Caller(key=OURS, admitted=admitted))


def test_a_worker_asks_once_for_all_its_actors_and_forwards_the_revocation() -> None:
    machine = Machine()
    machine.asks("a")
    machine.is_answered(True)
    machine.asks("b")
    assert machine.asked == [OURS]
    assert machine.sent == [("a", True), ("b", True)]
    machine.sent.clear()
    machine.is_answered(False)
    assert machine.sent == [("a", False), ("b", False)]
    machine.asks("a")  # asked again
    assert machine.asked == [OURS, OURS]


def test_a_worker_answers_for_clients_itself_and_an_actor_knows_who_has_placed_it() -> None:
    machine = Machine()
    machine.access_relay.list_keys([CLIENT, OURS])
    machine.asks("a")
    assert machine.sent == [("a", True)]
    assert machine.access_relay.begin("a", CLIENT) == [CLIENT]
    assert machine.access_relay.begin("b", OTHERS) == []
    machine.access_relay.list_keys([CLIENT, OURS])
    assert machine.asked == []


def test_a_client_that_is_gone_from_the_list_is_refused_by_those_that_admit_it() -> None:
    machine = Machine()
    machine.access_relay.list_keys([CLIENT, OURS])
    machine.asks("a")
    machine.access_relay.begin("b", OURS)
    machine.access_relay.begin("c", CLIENT)
    machine.sent.clear()
    machine.access_relay.list_keys([CLIENT])
    assert machine.sent == [("a", False), ("b", False)]
    assert machine.asked == []  # the list has said it
    machine.asks("c")  # the master is asked: it is no client any more
    assert machine.asked == [OURS]


def test_the_end_of_a_key_is_confirmed_once_each_actor_has_confirmed_it_or_ended() -> None:
    machine = Machine()
    for actor in "abc":
        machine.asks(actor)
    machine.is_answered(True)
    machine.is_answered(False)
    machine.access_relay.handle_heard("a", OURS)
    machine.is_answered(False)  # the master says it again: it had lost the connection
    machine.access_relay.handle_heard("b", OURS)
    assert machine.confirmed == []
    machine.access_relay.forget("c")
    assert machine.confirmed == [OURS]
    machine.is_answered(False)  # nobody is left who would have to be told
    assert machine.confirmed == [OURS, OURS]


def test_a_worker_asks_again_after_its_master_may_have_restarted() -> None:
    machine = Machine()
    machine.asks("a")
    machine.is_answered(True)
    machine.access_relay.list_keys([CLIENT])
    assert machine.asked == [OURS, OURS]
    assert machine.confirmed == [LIST]  # what it has asked again is known to be open
    machine.is_answered(False)
    assert machine.sent == [("a", True), ("a", False)]


def test_a_list_is_confirmed_once_nobody_admits_a_key_that_has_lost_its_right() -> None:
    machine = Machine()
    machine.access_relay.list_keys([CLIENT, OURS])
    assert machine.confirmed == [LIST]
    machine.asks("a")
    machine.asks("b")
    machine.confirmed.clear()
    machine.access_relay.list_keys([CLIENT])
    machine.access_relay.list_keys([CLIENT])  # of one more master
    machine.access_relay.handle_heard("a", OURS)
    assert machine.confirmed == []
    machine.access_relay.forget("b")
    assert machine.confirmed == [OURS, LIST]


def test_keys_of_ended_actors_are_forgotten() -> None:
    machine = Machine()
    machine.asks("a")
    machine.is_answered(True)
    machine.access_relay.forget("a")
    machine.access_relay.list_keys([CLIENT])
    assert machine.asked == [OURS]
    machine.is_answered(True)  # late
    machine.asks("b")
    assert machine.asked == [OURS, OURS]

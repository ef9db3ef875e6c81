"""Tests of Rule, for all rules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remotely_rl import sync
from remotely_rl.errors import SyncError
from remotely_rl.sync.rule import Release
from remotely_rl.sync.simulation.dispatcher import RandomOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import descent, number, play, round_robin, start

ALL = [
    {"diloco": "diloco:steps=5", "backup_workers": "backup_workers:backups=0"}.get(name, name)
    for name in sync.RULES
]
UNEVEN = [0, 0, 0, 1, 0, 2, 2, 0]
# Special cases, the simpler rules that they equal, and the order of pushes.
EQUAL = [
    ("sasgd", "asynchronous", round_robin(2, 30)),
    ("exponential_penalty:kappa=0", "asynchronous", UNEVEN),
    ("delay_compensated:compensation=0", "asynchronous", UNEVEN),
    ("semi_async:n=1,counted=1000000,weak=1000000", "asynchronous", UNEVEN),
    ("stale_synchronous:slack=99", "asynchronous", UNEVEN),
    ("backup_workers:backups=0", "synchronous", round_robin(3, 30)),
    ("soft_sync:n=1,at_zero=none", "synchronous", round_robin(8, 40)),
    ("soft_sync:n=3", "sasgd", round_robin(3, 30)),
    ("fasgd:beta=1", "sasgd", round_robin(4, 40)),
    ("b_fasgd:gate_push=0,gate_fetch=0", "fasgd", round_robin(3, 60)),
]


@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("spec", ALL)
def test_every_rule_converges(spec: str, clients: int) -> None:
    rule = sync.make(spec, start(3), clients, sync.sgd(0.05))
    simulation = Simulation(rule, lambda client, w: w.clone(), RandomOrder(seed=clients))

    simulation.run(600)

    assert float(rule.parameters.abs().max()) < 0.2


@pytest.mark.parametrize("spec", ALL)
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), clients=st.integers(1, 6))
def test_no_order_causes_a_deadlock_or_negative_staleness(
    spec: str, seed: int, clients: int
) -> None:
    rule = sync.make(spec, start(), clients, sync.sgd(0.01))
    simulation = Simulation(rule, lambda client, w: w.clone(), RandomOrder(seed))
    for _ in range(40):
        reply = simulation.push()  # raises if all wait
        assert reply.staleness >= 0

    assert rule.counters.staleness.total() == 40


@pytest.mark.parametrize("spec", ["asynchronous", "synchronous", "sasgd", "sasgd:at_zero=plus1"])
def test_one_client_is_exactly_gradient_descent(spec: str) -> None:
    assert play(spec, 1, [0] * 20).w == descent(20)


@pytest.mark.parametrize(("spec", "simpler", "order"), EQUAL)
def test_special_cases_equal_simpler_rules_exactly(
    spec: str, simpler: str, order: list[int]
) -> None:
    clients = max(order) + 1

    assert play(spec, clients, order).w == play(simpler, clients, order).w


@pytest.mark.parametrize("spec", ALL)
def test_the_same_pushes_give_the_same_bits(spec: str) -> None:
    order = round_robin(3, 30)

    assert play(spec, 3, order).w == play(spec, 3, order).w


def test_later_steps_do_not_change_a_clients_parameters() -> None:
    rule = sync.make("asynchronous", start(), 2)
    first = rule.parameters

    rule.push(0, start(), 0)

    assert float(first) == 1.0
    assert rule.push(1, start(), 0).parameters is rule.parameters


@pytest.mark.parametrize("spec", ALL)
def test_returns_views_does_not_change_the_results(spec: str) -> None:
    def played(lends: bool) -> list[float]:
        rule = sync.make(spec, start(3), 3, sync.sgd(0.05))
        rule.returns_views = lends
        order = RandomOrder(seed=1)
        order.begin(3)
        clients = [rule.client(one) for one in range(3)]
        for one in clients:  # as sending them does
            one.parameters = one.parameters.clone()
        for _ in range(60):
            event = order.next()
            assert event is not None
            client = clients[event.client]
            reply = rule.push(client.number, client.next_push(lambda w: w.clone()), client.version)
            answers = [*reply.released]
            if not reply.waits:
                answers.append(Release(client.number, reply.parameters))
            for answered, parameters in answers:
                newest = None if parameters is None else parameters.clone()
                clients[answered].receive(newest, rule.version, reply.deviation)
                order.answered(answered, 0)
        return rule.parameters.tolist()

    assert played(lends=True) == played(lends=False)


def test_a_rule_takes_the_steps_of_its_optimizer() -> None:
    rule = sync.make("asynchronous", start(), 1, lambda p: torch.optim.Adam(p, lr=0.01))
    parameter = torch.nn.Parameter(start())
    adam = torch.optim.Adam([parameter], lr=0.01)
    for scale in (1.0, -2.0, 0.5):
        rule.push(0, start() * scale, rule.version)
        parameter.grad = start() * scale
        adam.step()

    assert torch.equal(rule.parameters, parameter.detach())


def test_a_restored_rule_continues_exactly() -> None:
    def make() -> sync.Rule:
        return sync.make("asynchronous", start(), 1, lambda p: torch.optim.Adam(p, lr=0.01))

    before, after = make(), make()
    before.push(0, start(), 0)
    after.load(before.state())
    for rule in (before, after):
        rule.push(0, start() * 3, 1)

    assert torch.equal(before.parameters, after.parameters)
    assert before.version == after.version == 2


def test_a_rule_counts_pushes_fetches_and_bytes() -> None:
    counters = play("semi_async:n=1", 2, [0] * 6 + [1, 1]).rule.counters

    assert vars(counters) == {
        "pushes": 8,
        "withheld_pushes": 0,
        "refused": 0,
        "counted": 7,
        "weak": 0,
        "dropped": 1,
        "fetches": 8,
        "withheld_fetches": 0,
        "bytes_pushed": 64,
        "bytes_fetched": 64,
        "staleness": {0: 7, 6: 1},
    }
    assert counters.staleness_mean == 6 / 8


REFUSED = [
    (2, start(), 0, "client 2 is unknown: there are 2, numbered from 0"),
    (-1, start(), 0, "client -1 is unknown"),
    (1, start(), 0, "client 1 has left"),
    (0, start(), 3, "client 0 pushed for version 3; there are 0 to 0"),
    (0, start(), -1, "client 0 pushed for version -1"),
    (0, start(2), 0, r"client 0 pushed \[2\] of torch.float64; expected \[1\] of torch.float64"),
    (0, start().float(), 0, r"client 0 pushed \[1\] of torch.float32"),
    (0, start() * float("nan"), 0, "client 0 pushed numbers that are NaN or infinite"),
    (0, start() * float("inf"), 0, "client 0 pushed numbers that are NaN or infinite"),
    (0, None, 0, "client 0 pushed nothing, and the rule has no gates"),
]


@pytest.mark.parametrize(("client", "contribution", "version", "message"), REFUSED)
def test_a_bad_push_is_refused_naming_the_client_and_has_no_effect(
    client: int, contribution: torch.Tensor | None, version: int, message: str
) -> None:
    rule = sync.make("asynchronous", start(), 2, sync.sgd(0.1))
    rule.leave(1)

    with pytest.raises(SyncError, match=message):
        rule.push(client, contribution, version)

    assert rule.counters.refused == 1
    assert float(rule.parameters) == 1.0
    assert number(rule.push(0, start(), 0).parameters) == pytest.approx(0.9)


def test_a_waiting_client_can_neither_push_nor_join() -> None:
    rule = sync.make("synchronous", start(), 2)
    rule.push(0, start(), 0)

    with pytest.raises(SyncError, match="client 0 pushed again while it waits"):
        rule.push(0, start(), 0)
    with pytest.raises(SyncError, match="client 0 is here already"):
        rule.join(0)


@pytest.mark.parametrize(
    ("parameters", "clients", "message"),
    [
        (torch.ones(2, 2), 1, r"one flat vector of floats, not \[2, 2\] of torch.float32"),
        (torch.ones(2, dtype=torch.int64), 1, r"not \[2\] of torch.int64"),
        (torch.ones(2), 0, "at least 1 client, not 0"),
    ],
)
def test_bad_arguments_of_a_rule_are_refused(
    parameters: torch.Tensor, clients: int, message: str
) -> None:
    with pytest.raises(SyncError, match=message):
        sync.make("asynchronous", parameters, clients)

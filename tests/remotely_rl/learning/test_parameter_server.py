"""The parameter server on a cluster of processes, compared with the simulator."""

import contextlib
import copy
import functools
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remotely
from remotely_rl import networks, sync
from remotely_rl.errors import TrainingError
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.sync.flat import Flat
from remotely_rl.sync.simulation.dispatcher import EventKind, FixedOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.clusters import wait_until

CLIENTS = 3


class Regression:
    """A small network that learns a function of noise; each worker has its own noise."""

    def __init__(self, number: int):
        torch.manual_seed(0)
        self.flat = Flat(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
        self.random = torch.Generator().manual_seed(number)

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        x = torch.randn(16, 4, generator=self.random)

        def loss() -> Tensor:
            error: Tensor = self.flat.module(x)[:, 0] - x.sum(-1).sin()
            return error.square().mean()

        return self.flat.gradient_at(parameters, loss)

    def report(self) -> int:
        return os.getpid()


class Poisoned(Regression):
    """The second worker pushes NaN, once or always."""

    def __init__(self, number: int, always: bool = False):
        super().__init__(number)
        self.bad = number == 1
        self.always = always
        self.count = 0

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        self.count += 1
        spoilt = self.bad and (self.always or self.count == 2)
        return super().gradient(parameters) * (float("nan") if spoilt else 1.0)


class Dying(Regression):
    """Its process ends in its first piece of work."""

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        os._exit(1)


class Images:
    """The gradient of a given network's values of images."""

    def __init__(self, network: nn.Module, number: int):
        self.flat = Flat(network)
        self.random = torch.Generator().manual_seed(number)

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        obs = torch.randint(0, 255, (4, 4, 42, 42), generator=self.random, dtype=torch.uint8)
        return self.flat.gradient_at(parameters, lambda: self.flat.module(obs)[1].sum())

    def report(self) -> None: ...


def rule_of(word: str) -> sync.Rule:
    return sync.make(word, Regression(0).flat.vector, CLIENTS, sync.sgd(0.05))


@contextlib.contextmanager
def serving(rule: sync.Rule, make: Any = Regression, **options: Any) -> Iterator[ParameterServer]:
    server = ParameterServer(rule, lambda number: Worker(make, number), record=True, **options)
    try:
        yield server
    finally:
        server.close()


def serve(server: ParameterServer, pushes: int) -> list[Any]:
    seen: list[Any] = []
    while len(seen) < pushes:
        pushed = server.take(timeout_s=1.0)
        if pushed is not None:
            seen.append(pushed)
    return seen


def pids_of_workers(server: ParameterServer) -> set[int]:
    """Serve until every client has pushed; return their process ids."""
    processes: set[int] = set()
    while len(processes) < CLIENTS:
        processes.add(serve(server, 1)[0].report)
    return processes


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "word",
    [
        "semi_async:n=2",
        "b_fasgd:gate_push=1,gate_fetch=1",
        "diloco:steps=3",
        *(
            pytest.param(word, marks=pytest.mark.slow)
            for word in (
                "asynchronous",
                "synchronous",
                "elastic_averaging:period=2",
                "delay_compensated",
            )
        ),
    ],
)
def test_a_live_run_replays_bit_for_bit_in_the_simulator(word: str) -> None:
    live = rule_of(word)
    with serving(live) as server:
        serve(server, 40)
        arrivals = server.arrivals

    simulated = rule_of(word)
    works = [Regression(number) for number in range(CLIENTS)]
    simulation = Simulation(
        simulated, lambda client, w: works[client].gradient(w), FixedOrder(arrivals)
    )
    simulation.run(len(arrivals))

    assert torch.equal(simulated.parameters, live.parameters)
    assert vars(simulated.counters) == vars(live.counters)
    assert not torch.equal(live.parameters, Regression(0).flat.vector)


@pytest.mark.usefixtures("local")
def test_local_steps_use_the_learning_rate_of_the_schedule() -> None:
    live, simulated, unscheduled = (rule_of("local_sgd:steps=2") for _ in range(3))
    for rule in (live, simulated):
        rule.set_rate(0.01)
    with serving(live) as server:
        serve(server, 2 * CLIENTS)
        arrivals = server.arrivals

    for rule in (simulated, unscheduled):
        works = [Regression(number) for number in range(CLIENTS)]
        Simulation(rule, lambda client, w: works[client].gradient(w), FixedOrder(arrivals)).run(  # noqa: B023
            len(arrivals)
        )
    assert torch.equal(live.parameters, simulated.parameters)
    assert not torch.equal(live.parameters, unscheduled.parameters)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("word", ["synchronous", "semi_async:n=2"])
def test_a_dead_worker_blocks_no_other_and_is_replaced(word: str) -> None:
    said: list[str] = []
    with serving(rule_of(word), say=said.append) as server:
        before = pids_of_workers(server)
        os.kill(min(before), signal.SIGKILL)
        while EventKind.JOIN not in {event.kind for event in server.arrivals}:
            serve(server, 1)
        after = pids_of_workers(server)

    assert len(before & after) == CLIENTS - 1
    assert any("ended with SIGKILL; it is replaced" in text for text in said)


@pytest.mark.usefixtures("here")
def test_a_worker_that_dies_at_the_end_of_a_run_is_no_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def end_when_all_have_died() -> None:
        with serving(rule_of("synchronous"), Dying):
            wait_until(lambda: not remotely.actors(), "they have died")

    end_when_all_have_died()
    gc.collect()
    assert "never retrieved" not in capfd.readouterr().err


@pytest.mark.usefixtures("local")
def test_a_push_of_nan_is_refused_and_the_run_continues() -> None:
    said: list[str] = []
    with serving(rule_of("synchronous"), Poisoned, say=said.append) as server:
        serve(server, 30)
        rule = server.rule

    assert said == [
        "client 1 pushed numbers that are NaN or infinite; it continues with the current parameters"
    ]
    assert rule.counters.refused == 1
    assert bool(torch.isfinite(rule.parameters).all())


@pytest.mark.usefixtures("local")
def test_a_run_whose_pushes_are_all_refused_ends() -> None:
    def always(number: int) -> Poisoned:
        return Poisoned(1, always=True)

    with (
        serving(rule_of("asynchronous"), always, say=lambda text: None) as server,
        pytest.raises(TrainingError, match="the rule refused 100 pushes in a row: client"),
    ):
        serve(server, 1)


@pytest.mark.usefixtures("here")
def test_work_that_always_raises_ends_training() -> None:
    class Broken(Regression):
        def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
            raise ZeroDivisionError("no")

    # Which actor is last depends on when those join that are requested as the crew grows.
    said = r"crash too often to learn from.* the last: actor \d+ raised: ZeroDivisionError: no"
    with (
        serving(rule_of("asynchronous"), Broken, say=lambda text: None) as server,
        pytest.raises(TrainingError, match=said),
    ):
        serve(server, 1)


@pytest.mark.usefixtures("local")
def test_workers_get_the_servers_broadcast_with_every_call() -> None:
    class Listening(Regression):
        received: list[Any] = []  # noqa: RUF012

        def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
            self.received.append(broadcast)
            return super().gradient(parameters)

    with serving(rule_of("asynchronous"), Listening, broadcast="first") as server:
        for broadcast in range(5):
            server.take(1.0, broadcast)

    assert Listening.received == ["first", "first", "first", 0, 1, 2, 3, 4]


@pytest.mark.usefixtures("here")
def test_a_workers_network_uses_the_given_parameters() -> None:
    network = networks.SmallCNN((4, 42, 42), 6)  # pickling changes its weights' memory layout
    twin = Images(copy.deepcopy(network), 0)
    rule = sync.make("synchronous", twin.flat.vector.clone(), 1, sync.sgd(0.05))
    before = rule.parameters.clone()

    with serving(rule, functools.partial(Images, network)) as server:
        serve(server, 1)

    expected = before - 0.05 * twin.gradient(before)
    torch.testing.assert_close(rule.parameters, expected)

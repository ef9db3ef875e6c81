"""The parameter store: its layout, its optimizer, and chunks that are never torn."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remotely
from remotely_rl import a2c
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.learning import store as stores
from remotely_rl.learning.learner import Learner
from remotely_rl.learning.store import (
    Accumulated,
    ParameterStore,
    Statistics,
    StoreLayout,
    StoreOptimizer,
    in_turn,
)
from tests.clusters import wait_until
from tests.remotely_rl import toys

KINDS: dict[str, stores.MakeOptimizer] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-5, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-5, weight_decay=0.0, fused=True),
    "RMSProp": lambda p: torch.optim.RMSprop(p, lr=1e-2, alpha=0.99, eps=1e-4),
}


@pytest.fixture
def opened() -> Iterator[list[ParameterStore]]:
    """Stores to close."""
    made: list[ParameterStore] = []
    yield made
    for store in made:
        store.close()


def new(opened: list[ParameterStore], parameters: int, moments: int = 2) -> ParameterStore:
    opened.append(ParameterStore(StoreLayout.of([parameters], moments, counters=4)))
    return opened[-1]


def again(opened: list[ParameterStore], store: ParameterStore) -> ParameterStore:
    opened.append(ParameterStore.opened(store.address))
    return opened[-1]


# --- layout and locks -----------------------------------------------------------------------------


def test_chunks_cover_all_parameters_and_slots_do_not_overlap() -> None:
    # floor(100 / 3) + 1 = 34 each.  Cuts 4 and 38 into the second parameter become 0 and 32.
    layout = StoreLayout.of([30, 70], 2, counters=4)
    assert layout.slices == [slice(0, 30), slice(30, 62), slice(62, 100)]
    assert [layout.length(chunk) for chunk in range(3)] == [90, 96, 114]
    # 7 words of counters and indices; then two slots each of 360, 384 and 456 bytes.
    assert [layout.offset(chunk, 0) for chunk in range(3)] == [56, 776, 1544]
    assert layout.offset(2, 1) == 2000
    assert layout.nbytes == 2456


def test_fewer_parameters_than_chunks_leave_chunks_empty(opened: list[ParameterStore]) -> None:
    store = new(opened, 1)
    assert sorted(store.layout.length(chunk) for chunk in range(3)) == [0, 0, 3]
    store.write_all(torch.ones(3, 1))
    assert store.read().tolist() == [[1.0]] * 3


def test_a_locked_chunk_is_retried_after_the_others() -> None:
    now, tries = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def try_lock(chunk: int) -> bool:
        tries.append(chunk)
        return chunk != 0 or now[0] > 1.5e-3  # the first is locked for 1.5 ms

    got = list(in_turn(range(3), try_lock, clock=lambda: now[0], sleep=sleep))
    assert got == [1, 2, 0]
    assert 1e-3 < now[0] < 2e-3  # 1 ms for the first, none for the others, then the rest
    assert tries.count(1) == tries.count(2) == 1


def test_exclusive_locks_exclude_others_and_readers_share(opened: list[ParameterStore]) -> None:
    one = new(opened, 9)
    other = again(opened, one)
    assert one.try_lock(0)
    assert not other.try_lock(0)
    assert not other.try_lock(0, exclusive=False)
    assert other.try_lock(1)
    one.unlock(0)
    assert other.try_lock(0, exclusive=False)
    assert one.try_lock(0, exclusive=False)
    assert not one.try_lock(0)


# --- optimizers -----------------------------------------------------------------------------------


def vector_of(model: nn.Module) -> Tensor:
    return torch.cat([part.detach().flatten() for part in model.parameters()])


def filled(opened: list[ParameterStore], model: nn.Module, moments: int) -> ParameterStore:
    """A store before the first step of a model."""
    vector = vector_of(model)
    store = ParameterStore(
        StoreLayout.of([part.numel() for part in model.parameters()], moments, counters=4)
    )
    opened.append(store)
    store.write_all(torch.cat([vector[None], torch.zeros(moments, len(vector))]))
    return store


def loss_of(model: nn.Module, seed: int) -> Any:
    torch.manual_seed(seed)
    policy, value = model(torch.randn(5, 2))
    return policy.square().mean() + value.square().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_one_learner_on_a_store_matches_the_plain_optimizer_bit_for_bit(
    kind: str, opened: list[ParameterStore]
) -> None:
    plain, shared = toys.network(), toys.network()
    store = filled(opened, shared, moments=1 if kind == "RMSProp" else 2)
    optimizers: list[Any] = [
        KINDS[kind](list(plain.parameters())),
        StoreOptimizer(list(shared.parameters()), store, KINDS[kind]),
    ]
    for step in range(20):
        for model, optimizer in zip((plain, shared), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (1 + step)
            optimizer.step()
    assert torch.equal(toys.weights(plain), toys.weights(shared))
    assert torch.equal(store.read()[0], vector_of(shared))


@pytest.mark.parametrize("every", [2, 3, 4])
def test_pushing_every_k_steps_matches_plain_adam(every: int, opened: list[ParameterStore]) -> None:
    plain, shared = toys.network().double(), toys.network()
    store = filled(opened, shared, 2)
    optimizers: list[Any] = [
        torch.optim.Adam(plain.parameters(), lr=1e-2, eps=1e-5),
        StoreOptimizer(list(shared.parameters()), store, KINDS["Adam"], every),
    ]
    for number in range(12):
        for model, optimizer in zip((plain, shared), optimizers, strict=True):
            random = torch.Generator().manual_seed(number)
            for parameter in model.parameters():
                gradient = torch.randn(parameter.shape, generator=random)
                parameter.grad = gradient.to(parameter.dtype)
            optimizer.step()
    torch.testing.assert_close(store.read()[0], vector_of(plain).float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(store.read()[0], vector_of(shared))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_accumulated_adam_steps_match_hand_worked_numbers(k: int) -> None:
    # Gradients 1, -0.5 and 2 from p = 1, lr 0.1; this Adam adds its epsilon of 1e-5 to the root of
    # the uncorrected second moment, and corrects both moments' bias in the rate.
    p, m, v = 1.0, 0.0, 0.0
    shared = [torch.tensor([x], dtype=torch.float64) for x in (p, m, v)]
    local = Accumulated(0.9, 0.999)
    for t, gradient in enumerate((1.0, -0.5, 2.0), 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        step = -rate * m / (math.sqrt(v) + 1e-5)
        p += step
        local.add(*(torch.tensor([x], dtype=torch.float64) for x in (step, gradient)))
        if t % k == 0 or t == 3:
            shared, local = local.merged(*shared), local.cleared()
    found = [float(x) for x in shared]
    assert found == pytest.approx([p, m, v], abs=1e-15)
    assert found == pytest.approx([0.8076033663, 0.236, 0.00524775100], abs=1e-9)


def test_the_steps_of_two_learners_add_up(opened: list[ParameterStore]) -> None:
    # RMSProp with decay 0 moves by lr each time.
    store = new(opened, 6, moments=1)
    models = [nn.Linear(5, 1) for _ in range(2)]
    store.write_all(torch.zeros(2, 6))
    make: stores.MakeOptimizer = lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=0.0, eps=0.0)
    learners = [
        StoreOptimizer(list(model.parameters()), one, make)
        for model, one in zip(models, (store, again(opened, store)), strict=True)
    ]
    for number in (0, 1, 0):
        for parameter in models[number].parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        learners[number].step()
    assert store.read()[0].tolist() == pytest.approx([-0.3] * 6)
    assert vector_of(models[1]).tolist() == pytest.approx([-0.2] * 6)  # its own last write
    learners[1].pull()
    assert vector_of(models[1]).tolist() == pytest.approx([-0.3] * 6)


def test_learners_share_statistics_and_value_scale(opened: list[ParameterStore]) -> None:
    config = a2c.Config(env=toys.Guess, device="cpu", reward_clip=0.0)
    alone, *both = [Learner(config, toys.network(), Discrete(2)) for _ in range(3)]
    counted = Statistics.of(alone)
    opened.append(ParameterStore(StoreLayout.of([len(counted)], 0, chunks=1)))
    opened[0].write_all(counted[None])
    for learner, store in zip(both, (opened[0], again(opened, opened[0])), strict=True):
        learner.statistics = Statistics(store)
    random = torch.Generator().manual_seed(1)
    for learner in (*both, *both):
        obs, targets = torch.rand(14, 2, generator=random), torch.rand(14, generator=random)
        for one in (learner, alone):
            one.count_observations(obs)
            one.count_values(targets, targets)
    assert torch.equal(Statistics.of(both[1]), Statistics.of(alone))  # it counted last
    assert torch.equal(opened[0].value(0)[0], Statistics.of(alone))
    assert not torch.equal(Statistics.of(both[0]), Statistics.of(alone))


# --- processes ------------------------------------------------------------------------------------


def push_constants(address: stores.Address, number: int, pushes: int) -> None:
    """Write constant vectors repeatedly; count pushes and torn chunks."""
    store = ParameterStore.opened(address)
    done = 0
    while done < pushes or not pushes:
        for chunk in store.each():
            seen = store.value(chunk)
            if not bool((seen == seen[0, 0]).all()):
                store.counters[3] += 1
            store.write(chunk, torch.full_like(seen, float(1000 * number + done % 1000)))
        done += 1
        store.counters[number] = done


@remotely.remote_class
class Pusher:
    """A process that only pushes."""

    def pid(self) -> int:
        return os.getpid()

    def push(self, address: stores.Address, number: int, pushes: int) -> None:
        push_constants(address, number, pushes)


@pytest.mark.usefixtures("own_cluster")
@pytest.mark.parametrize(
    "pushes", [100, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_concurrent_pushes_never_tear_a_chunk(pushes: int, opened: list[ParameterStore]) -> None:
    store = new(opened, 3_000, moments=1)
    pushers = [Pusher(), Pusher()]
    calls = [
        remotely.submit(pusher.push, store.address, number, pushes)
        for number, pusher in enumerate(pushers)
    ]
    over = False
    while not over:
        over = all(call.done() for call in calls)
        for chunk in store.each(exclusive=False):
            seen = store.value(chunk)
            assert bool((seen == seen[0, 0]).all())
    for call in calls:
        call.result()
    assert store.counters.tolist() == [pushes, pushes, 0, 0]


@pytest.mark.usefixtures("own_cluster")
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.chaos)])
def test_a_learner_killed_under_a_lock_blocks_no_other(
    kills: int, opened: list[ParameterStore]
) -> None:
    store = new(opened, 3_000, moments=1)
    survivor = Pusher()
    pushing = remotely.submit(survivor.push, store.address, 0, 0)
    random = torch.Generator().manual_seed(kills)
    try:
        for _ in range(kills):
            victim = Pusher()
            pid = victim.pid()
            call = remotely.submit(victim.push, store.address, 1, 0)
            before = int(store.counters[1])
            wait_until(lambda: store.counters[1] != before, "it pushes")  # noqa: B023
            time.sleep(float(torch.rand(1, generator=random)) * 1e-3)
            os.kill(pid, signal.SIGKILL)  # almost always while it holds a lock
            with pytest.raises(remotely.ActorDied):
                call.result()
            after = int(store.counters[0])
            wait_until(lambda: store.counters[0] >= after + 3, "the other continues")  # noqa: B023
        assert store.counters[3] == 0
    finally:
        remotely.kill(survivor)
        assert pushing.exception() is not None
    for chunk in store.each():
        seen = store.value(chunk)
        assert bool((seen == seen[0, 0]).all())


def test_a_waiting_thread_gets_the_chunk_when_it_is_unlocked(opened: list[ParameterStore]) -> None:
    one = new(opened, 30)
    other = again(opened, one)
    assert one.try_lock(1)
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.extend(other.each()))
    waiting.start()
    wait_until(lambda: len(got) == 2, "it has the unlocked chunks")
    one.unlock(1)
    waiting.join()
    assert got == [0, 2, 1]

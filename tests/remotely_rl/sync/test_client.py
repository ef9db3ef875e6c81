"""Tests of Client, on a worked example of accumulated asynchronous updates.

Two workers take two epochs of three steps each, on x = 0, 1, 2; y = w x, squared error to 10 + x,
rate 1, initially w = 2.  The sum of the gradients at w is 10 w - 70.
"""

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from remotely_rl import sync
from remotely_rl.sync.client import Client
from tests.remotely_rl.sync.quadratic import number

PULL, PUSH = "pull", "push"


def gradient(w: Tensor, x: int, target: int) -> Tensor:
    return 2 * x * (w * x - target)


class Worker:
    """A client that pulls the newest parameters at the start of an epoch."""

    def __init__(self, rule: sync.Rule, number: int, constant: bool):
        self.rule = rule
        self.client = Client(number, rule.parameters, rule.version, accumulate=3)
        self.constant = constant
        self.seen: list[float] = []

    def pull(self) -> None:
        self.client.receive(self.rule.parameters, self.rule.version, 1.0)

    def push(self) -> None:
        xs = itertools.count()

        def next_gradient(w: Tensor) -> Tensor:
            x = next(xs)
            g = gradient(w, x, 10 if self.constant else 10 + x)
            self.seen.append(float(g))
            return g

        contribution = self.client.next_push(next_gradient)
        self.rule.push(self.client.number, contribution, self.client.version)


def interleave(order: str, constant: bool = False) -> tuple[list[float], list[Worker]]:
    """`order` has the worker of each event; a worker alternates between pull and push."""
    rule = sync.make("asynchronous", torch.tensor([2.0]), 2, sync.sgd(1.0))
    workers = [Worker(rule, number, constant) for number in (0, 1)]
    turns = [itertools.cycle((PULL, PUSH)) for _ in workers]
    shared = []
    for worker in map(int, order):
        if next(turns[worker]) is PULL:
            workers[worker].pull()
        else:
            workers[worker].push()
            shared.append(float(rule.parameters))
    return shared, workers


def test_the_worked_example() -> None:
    shared, workers = interleave("01001101")

    assert shared == [52, 102, -348, -1298]
    assert workers[0].seen == [0, -18, -32, 0, 82, 368]
    assert workers[1].seen == [0, -18, -32, 0, 182, 768]
    assert interleave("01001101", constant=True)[0] == [42, 82, -278, -1038]
    assert interleave("00001111")[0] == [52, -398, 3652, -32798]  # plain descent


def test_all_seventy_interleavings_have_the_expected_outcomes() -> None:
    outcomes = Counter(
        interleave("".join("0" if place in chosen else "1" for place in range(8)))[0][-1]
        for chosen in itertools.combinations(range(8), 4)
    )

    assert outcomes == {-32798: 6, -1798: 16, -1298: 8, 3202: 16, 7702: 24}


def test_a_sum_of_gradients_is_the_gradient_of_the_sum() -> None:
    client = Client(0, torch.tensor([3.0]), 0, accumulate=3)
    xs = itertools.count()

    total = client.next_push(lambda w: gradient(w, x := next(xs), 10 + x))

    assert number(total) == 10 * 3 - 70


def test_accumulation_does_not_modify_the_first_gradient() -> None:
    kept = torch.ones(1)
    client = Client(0, torch.ones(1), 0, accumulate=2)

    assert number(client.next_push(lambda w: kept)) == 2.0
    assert float(kept) == pytest.approx(1.0)

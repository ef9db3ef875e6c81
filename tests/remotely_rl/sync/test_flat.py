"""Tests of Flat."""

import copy

import pytest
import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.sync.flat import Flat


def test_a_flattened_model_computes_the_same_and_its_vector_is_its_parameters() -> None:
    torch.manual_seed(0)
    model = networks.SmallCNN((4, 42, 42), 6)
    obs = torch.randint(0, 255, (3, 4, 42, 42), dtype=torch.uint8)
    before = copy.deepcopy(model)

    flat = Flat(model)

    for ours, theirs in zip(model(obs), before(obs), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(flat.vector) == sum(part.numel() for part in before.parameters())
    flat.load(torch.zeros_like(flat.vector))
    assert not any(bool(part.any()) for part in model.parameters())


def test_the_gradient_is_in_the_order_of_the_vector() -> None:
    torch.manual_seed(0)
    model = networks.SmallCNN((4, 42, 42), 6)
    twin = copy.deepcopy(model)
    flat = Flat(model)
    obs = torch.randint(0, 255, (3, 4, 42, 42), dtype=torch.uint8)

    gradient = flat.gradient_at(flat.vector.clone(), lambda: model(obs)[1].sum())
    flat.load(flat.vector - 0.1 * gradient)

    twin(obs)[1].sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_vector_does_not_depend_on_the_memory_format() -> None:
    model = networks.SmallCNN((4, 42, 42), 6)
    sent = copy.deepcopy(model)
    for part in sent.parameters():
        part.data = part.data.contiguous()
    obs = torch.randint(0, 255, (3, 4, 42, 42), dtype=torch.uint8)
    assert not all(part.is_contiguous() for part in model.parameters()), "some are channels last"
    here, there = Flat(model), Flat(sent)

    there.load(here.vector * 2)
    here.load(here.vector * 2)

    for ours, theirs in zip(model(obs), sent(obs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_gradient_is_a_copy_with_a_clipped_norm() -> None:
    flat = Flat(nn.Linear(3, 1, bias=False))

    first = flat.gradient_of(
        flat.module(torch.ones(1, 3)).sum() * 100,
        lambda: nn.utils.clip_grad_norm_(flat.module.parameters(), 0.5),
    )
    kept = first.clone()
    flat.gradient_of(flat.module(torch.zeros(1, 3)).sum())

    assert torch.equal(first, kept)
    assert float(first.norm()) == pytest.approx(0.5)


def test_an_unused_parameter_has_a_gradient_of_zero() -> None:
    module = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    flat = Flat(module)

    gradient = flat.gradient_of(module[0](torch.ones(1, 2)).sum())

    assert gradient.tolist() == [1, 1, 1, 0, 0, 0]

"""Tests of Batch: minibatches, and running a model."""

import pytest
import torch
from torch import Tensor

from remotely_rl.experience.batch import Batch, RecurrentInput, Transitions
from remotely_rl.experience.masked_rows import MaskedRows


def numbered(rows: int) -> Batch:
    """Return transitions whose columns are their numbers."""
    number = torch.arange(rows)
    column = number.float()
    return Batch(column[:, None], Transitions(number, column, column, column, column))


def numbered_pieces(steps: int, width: int) -> Batch:
    """Return recurrent transitions numbered 100 * step + environment."""
    number = 100 * torch.arange(steps)[:, None] + torch.arange(width)
    column = number.float()
    rows = MaskedRows((number // 100 + number) % 5 > 0)  # some of each environment
    memory = RecurrentInput(torch.arange(width).float()[:, None], number % 3 == 0, rows)
    return Batch(column[..., None], Transitions(number, column, column, column, column), memory)


@pytest.mark.parametrize(("rows", "count"), [(8, 4), (10, 4), (9, 4), (7, 7), (3, 8), (1, 1)])
def test_minibatches_have_every_row_once(rows: int, count: int) -> None:
    parts = list(numbered(rows).minibatches(count, torch.Generator()))
    met = torch.cat([part.transitions.action for part in parts])
    assert sorted(met.tolist()) == list(range(rows))
    sizes = [len(part.obs) for part in parts]
    assert len(sizes) == min(rows, count)
    assert max(sizes) - min(sizes) <= 1
    for part in parts:  # columns stay with their observation
        assert torch.equal(part.obs[:, 0], part.transitions.action.float())
        assert all(torch.equal(part.obs[:, 0], column) for column in part.transitions[1:])


@pytest.mark.parametrize(("width", "count"), [(8, 4), (10, 4), (9, 4), (3, 8)])
def test_recurrent_minibatches_have_whole_sequences(width: int, count: int) -> None:
    parts = list(numbered_pieces(5, width).minibatches(count, torch.Generator()))
    met = torch.cat([part.transitions.action[0] for part in parts])
    assert sorted(met.tolist()) == list(range(width))
    sizes = [part.obs.shape[1] for part in parts]
    assert len(sizes) == min(width, count)
    assert max(sizes) - min(sizes) <= 1
    whole = numbered_pieces(5, width)
    assert whole.recurrent is not None
    for part in parts:
        which = part.transitions.action[0]
        assert part.recurrent is not None
        assert torch.equal(part.obs, whole.obs[:, which])  # time is not shuffled
        assert torch.equal(part.recurrent.state, whole.recurrent.state[which])
        assert torch.equal(part.recurrent.begins, whole.recurrent.begins[:, which])
        assert torch.equal(part.recurrent.rows.valid, whole.recurrent.rows.valid[:, which])


def test_no_recurrent_minibatch_is_without_experience() -> None:
    whole = numbered_pieces(5, 4)
    assert whole.recurrent is not None
    mask = torch.zeros(5, 4, dtype=torch.bool)
    mask[2, 1] = mask[:, 3] = True
    whole = whole._replace(recurrent=whole.recurrent._replace(rows=MaskedRows(mask)))
    parts = list(whole.minibatches(4, torch.Generator()))
    met = [part.transitions.action[0].tolist() for part in parts]
    assert sorted(met) == [[1], [3]]
    assert [len(part.transition_rows.action) for part in parts] in ([1, 5], [5, 1])


def test_minibatches_differ_each_time() -> None:
    random = torch.Generator()
    one, other = (
        next(iter(numbered(100).minibatches(2, random))).transitions.action for _ in range(2)
    )
    assert not torch.equal(one, other)


def test_a_recurrent_model_runs_over_sequences_and_returns_valid_rows() -> None:
    batch = numbered_pieces(4, 3)
    seen: list[tuple[Tensor, ...]] = []

    def model(*asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(asked)
        obs, state, _ = asked
        return obs.expand(-1, -1, 2), obs[..., 0], state

    policy, value, rows = batch.forward(model)
    assert batch.recurrent is not None
    ((obs, state, begins),) = seen
    assert obs is batch.obs
    assert state is batch.recurrent.state
    assert begins is batch.recurrent.begins
    valid = batch.recurrent.rows.select(batch.transitions.action)
    assert 0 < len(valid) < 12
    assert torch.equal(rows.action, valid)
    assert torch.equal(value, valid.float())
    assert torch.equal(policy[:, 1], valid.float())

"""Tests of MaskedRows: the rows that are experience, of arrays and of tensors."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import remotely_rl
from remotely_rl.experience.masked_rows import MaskedRows, repeat_unread

VALID = np.array([[True, False, True], [False, False, True]])


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_only_rows_of_experience_are_selected_counted_and_split(kind: Any) -> None:
    rows = MaskedRows(kind(VALID))
    field = kind(np.arange(6.0).reshape(2, 3))
    assert rows.select(field).tolist() == [0.0, 2.0, 5.0]
    observed = {"a": kind(np.arange(9.0).reshape(3, 3))}  # one more, to bootstrap from
    assert rows.select(observed)["a"].tolist() == [0.0, 2.0, 5.0]
    assert rows.count == 3
    assert rows.columns.tolist() == [0, 2]
    assert (rows.minibatches_in(False), rows.minibatches_in(True)) == (3, 2)
    assert rows.of([1, 2]).count == 2


def test_fields_of_other_rows_are_filled_with_zeros() -> None:
    rows = MaskedRows(torch.from_numpy(VALID))
    filled = rows.fill(torch.full((2, 3, 1), torch.nan).masked_fill(rows.valid[..., None], 7.0))
    assert filled[..., 0].tolist() == [[7, 0, 7], [0, 0, 7]]


def test_an_observation_is_kept_if_a_row_acts_on_it_or_bootstraps_from_it() -> None:
    rows = MaskedRows(torch.from_numpy(VALID))
    terminated = torch.tensor([[True, False, False], [False, True, False]])
    obs = torch.ones(3, 3)
    assert rows.fill_read(obs, terminated).tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert rows.fill_read(obs, ~terminated & False).tolist() == [[1, 0, 1], [1, 0, 1], [0, 0, 1]]
    numbers = obs.long()
    assert rows.fill_read(numbers, terminated) is numbers


def test_steps_that_do_not_bootstrap_have_their_own_observation_for_the_next() -> None:
    obs = {"a": np.array([[1.0], [2.0]]), "b": np.array([[3], [4]])}
    next_obs = {"a": np.array([[5.0], [np.nan]]), "b": np.array([[6], [1_000_000]])}
    repeat_unread(next_obs, obs, np.array([0.9, 0.0], np.float32))
    assert next_obs["a"].tolist() == [[5.0], [2.0]]
    assert next_obs["b"].tolist() == [[6], [4]]


PACKAGE = Path(remotely_rl.__file__).parent
MAKERS = ("environments/contract.py", "acting/player.py")


def uses_of_a_mask(file: Path) -> Iterator[int]:
    tree = ast.parse(file.read_text())
    # Recursions in time: returns.gae(..., valid=rollout.valid).
    passed = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "valid"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "valid" and id(node) not in passed:
            yield node.lineno


def test_no_other_package_looks_at_the_mask() -> None:
    outside = [
        f"{name}:{line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if not (name := file.relative_to(PACKAGE).as_posix()).startswith(("experience/", *MAKERS))
        for line in uses_of_a_mask(file)
    ]
    assert outside == []

"""The explained surviving mutants are mutations of existing lines."""

import tomllib
from pathlib import Path

import pytest

from tools import mutation

SURVIVORS = tomllib.loads(mutation.REASONS.read_text())["survivor"]


@pytest.mark.parametrize("one", SURVIVORS, ids=lambda one: f"{one['file']}: {one['becomes'][:40]}")
def test_every_explained_survivor_is_a_mutation_of_an_existing_line(one: dict[str, str]) -> None:
    lines = [line.strip() for line in (mutation.ROOT / one["file"]).read_text().splitlines()]
    assert one["was"] in lines
    assert one["becomes"] not in lines


def test_outcomes_are_grouped_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = tmp_path / "remotely" / "protocol" / "wire.py.meta"
    meta.parent.mkdir(parents=True)
    meta.write_text('{"exit_code_by_key": {"a": 1, "b": 0, "c": null}}')
    monkeypatch.setattr(mutation, "MUTANTS", tmp_path)
    assert mutation.outcomes() == {"remotely/protocol/wire.py": {"a": 1, "b": 0}}

"""Each of Savina's programs, small, finds its answer on remotely."""

import asyncio
import importlib
from typing import Any

import pytest

from tools.bench_savina import PROGRAMS, systems
from tools.bench_savina.play import WrongAnswer, play


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_play_of_a_program_has_the_right_answer(any_cluster: Any, name: str) -> None:
    program = importlib.import_module(f"tools.bench_savina.programs.{name}")
    assert asyncio.run(play(program, program.SIZES.quick)) > 0


def test_a_wrong_answer_is_an_error(any_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = importlib.import_module("tools.bench_savina.programs.ping_pong")
    monkeypatch.setattr(program, "expected", lambda pings: pings + 1)
    with pytest.raises(WrongAnswer, match="20 instead of 21"):
        asyncio.run(play(program, program.SIZES.quick))


def test_every_program_is_measured_on_every_system() -> None:
    assert list(systems.PARTS) == list(PROGRAMS)
    assert all(by_system.keys() == systems.SYSTEMS.keys() for by_system in systems.PARTS.values())

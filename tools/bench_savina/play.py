"""A turn of a program: a small play, and then one as large as asked; each answer is checked."""

import asyncio
import importlib
import os
import sys
import time
from types import ModuleType

from tools.bench.stopwatch import report
from tools.bench_savina import ON


class WrongAnswer(Exception):
    """A program returned another answer than it must: a message was lost, doubled or overtaken."""


def main(system: str) -> None:
    """Play the program that the command line names, on a system; report its seconds."""
    os.environ[ON] = system
    name, *words = sys.argv[1:]
    program = importlib.import_module(f"tools.bench_savina.programs.{name}")
    asyncio.run(_turn(name, program, "--quick" in words))


async def _turn(name: str, program: ModuleType, is_quick: bool) -> None:
    from tools.bench_savina.words import running  # noqa: PLC0415 - `main` names the system first

    async with running():
        await play(program, program.SIZES.quick)
        size = program.SIZES.quick if is_quick else program.SIZES.full
        report(**{f"{name}_s": await play(program, size)})


async def play(program: ModuleType, size: dict[str, int]) -> float:
    """Return the seconds of a play, without those in which its actors were made."""
    actors = await program.prepare(**size)
    begin = time.perf_counter()
    answer = await program.play(*actors, **size)
    seconds = time.perf_counter() - begin
    if answer != (expected := program.expected(**size)):
        raise WrongAnswer(f"{answer!r:.200} instead of {expected!r:.200}")
    return seconds

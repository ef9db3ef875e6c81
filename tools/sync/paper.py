"""The experiments of the FASGD paper (Odena 2016), on pictures of the same make.

Section 3: (batch, clients) of (1, 128), (4, 32), (8, 16), (32, 4); then 250 to 10,000 clients;
then gates before fetches and before pushes.  The paper's rates, chosen by it for all four
combinations: FASGD 0.005, SASGD 0.04; staleness divided by tau + 1 and weights from N(0, 1), as
its code has it.
"""

import dataclasses
from typing import NamedTuple

from remotely_rl.sync.study import Study

FASGD = "fasgd:mode=fred,deviation_start=0,at_zero=plus1,rate=0.005"
SASGD = "sasgd:at_zero=plus1,rate=0.04"
PAPER = Study(iterations=100_000, every=1000, init="normal", hidden=200)
COMBINATIONS = ((1, 128), (4, 32), (8, 16), (32, 4))
MANY = (250, 500, 1000, 10_000)
GATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)


class Run(NamedTuple):
    """A simulation: the figure and the panel that it belongs to, its line, what is simulated."""

    figure: str
    panel: str
    word: str
    study: Study


def runs() -> list[Run]:
    """All of them, the long ones first."""
    return [*_many(), *_combinations(), *_gates()]


def _many() -> list[Run]:
    return [
        Run(
            "clients", f"{clients} clients", word,
            dataclasses.replace(PAPER, clients=clients, batch=128),
        )
        for clients in reversed(MANY)
        for word in (FASGD, SASGD)
    ]  # fmt: skip


def _combinations() -> list[Run]:
    return [
        Run(
            "combinations", f"batch {batch}, {clients} clients", word,
            dataclasses.replace(PAPER, clients=clients, batch=batch),
        )
        for batch, clients in reversed(COMBINATIONS)
        for word in (FASGD, SASGD)
    ]  # fmt: skip


def _gates() -> list[Run]:
    study = dataclasses.replace(PAPER, clients=16, batch=8)
    return [
        Run("gates", f"gate before {what}", f"{FASGD},gate_{what}={weight}", study)
        for what in ("fetch", "push")
        for weight in GATES
    ]

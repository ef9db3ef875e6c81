"""Random generators that a fork would duplicate, and how each is seeded anew.

Actors are forks of a process that has imported the heavy modules.  So a generator that a module
keeps, and has seeded at its import, has the same state in each actor: without `renew`, all actors
of a machine would draw the same numbers.

DEFAULTS lists them, each with the module that has it.  A module that is not loaded when an actor
starts seeds its own generator when the actor imports it, and is not imported here.  Not in the
list, and tested as well (tests/remotely/actor/test_generators.py):

    secrets, uuid, ssl, `numpy.random.default_rng()`     draw from the kernel, or notice a fork
    `tempfile`, gymnasium, numba                         likewise
    hypothesis, tensorflow, cupy                         seed their generators at the first draw
    torch on GPUs                                        likewise: the generators exist once CUDA is
                                                         initialised, which the zygote never does
"""

import os
import sys
from collections.abc import Callable
from typing import Any

DEFAULTS: dict[str, Callable[[Any], object]] = {
    "random": lambda module: module.seed(),
    "numpy.random": lambda module: module.seed(),
    # Not `torch.seed()`, which takes ten times as long to queue the same for each kind of GPU.
    "torch": lambda module: module.default_generator.seed(),
    "cv2": lambda module: module.setRNGSeed(int.from_bytes(os.urandom(4)) >> 1),
    "sympy.core.random": lambda module: module.rng.seed(),
}


def renew() -> None:
    """Seed the generators of the loaded modules anew.  Takes microseconds, and imports nothing."""
    for name, seed in DEFAULTS.items():
        if (module := sys.modules.get(name)) is not None:
            seed(module)

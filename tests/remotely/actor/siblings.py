"""Forks twice, as the zygote does, and prints what each process draws from each generator.

Run as `python -m tests.remotely.actor.siblings`.  It has imported all that is installed of DRAWS.
"""

import importlib
import importlib.util
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

from remotely.actor import generators


def by_numba(module: Any) -> Any:
    import numpy as np  # that of numba

    return module.njit(lambda: np.random.random())()


def by_hypothesis(module: Any) -> Any:
    found: list[int] = []

    def draw(number: int) -> None:
        found.append(number)

    # On servers of continuous integration it draws the same for all, unless it is told not to.
    settings = module.settings(max_examples=10, database=None, deadline=None, derandomize=False)
    settings(module.given(module.strategies.integers(2**32, 2**62))(draw))()
    return found[1:]  # the first is the simplest


def by_torch(torch: Any) -> Any:
    return [*torch.rand(2).tolist(), torch.randperm(9).tolist(), torch.nn.Linear(1, 1).bias.item()]


def by_numpy(module: Any) -> Any:
    return [*module.rand(2), *module.default_rng().random(2), *module.RandomState().rand(2)]


def by_cv2(module: Any) -> Any:
    return module.randu(importlib.import_module("numpy").zeros(8), 0, 1).tolist()


DRAWS: dict[str, Callable[[Any], Any]] = {
    "random": lambda module: module.random(),
    "numpy.random": by_numpy,
    "torch": by_torch,
    "cv2": by_cv2,
    "sympy.core.random": lambda module: module.random(),
    "gymnasium": lambda module: module.spaces.Box(0, 1, (2,)).sample().tolist(),
    "tensorflow": lambda module: module.random.uniform([2]).numpy().tolist(),
    "numba": by_numba,
    "cupy": lambda module: module.random.rand(2).tolist(),
    "hypothesis": by_hypothesis,
    "secrets": lambda module: module.token_hex(8),
    "uuid": lambda module: [str(module.uuid1()), str(module.uuid4())],
    "ssl": lambda module: module.RAND_bytes(8).hex(),
    "tempfile": lambda module: module.mktemp(),
}
# Nothing that the zygote imports draws from these, so the first draw comes after the fork.
UNUSED = {"hypothesis", "tensorflow", "cupy"}


def installed(name: str) -> bool:
    return importlib.util.find_spec(name.partition(".")[0]) is not None


def drawn(modules: dict[str, Any]) -> dict[str, str]:
    return {name: str(DRAWS[name](module)) for name, module in modules.items()}


def sibling(modules: dict[str, Any]) -> dict[str, str]:
    """Return what a fork draws."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            generators.renew()
            os.write(writer, json.dumps(drawn(modules)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


def main() -> None:
    warnings.simplefilter("ignore")
    modules = {name: importlib.import_module(name) for name in DRAWS if installed(name)}
    used = {name: module for name, module in modules.items() if name not in UNUSED}
    print(json.dumps([drawn(used), sibling(modules), sibling(modules), drawn(modules)]))


if __name__ == "__main__":
    main()

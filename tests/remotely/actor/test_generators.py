"""Two forks of one process draw different random numbers, whatever they draw them with."""

import json
import subprocess
import sys

from remotely.actor.generators import DEFAULTS
from tests.remotely.actor.siblings import DRAWS


def test_two_forks_of_one_process_draw_nothing_alike() -> None:
    siblings = [sys.executable, "-m", "tests.remotely.actor.siblings"]
    run = subprocess.run(siblings, capture_output=True, text=True, check=True)

    by_process = json.loads(run.stdout)

    alike = {
        name
        for name in by_process[1]
        if len({found[name] for found in by_process if name in found})
        < sum(name in found for found in by_process)
    }
    assert not alike
    assert by_process[1].keys() >= {"random", "numpy.random", "torch", "secrets"}


def test_each_generator_that_is_seeded_anew_is_drawn_from_in_that_test() -> None:
    assert DEFAULTS.keys() <= DRAWS.keys()

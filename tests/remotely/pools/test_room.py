"""How many processes fit on a machine, going by what it says is free."""

from typing import Any

import pytest

from remotely.engine import Options
from remotely.machine import this_machine
from remotely.pools.room import places
from remotely.reporting.cluster_status import MachineStatus


def a_machine(**free: Any) -> MachineStatus:
    fields: dict[str, Any] = {
        **dict.fromkeys(("worker", "machine", "host", "address"), "one"),
        "python": this_machine.PYTHON,
        **dict.fromkeys(("cpus", "free_cpus"), 16.0),
        **dict.fromkeys(("gpus", "free_gpus"), 2),
        **dict.fromkeys(("memory", "free_memory"), 1 << 40),
    }
    return MachineStatus(**{**fields, **free})


@pytest.mark.parametrize(
    ("free", "options", "count"),
    [
        ({}, {"cpus": 3}, 5),
        ({"free_cpus": 0.3}, {"cpus": 0.1}, 3),
        ({"free_cpus": -1.0}, {}, 0),
        ({}, {"memory": 1 << 38}, 4),
        ({"python": "2.7"}, {}, 0),
        ({"free_resources": {"license": 2.0}}, {"resources": {"license": 1}}, 2),
        ({}, {"resources": {"license": 1}}, 0),
        ({}, {"gpus": 1}, 2),
        ({}, {"gpus": 0.6}, 2),
        ({"free_gpus": 1.4}, {"gpus": 0.4}, 3),
        ({"free_gpus": 0.5}, {"gpus": 0.6}, 0),
        ({}, {"cpus": 0}, 16),
    ],
)
def test_as_many_fit_as_the_scarcest_allows(
    free: dict[str, Any], options: dict[str, Any], count: int
) -> None:
    assert places([a_machine(**free)], Options(**options)) == count

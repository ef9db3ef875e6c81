"""What a machine offers."""

import pytest

from remotely.machine import this_machine

GIB = 1 << 30


@pytest.mark.parametrize(
    ("there", "offered"), [(20 * GIB, 19 * GIB), (40 * GIB, 38 * GIB), (512 * GIB, 510 * GIB)]
)
def test_some_memory_is_kept_for_the_system(there: int, offered: int) -> None:
    assert this_machine.memory_for_actors(there) == offered

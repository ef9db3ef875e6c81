"""A short played week (`tests/chaos/weeks.py` has the long one)."""

import pytest

from tests.chaos.weeks import Week


@pytest.mark.parametrize("seed", [4, 6])  # both once lost names: a maker was not told of deaths
def test_no_name_is_lost_or_double_whatever_happens_to_machines(seed: int) -> None:
    week = Week(seed, machines=10, actors=100)
    week.play(days=1, events_a_day=150)
    assert week.wrong == []
    assert week.counts["master restarts"] == 6

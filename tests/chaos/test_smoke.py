"""A little of every kind of chaos, in each run of the tests; `make chaos` does more."""

import pytest

from tests.chaos.__main__ import TRIALS


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("trial", "n"),
    [
        ("kill actor", 10), ("kill worker", 2), ("decoder", 20_000), ("admitted peers", 500),
        ("raw bytes", 100), ("strangers", 2), ("births", 60), ("calls", 20_000), ("interrupts", 3),
    ],
)  # fmt: skip
def test_nothing_is_lost_run_twice_or_left_behind(
    nothing_left: None, trial: str, n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert TRIALS[trial].run(n, 1, tmp_path_factory.mktemp("chaos")).wrong == []

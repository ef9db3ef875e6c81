"""A little of every kind of chaos, in each run of the tests; `make chaos` does more."""

from pathlib import Path

import pytest

from tests.chaos import fuzz
from tests.chaos.acts import run


@pytest.mark.timeout(110)
@pytest.mark.parametrize(("act", "n"), [("kill actor", 10), ("kill worker", 2)])
def test_no_call_is_lost_or_run_twice_whoever_is_killed(
    act: str, n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    figure = run(act, n, seed=1, folder=tmp_path_factory.mktemp("chaos") / "stage")
    assert figure.verdict.anomalies == []
    assert figure.left == {}
    assert figure.verdict.outcomes["value"] > 100


def test_bytes_that_nobody_meant_harm_no_decoder() -> None:
    assert fuzz.decoder(20_000, seed=1).wrong == []


@pytest.mark.parametrize(("fuzzer", "n"), [("admitted", 500), ("raw", 100), ("strangers", 2)])
def test_bytes_that_nobody_meant_harm_no_port(fuzzer: str, n: int, tmp_path: Path) -> None:
    _, run_fuzzer = fuzz.FUZZERS[fuzzer]
    assert run_fuzzer(n, 1).wrong == []

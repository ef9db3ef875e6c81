"""That agents learn, through real actors."""

from pathlib import Path

import pytest

from remotely_rl import impala, metrics


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("embedded")
def test_impala_balances_a_pole(tmp_path: Path) -> None:
    config = impala.Config(env="CartPole-v1", target=400.0, minutes=4.0)
    result = impala.train(config, run=tmp_path / "run")
    assert result.return_mean >= 400.0, result.ended
    rows = metrics.read(tmp_path / "run" / "metrics.csv")
    assert max(row["staleness_max"] for row in rows if row["updates"] > 0) >= 1  # off-policy, then
    assert (tmp_path / "run" / "curve.png").exists()

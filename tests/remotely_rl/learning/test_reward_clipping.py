"""Rewards that are clipped are counted, and the user is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remotely_rl import a2c, a3c
from remotely_rl.learning import reward_clipping
from remotely_rl.runs import metrics
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")


def test_the_share_is_of_the_rewards_that_are_experience() -> None:
    reward = np.array([[1.0, -10.0], [20.0, 0.5], [-1.0, 9.0]], np.float32)
    valid = np.array([[True, True], [True, True], [True, False]])
    assert reward_clipping.clipped_share(reward, valid, 1.0) == pytest.approx(2 / 5)
    assert reward_clipping.clipped_share(reward, valid, 0.0) == 0.0
    assert reward_clipping.clipped_share(reward, np.zeros_like(valid), 1.0) == 0.0


def test_it_is_news_once_and_told_again_in_all() -> None:
    clipped = reward_clipping.ClippingReport(1.0)
    clipped.count({"train/rewards_clipped": 0.0})
    assert (clipped.news(), clipped.summary()) == ("", "")
    clipped.count({"train/rewards_clipped": 0.02})
    assert clipped.news().startswith("1 % of rewards were clipped to 1 for the learner")
    clipped.count({"train/rewards_clipped": 0.07})
    clipped.count({"entropy_coef": 1.0})  # an update that took no rewards, as of a later pass
    assert clipped.news() == ""
    assert clipped.summary().startswith("3 % of rewards were clipped")


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("template", [a2c, a3c])
@pytest.mark.parametrize(("bound", "share"), [(10.0, 2 / 3), (30.0, 0.0)])
def test_a_run_tells_which_part_of_the_rewards_it_clips(
    template: Any, bound: float, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = template.Config(
        env=toys.Counting, actors=1, envs_per_actor=4, rollout_steps=8, random_start=0,
        total_steps=200, reward_clip=bound, log_interval_s=1e6, checkpoint_interval_s=1e6,
    )  # fmt: skip

    template.train(config, run=tmp_path / "run")

    (row,) = metrics.read(tmp_path / "run" / "metrics.csv")
    assert row["train/rewards_clipped"] == pytest.approx(share, abs=0.02)
    told = " % of rewards were clipped to 10 for the learner" in capsys.readouterr().out
    assert told == (share > 0)

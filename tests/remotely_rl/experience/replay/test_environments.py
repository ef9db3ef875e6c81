"""Tests of a replay with real environments: Atari, and each autoreset mode."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from remotely_rl import trees
from remotely_rl.environments import atari
from remotely_rl.environments.contract import Environments
from remotely_rl.experience.replay import Replay
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.supervision.vector import spec_of
from tests.remotely_rl.experience.replay.test_replay import assert_is_as_fed, feed
from tests.remotely_rl.experience.replay.worlds import Oracle


class Plays:
    """Plays random actions."""

    def __init__(self, envs: Environments):
        self.envs = envs
        self.obs = envs.reset(seed=1)
        self.begins = np.ones(envs.num_envs, np.bool_)
        self.random = np.random.default_rng(1)

    def play(self, steps: int) -> Trajectory:
        rows: list[dict[str, Any]] = []
        for _ in range(steps):
            action = self.random.integers(0, self.envs.actions.outputs, self.envs.num_envs)
            row = {"obs": trees.map_tree(np.array, self.obs), "begins": self.begins}
            step = self.envs.step(action)
            rows.append({**step._asdict(), **row, "action": action})
            self.obs, self.begins = step.obs, step.begins
        rows.append({"obs": trees.map_tree(np.array, self.obs), "begins": self.begins})
        columns = {
            name: np.stack([row[name] for row in rows[: steps + (name in ("obs", "begins"))]])
            for name in ("obs", "begins", "action", "reward", "terminated", "truncated", "valid")
        }
        width = self.envs.num_envs
        return Trajectory(
            **columns,
            log_prob=np.zeros((steps, width), np.float32),
            value=np.zeros((steps + 1, width), np.float32),
            state=np.zeros((width, 0), np.float32),
            version=np.zeros(width, np.int64),
        )


def test_frames_of_atari_are_stored_once_and_drawn_unchanged() -> None:
    settings = atari.Atari(image_size=42, life_loss_is_terminal=True)
    vector = atari.make_vector(spec_of("ALE/Breakout-v5"), 3, settings)
    envs = Environments(vector, lives=True, channels_first=True)
    plays, oracle = Plays(envs), Oracle(3)
    replay = Replay(3 * 250, 3, plays.play(8), n_step=3, gamma=0.9, alpha=0.5, say=pytest.fail)
    assert replay.layout.obs.frame == 1
    for _ in range(10):
        feed(replay, oracle, plays.play(60))
    assert any(not row.valid for row in oracle.rows[0]), "no episode ended"
    assert_is_as_fed(replay.draw(1_000), oracle, replay)
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_windows_end_with_their_episode_in_every_autoreset_mode(mode: AutoresetMode) -> None:
    makes = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * 3
    envs = Environments(SyncVectorEnv(makes, autoreset_mode=mode))
    plays, oracle = Plays(envs), Oracle(3)
    replay = Replay(3 * 100, 3, plays.play(2), n_step=3, gamma=0.9)
    for _ in range(8):
        feed(replay, oracle, plays.play(20))
    draw = replay.draw(2_000)
    assert_is_as_fed(draw, oracle, replay)
    assert (draw.discount == 0).any()
    envs.close()

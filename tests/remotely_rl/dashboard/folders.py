"""Run folders that tests write."""

import json
from pathlib import Path
from typing import Any

HEAD = (
    "time/seconds,time/env_steps,time/steps_per_second,rollout/episodes,rollout/return_mean,"
    "rollout/return_max,train/policy_loss"
)


def make_run(
    path: Path, rows: int = 5, scale: float = 1.0, ended: Any = None, **settings: Any
) -> Path:
    path.mkdir(parents=True)
    config = {"env": "CartPole-v1", "seed": 1, "log_interval_s": 10.0, **settings}
    algorithm = config.pop("algorithm", "ppo")
    content = {"algorithm": algorithm, "config": config, "ended": ended}
    (path / "config.json").write_text(json.dumps(content))
    lines = [f"{n},{n * 100},100,{n},{n * scale:g},{n + 1},0.5" for n in range(rows)]
    (path / "metrics.csv").write_text("\r\n".join([HEAD, *lines, ""]))
    return path

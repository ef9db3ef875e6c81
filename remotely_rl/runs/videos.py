"""What a video of an agent shows, beside it as `VIDEO.json`: the dashboard finds its evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path

from remotely_rl import durable

SUFFIX = ".json"


def describe(video: Path, env_steps: int, scores: Sequence[float]) -> None:
    """Write of which policy a video is, by its steps of training, and the scores of its games."""
    content = {"env_steps": env_steps, "scores": [float(score) for score in scores]}
    durable.write(video.with_name(video.name + SUFFIX), [json.dumps(content).encode()])

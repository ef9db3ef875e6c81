"""When a run stops: at a limit of its config, or when it is asked to."""

from collections.abc import Callable

from remotely_rl.config import Common
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.process import Process


class Stopping:
    """Remembers why the run stops, once it does."""

    def __init__(
        self, config: Common, tally: Tally, process: Process,
        follows: Callable[[], str] | None = None,
    ):  # fmt: skip
        """With `follows`, that alone decides: it returns a reason once there is one."""
        self.reason = ""
        self._follows = follows
        self._config = config
        self._tally = tally
        self._process = process

    def is_due(self, seconds: float) -> bool:
        """Whether to stop, `seconds` after the run began."""
        if self._follows is not None:
            self.reason = self.reason or self._follows()
            return bool(self.reason)
        self.reason = (
            self.reason
            or self._process.asked_to_stop
            or limit_reached(self._config, self._tally, seconds)
        )
        return bool(self.reason)


def limit_reached(config: Common, tally: Tally, seconds: float) -> str:
    """Which limit of a config is reached, or an empty string."""
    if config.total_steps and tally.counters.env_steps >= config.total_steps:
        return f"{config.total_steps:,} steps are done"
    if config.minutes and seconds >= config.minutes * 60:
        return f"{config.minutes:g} minutes are over"
    if config.target is not None and tally.judged() >= config.target:
        return f"the mean return of {config.target:g} is reached"
    return ""

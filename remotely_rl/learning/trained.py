"""TrainedLearner: what a run, its hooks and its checkpoints use of the learner, for any algorithm.

Learner         trains in the run's process (learner.py)
SharedLearner   holds the parameters that workers train under a sync rule (sharing.py)
RemoteLearner   stands for the one in the inference server (inference_server.py)
"""

from typing import Any, Protocol

from torch import nn

from remotely_rl.acting.actor import EnvAttributes


class TrainedLearner(Protocol):
    """The learner of a run."""

    config: Any  # the settings of the next update
    env_attributes: EnvAttributes  # set by actors in their environments

    @property
    def model(self) -> nn.Module:
        """The model as it is trained."""
        ...

    @property
    def version(self) -> int:
        """The number of updates of its parameters."""
        ...

    def change(self, **coefficients: Any) -> None:
        """Change coefficients of the config for the updates to come."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        ...

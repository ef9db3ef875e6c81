"""The learner: a model, its optimizer, and the device that they are on.

An algorithm's `update` makes a batch of a trajectory and takes a step for each minibatch:

    steps = []
    for _ in range(config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            losses = compute_losses(policy, value, rows, ...)
            steps.append(learner.step(losses))
    return learner.end_update(steps, batch, config.epochs)

The same code runs on a CPU and on a GPU.  There, observations are copied once, as bytes from
pinned memory, and stay.  Networks may compute in bfloat16 (`networks/precision.py`); losses and
targets are float32.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.acting.actor import Parameters
from remotely_rl.config import Common, device_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost
from remotely_rl.experience.batch import Batch, DeviceTrajectory, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.reward_clipping import RewardClipper
from remotely_rl.learning.schedule import LearningRate
from remotely_rl.learning.value_scale import ValueScale
from remotely_rl.networks import precision

C = TypeVar("C", bound=Common)


class Losses(NamedTuple):
    """What is minimized, and how far the policy is from the one before the update."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


class Step(NamedTuple):
    """An optimizer step that was taken: its losses, detached, and the norm of its gradient."""

    losses: Losses
    grad_norm: Tensor


# Of policy [rows, outputs], value [rows], rows, config, entropy coefficient, actions.
ComputeLosses = Callable[[Tensor, Tensor, Transitions, Any, float, Actions], Losses]


class Learner(Generic[C]):
    """See the module's docstring.  `version` counts updates."""

    def __init__(self, config: C, model: nn.Module, actions: Actions):
        self.config = config
        self.actions = actions
        self.device = device_of(config.device)
        self.model = model.to(self.device).train()
        self.dtype = precision.of(config.precision, model, self.device)
        self.version = 0
        self.learning_rate = LearningRate(config)
        self.value_scale = ValueScale()
        self.reward_clipper = RewardClipper(config.clips_rewards_at)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.network: Callable[..., Any] = self.model  # the model, compiled if asked for
        if config.compile:
            graphs = self.device.type == "cuda" and not networks.is_recurrent(model)
            self.network = torch.compile(model, mode="reduce-overhead" if graphs else "default")

    @functools.cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Made by the first step: the first optimizer of a process takes a second of imports,
        and a process that only computes gradients takes no step."""
        rate = self.config.learning_rate
        return torch.optim.Adam(self.model.parameters(), lr=rate, eps=1e-5, fused=True)

    def is_newer_than(self, trajectory: Trajectory) -> bool:
        """Whether the parameters were updated since a trajectory was sampled."""
        return bool((trajectory.version != self.version).any())

    # --- forward ----------------------------------------------------------------------------------

    def forward(
        self, batch: Batch, network: Callable[..., Any] | None = None
    ) -> tuple[Tensor, Tensor, Transitions]:
        """Runs the network, or a copy of it, on a batch: policy [rows, outputs], value [rows],
        and the transitions that they are of."""
        with self.autocast():
            return batch.forward(network or self.network)

    def unroll(self, rollout: DeviceTrajectory) -> tuple[Tensor, Tensor]:
        """Runs the network on a whole trajectory: policy [T + 1, B, outputs], and value
        [T + 1, B] in the units in which the model learns it."""
        with self.autocast():
            policy, value, _ = networks.unroll(
                self.network, rollout.obs, rollout.state, rollout.begins
            )
        return policy.float(), value.float()

    @torch.no_grad()
    def log_prob(self, rollout: DeviceTrajectory) -> Tensor:
        """Log-probabilities [T, B] of a trajectory's actions by the current parameters."""
        return self.actions.log_prob(self.unroll(rollout)[0][:-1], rollout.action)

    def autocast(self) -> AbstractContextManager[Any]:
        """Within it, networks compute in the precision that the config asks for."""
        return precision.computing(self.dtype, self.device)

    # --- steps ------------------------------------------------------------------------------------

    def step(self, losses: Losses) -> Step:
        """Takes one optimizer step on `losses.total`."""
        self.optimizer.zero_grad()
        losses.total.backward()  # type: ignore[no-untyped-call]
        return self._step(losses)

    def step_with(self, gradients: Sequence[Tensor | None], losses: Losses) -> Step:
        """Takes one optimizer step by gradients of a copy of the model."""
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return self._step(losses)

    def _step(self, losses: Losses) -> Step:
        bound = self.config.max_grad_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), bound)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate.value
        self.optimizer.step()
        return Step(Losses(*(part.detach() for part in losses)), norm)

    def end_update(self, steps: Sequence[Step], batch: Batch, epochs: int = 1) -> dict[str, float]:
        """Ends an update of these steps; returns its metrics.

        Counts the batch's observations into the model's statistics and steers the learning rate.
        See `count_update`.
        """
        metrics = self.count_update(steps, epochs)
        self.learning_rate.steer(metrics["train/approx_kl"])
        networks.update_normalizers(self.model, batch.flat_obs)
        return metrics

    def count_update(self, steps: Sequence[Step], epochs: int = 1) -> dict[str, float]:
        """Counts an update of these steps; returns its metrics.

        They are means over all steps, but for `approx_kl`: over the last epoch.  Raises
        LearnerLost if the loss became NaN or infinite.
        """
        means = torch.stack([
            torch.stack(part).mean() for part in zip(*(s.losses for s in steps), strict=True)
        ])  # fmt: skip
        _, policy, value, entropy, _ = means.tolist()
        norm = float(torch.stack([step.grad_norm for step in steps]).mean())
        last_epoch = steps[-(len(steps) // epochs) :]
        kl = float(torch.stack([step.losses.kl for step in last_epoch]).mean())
        self.version += 1
        if not all(map(math.isfinite, (policy, value, entropy, norm))):
            raise LearnerLost(
                f"the loss became NaN or infinite at update {self.version}: policy loss"
                f" {policy:g}, value loss {value:g}, gradient norm {norm:g}.  Lower learning_rate"
                " or max_grad_norm, or look for NaN in rewards or observations"
            )
        metrics = {
            "train/policy_loss": policy,
            "train/value_loss": value,
            "train/entropy": entropy,
            "train/approx_kl": kl,
            "train/grad_norm": norm,
            "train/learning_rate": self.learning_rate.value,
        }
        return metrics | self.reward_clipper.pop_metrics()

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """Copies an array to the learner's device; on a CPU the tensor shares its memory."""
        on_cpu = torch.from_numpy(array)
        if self.device.type == "cpu":
            return on_cpu
        return on_cpu.pin_memory().to(self.device, non_blocking=True)

    # --- what others get --------------------------------------------------------------------------

    def parameters(self) -> Parameters:
        """What actors are sent."""
        return Parameters(self.version, networks.state_of(self.model))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        on_gpu = self.device.type == "cuda"
        return {
            "version": self.version,
            "rate": self.learning_rate.value,
            "rate_given": self.config.learning_rate,
            "scale": list(self.value_scale.moments),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": self.generator.get_state(),
            # Dropout on a GPU draws from this; nothing of the library's own does.
            "cuda_random": torch.cuda.get_rng_state(self.device) if on_gpu else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` returned."""
        self.version = state["version"]
        self.learning_rate.resume(state["rate"], given=state["rate_given"])
        self.value_scale = ValueScale(*state["scale"])
        self.model.load_state_dict(state["model"])
        # Torch would keep the tensors that it is given, and Adam writes into them.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.generator.set_state(state["random"])
        if self.device.type == "cuda" and state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"], self.device)


def gpu_lost(error: torch.AcceleratorError) -> LearnerLost:
    """What to raise for an error of the GPU: the parameters on it cannot be read any more."""
    return LearnerLost(f"the GPU is lost: {str(error).splitlines()[0]}")

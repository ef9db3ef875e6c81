"""The inference server: the process that holds the model and trains it, for agents without one.

    predictors   threads that answer agents' requests, several in one forward pass
    trainers     threads that collect the agents' trajectories and learn from them

A trainer computes on a copy of the parameters and applies its gradients to the shared ones
under a lock, so several may compute at the same time.  A predictor reads the shared parameters
without the lock, even in the middle of an update.

The queue holds one trajectory: `train_on` returns once a trainer or the queue has the trajectory,
so an update learns from experience that is one or two updates old.
"""

import copy
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import remotely
from remotely_rl import networks, trees
from remotely_rl.acting.actor import AS_MADE, EnvAttributes
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost
from remotely_rl.experience.trajectory import Trajectory, stack
from remotely_rl.learning.learner import (
    Learner,
    SavedScale,
    ScaledConfig,
    gpu_lost,
    loaded_scale,
)
from remotely_rl.supervision.failures import LOST
from remotely_rl.trees import Tree

QUEUED = 1  # trajectories that wait for a trainer; more would become stale
THREADS = 64  # of the server, for requests and for waiting agents

# Called with an update's metrics, and the staleness of each environment's experience.
Record = Callable[[dict[str, float], list[int]], None]
# Called with the learner, a copy of its model, the lock of the shared parameters, a trajectory, the
# progress of the schedule, and a Record.
Update = Callable[[Learner[Any], nn.Module, threading.Lock, Trajectory, float, Record], None]


class ServedConfig(ScaledConfig, Protocol):
    """What the server reads of the Config of GA3C."""

    @property
    def predictors(self) -> int: ...

    @property
    def trainers(self) -> int: ...

    @property
    def train_rows(self) -> int: ...

    @property
    def predict_requests(self) -> int: ...

    @property
    def predict_wait_ms(self) -> float: ...

    @property
    def learner_threads(self) -> int: ...


class Prediction(NamedTuple):
    """The model's outputs for [B] observations."""

    policy: NDArray[np.float32]  # [B, outputs]
    value: NDArray[np.float32]  # [B]
    version: int  # of the parameters


class ServerReport(NamedTuple):
    """The server's work since the last report, and the version of its parameters."""

    updates: list[tuple[dict[str, float], list[int]]]  # metrics, staleness
    seconds: dict[str, float]
    requests: int
    batches: int
    version: int = 0

    @classmethod
    def empty(cls) -> "ServerReport":
        return cls([], {"inference": 0.0, "learning": 0.0}, 0, 0)


class Server:
    """See the module's docstring.  `inference_server` makes it a remote class."""

    def __init__(
        self,
        config: ServedConfig,
        model: nn.Module,
        actions: Actions,
        update: Update,
        scale: SavedScale | None = None,
    ):
        """`scale` is the state of the value scale, for a model that continues another run."""
        torch.set_num_threads(config.learner_threads or 1)
        self.config = config
        self.learner = Learner[Any](config, model, actions)
        if scale is not None:
            self.learner.value_scale = loaded_scale(scale, config)
        self.progress = 0.0
        self.acting = copy.deepcopy(self.learner.model).eval()
        _share_tensors(self.learner.model, self.acting)
        self._update = update
        self._lock = threading.Lock()  # of the shared parameters, and of the report
        self._queue: queue.Queue[Trajectory] = queue.Queue(QUEUED)
        self._gathering = threading.Lock()  # one trainer at a time gathers a batch
        self._predicting = threading.Semaphore(config.predictors)
        self._closing = threading.Event()
        self._report = ServerReport.empty()
        self._failed: Exception | None = None
        for _ in range(config.trainers):
            threading.Thread(target=self._train, daemon=True).start()

    def predict(self, requests: Sequence[Tree]) -> list[Prediction]:
        """Answer several requests, each of observations [B, ...], in one forward pass."""
        with self._predicting:
            began = time.perf_counter()
            version = self.learner.version
            obs = trees.join(self._tensor, requests)
            with torch.inference_mode(), self.learner.autocast():
                policy, value = self.acting(obs)
            sizes = [len(trees.first(request)) for request in requests]
            parts = zip(
                torch.split(policy.float().cpu(), sizes),
                torch.split(value.float().cpu(), sizes),
                strict=True,
            )
            predictions = [Prediction(p.numpy(), v.numpy(), version) for p, v in parts]
            with self._lock:
                self._report.seconds["inference"] += time.perf_counter() - began
                self._report = self._report._replace(
                    requests=self._report.requests + len(requests),
                    batches=self._report.batches + 1,
                )
            return predictions

    def train_on(self, trajectory: Trajectory) -> None:
        """Queue a trajectory for the trainers; wait until there is room for it."""
        while self._failed is None:
            try:
                self._queue.put(trajectory, timeout=1.0)
            except queue.Full:
                continue
            return

    def report(self, progress: float) -> ServerReport:
        """Return the work since the last call; set the schedule's `progress`, 0 to 1.

        Raises the exception of a trainer that failed.
        """
        self.progress = progress
        if self._failed is not None:
            raise self._failed
        with self._lock:
            report, self._report = self._report, ServerReport.empty()
            return report._replace(version=self.learner.version)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, on the CPU."""
        with self._lock:
            state: dict[str, Any] = _on_cpu(copy.deepcopy(self.learner.state()))
            return state

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        with self._lock:
            self.learner.load(state)

    def change(self, coefficients: Mapping[str, Any]) -> None:
        """Change coefficients for the updates that begin from now on."""
        with self._lock:
            self.learner.change(**coefficients)

    def parameters(self) -> networks.State:
        """Return the model's parameters and statistics."""
        with self._lock:
            return networks.state_of(self.learner.model)

    def close(self) -> None:
        """End the trainers, each after the update that it is at."""
        self._closing.set()

    def _tensor(self, parts: Sequence[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(self.learner.device)

    def _train(self) -> None:
        # A copy per trainer: autograd forbids changes of parameters between forward and backward.
        model = copy.deepcopy(self.learner.model)
        try:
            while not self._closing.is_set() and self._failed is None:
                if gathered := self._gather():
                    began = time.perf_counter()
                    self._update(
                        self.learner,
                        model,
                        self._lock,
                        stack(gathered),
                        self.progress,
                        self._record,
                    )
                    with self._lock:
                        self._report.seconds["learning"] += time.perf_counter() - began
        except torch.AcceleratorError as error:
            self._failed = gpu_lost(error)
        except Exception as error:
            self._failed = error

    def _gather(self) -> list[Trajectory]:
        gathered: list[Trajectory] = []
        rows = 0
        with self._gathering:
            while rows < self.config.train_rows:
                try:
                    trajectory = self._queue.get(timeout=0.5)
                except queue.Empty:
                    if self._closing.is_set():
                        break
                    continue
                if count := trajectory.rows.count:
                    gathered.append(trajectory)
                    rows += count
        return gathered

    def _record(self, metrics: dict[str, float], staleness: list[int]) -> None:
        self._report.updates.append((metrics, staleness))  # its caller holds the lock


def inference_server(config: ServedConfig) -> type[Server]:
    """Return the server's remote class, which batches requests as the config says."""

    class InferenceServer(Server):
        predict = remotely.batched(  # type: ignore[assignment]  # callers pass a single request
            max_size=config.predict_requests, wait_ms=config.predict_wait_ms
        )(Server.predict)

    return remotely.remote_class(concurrency=THREADS)(InferenceServer)


class RemoteLearner:
    """The server's learner: the learner of the run (trained.py).

    `version` is that of the last report.
    """

    env_attributes: EnvAttributes = AS_MADE

    def __init__(self, server: Server, config: Any, model: nn.Module):
        """`model` is the server's before its first update."""
        self.server = server
        self.config = config
        self.version = 0
        self._model, self._fetched = model, 0

    @property
    def model(self) -> nn.Module:
        """The model at the last report, or newer; fetched when it is read."""
        if self._fetched != self.version:
            with server_lost_loses_learner():
                networks.load_state(self._model, self.server.parameters())
            self._fetched = self.version
        return self._model

    def change(self, **coefficients: Any) -> None:
        with server_lost_loses_learner():
            self.server.change(coefficients)
        self.config = dataclasses.replace(self.config, **coefficients)

    def state(self) -> dict[str, Any]:
        with server_lost_loses_learner():
            return self.server.state()

    def load(self, state: dict[str, Any]) -> None:
        self.server.load(state)
        self.version = state["version"]


@contextmanager
def server_lost_loses_learner() -> Iterator[None]:
    """Raise LearnerLost if the server is gone: only the last checkpoint is left then."""
    try:
        yield
    except LOST as error:
        raise LearnerLost(f"the inference server is gone: {error}") from error


def end(server: Any) -> None:
    """End a server, unless it has already ended."""
    with suppress(remotely.RemotelyError):
        remotely.close(server)


def _share_tensors(model: nn.Module, other: nn.Module) -> None:
    """Make `other`, a copy of `model`, use the tensors of `model` itself."""
    for one, two in zip(model.modules(), other.modules(), strict=True):
        two._parameters, two._buffers = one._parameters, one._buffers


def _on_cpu(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_on_cpu(value) for value in state]
    return state.cpu() if isinstance(state, Tensor) else state

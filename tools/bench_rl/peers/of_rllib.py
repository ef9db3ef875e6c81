"""RLlib's IMPALA, on its new API stack, with a network of the same layers as ours."""

import logging
import warnings
from typing import Any

import gymnasium
import ray
import torch
from ray import tune
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from torch import nn

from tools.bench.stopwatch import report
from tools.bench_rl.window import asked, cores

GAMES = 5  # of a runner

# (filters, size, stride) of each convolution, and the number of features.
LAYERS = {84: ([(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512), 42: ([(16, 6, 3), (32, 3, 2)], 256)}


class Network(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]
    """NatureCNN or SmallCNN by the size of the image, without the normalizer.

    RLlib's own default has two layers of features, one for each head.
    """

    def setup(self) -> None:
        height, width, channels = self.observation_space.shape
        convolutions, features = LAYERS[height]
        layers: list[nn.Module] = []
        for filters, size, step in convolutions:
            layers += [nn.Conv2d(channels, filters, size, step), nn.ReLU()]
            channels = filters
        layers.append(nn.Flatten())
        seen = torch.zeros(1, self.observation_space.shape[2], height, width)
        flat = nn.Sequential(*layers)(seen).shape[1]
        self.body = nn.Sequential(*layers, nn.Linear(flat, features), nn.ReLU())
        self.policy = nn.Linear(features, int(self.action_space.n))
        self.value = nn.Linear(features, 1)

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(self._features(batch))}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        features = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        features = self._features(batch) if embeddings is None else embeddings
        return self.value(features).squeeze(-1)

    def _features(self, batch: dict[str, Any]) -> Any:
        return self.body(batch[Columns.OBS].permute(0, 3, 1, 2))


def make_game(config: dict[str, Any]) -> Any:
    import ale_py  # noqa: PLC0415 - in each runner, which makes the game

    gymnasium.register_envs(ale_py)
    game: Any = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return wrap_atari_for_new_api_stack(game, dim=config["size"], framestack=None)


def main() -> None:
    turn = asked()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    # It needs a CPU for each runner and more for itself, otherwise it waits for ever.
    ray.init(num_cpus=cores() + 4, include_dashboard=False, log_to_driver=False)
    tune.register_env("pong", make_game)
    config = (
        IMPALAConfig()
        .environment("pong", clip_rewards=True, env_config={"size": turn.size})
        .env_runners(
            num_env_runners=cores(),
            num_envs_per_env_runner=GAMES,
            rollout_fragment_length=50,
            env_to_module_connector=lambda *_, **__: FrameStackingEnvToModule(num_frames=4),
        )
        .learners(num_learners=0, num_aggregator_actors_per_learner=0)
        .training(
            train_batch_size_per_learner=500,
            learner_connector=lambda *_, **__: FrameStackingLearner(num_frames=4),
            grad_clip=40.0,
            lr=5e-4,
            vf_loss_coeff=0.5,
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Network))
        .reporting(min_time_s_per_iteration=1)
    )
    algorithm = config.build_algo()
    meter, steps, runs_on = turn.window.meter(), 0, True
    while runs_on:
        report_of_runners = algorithm.train()["env_runners"]
        so_far = int(report_of_runners.get("num_env_steps_sampled_lifetime", 0))
        if so_far > steps:  # between two fragments the count does not change
            runs_on = meter.runs_on(so_far - steps)
        steps = so_far
    report(**{turn.figure: meter.per_s})
    ray.shutdown()


if __name__ == "__main__":
    main()

"""torchrl's replay buffers: by priority, and with CatFrames to rebuild stacks."""

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
)
from torchrl.envs.transforms import CatFrames

from tools.bench.stopwatch import Effort, main, report, seconds
from tools.bench_replay.experience import (
    BATCH,
    BESIDE_IMAGES,
    BESIDE_VECTORS,
    STACK,
    WIDTH,
    steps_of,
    time_draws,
    vectors_of,
)


def prioritised(rows: int) -> TensorDictPrioritizedReplayBuffer:
    return TensorDictPrioritizedReplayBuffer(
        alpha=0.5, beta=0.4, storage=LazyTensorStorage(rows), batch_size=BATCH
    )


def learn(buffer: TensorDictPrioritizedReplayBuffer) -> None:
    """Draw rows, and update their priorities."""
    drawn = buffer.sample()
    drawn["td_error"] = drawn["reward"].abs()
    buffer.update_tensordict_priority(drawn)


def beside_84(effort: Effort) -> None:
    rows = BESIDE_IMAGES.of(effort)
    time_images_by_priority(rows, effort)
    time_stacks(rows, effort)


def time_images_by_priority(rows: int, effort: Effort) -> None:
    buffer = prioritised(rows)
    for steps in steps_of(rows, 84):
        stacks = torch.from_numpy(steps.stacks)
        buffer.extend(
            TensorDict(
                {
                    "obs": stacks[:-1].flatten(0, 1),
                    "next": {"obs": stacks[1:].flatten(0, 1)},
                    "action": torch.from_numpy(steps.action).flatten(),
                    "reward": torch.from_numpy(steps.reward).flatten(),
                },
                [steps.action.size],
            )
        )
    time_draws("beside_prioritised_84_per_s", lambda: learn(buffer), effort)


def time_stacks(rows: int, effort: Effort) -> None:
    """Store single frames, one environment after the other, and rebuild their stacks."""
    frames = CatFrames(
        N=STACK, dim=-3, in_keys=["obs"], out_keys=["stack"], reset_key="_reset", done_key="done"
    )
    transform, sampler = frames.make_rb_transform_and_sampler(BATCH, traj_key="traj_ids")
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(rows), transform=transform, sampler=sampler, batch_size=BATCH
    )
    for number, steps in enumerate(steps_of(rows, 84, at_once=150)):
        alone = torch.from_numpy(steps.frames[STACK - 1 :])[..., None, :, :]
        for env in range(WIDTH):
            count = len(steps.action)
            done = torch.zeros(count, 1, dtype=torch.bool)
            done[-1] = True
            buffer.extend(
                TensorDict(
                    {
                        "obs": alone[:-1, env],
                        "action": torch.from_numpy(steps.action[:, env]),
                        "traj_ids": torch.full((count,), number * WIDTH + env),
                        "next": {
                            "obs": alone[1:, env],
                            "reward": torch.from_numpy(steps.reward[:, env]),
                            "done": done,
                        },
                    },
                    [count],
                )
            )
    buffer.sample()
    report(stacked_84_per_s=1 / seconds(buffer.sample))  # it takes seconds


def beside_vector(effort: Effort) -> None:
    rows = BESIDE_VECTORS.of(effort)
    steps = {name: torch.from_numpy(array) for name, array in vectors_of(rows).items()}
    content = {
        "obs": steps["obs"][:-1].flatten(0, 1),
        "next": {"obs": steps["obs"][1:].flatten(0, 1)},
        "action": steps["action"].flatten(),
        "reward": steps["reward"].flatten(),
    }
    buffer = prioritised(rows)
    buffer.extend(TensorDict(content, [steps["action"].numel()])[:rows])
    time_draws("beside_prioritised_vector_per_s", lambda: learn(buffer), effort)


if __name__ == "__main__":
    main({"beside_84": beside_84, "beside_vector": beside_vector})

"""The machine's limit of training, if nothing were lost between its parts.

Every step of experience is played, inferred and learnt from once, and each of the three uses all
cores, so a step takes the sum of its times in each:

    1 / (1 / environments + 1 / inference + 1 / training)        steps per second

Environments and inference run as in actors, with a process per core, 16 games each and one thread
of torch; training runs as in the learner, in one process with all cores.

`limit` trains by A2C's loss, once on each step; `dqn_limit` by DQN's, `replay_ratio` times.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

import numpy as np
import torch

from remotely_rl import environments
from remotely_rl.algorithms import a2c, dqn
from remotely_rl.environments import Atari
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.experience.replay import Draw
from remotely_rl.runs.replaying import to_device
from remotely_rl.runs.training import make_learner
from tools.bench.stopwatch import report
from tools.bench_rl.window import Window, asked, cores

GAME = "ALE/Pong-v5"
GAMES, STEPS = 16, 16  # of an actor; its parameters are converted every 16 steps
ROWS, MINIBATCHES = 2048, 4
REPLAYED = dqn.Config.batch_size
START_S = 60.0  # for all processes to begin

Step = Callable[[], object]

_barrier: Barrier  # inherited by each process: it cannot be sent with a call


def main() -> None:
    os.environ["REMOTELY_LOCAL"] = "1"  # make_learner makes a game: without a cluster
    turn = asked()
    # Each of the three parts is as steady as a training in half the time.
    window = Window(turn.window.warm_up_s / 2, turn.window.for_s / 2)
    train, rows = TRAINING[turn.what]
    found = {
        "environment": GAMES * together(environment, turn.size, window),
        "inference": GAMES * STEPS * together(inference, turn.size, window),
        "training": rows * rate(train(turn.size), window),
    }
    found["limit"] = 1 / sum(1 / per_s for per_s in found.values())
    of = turn.what.removesuffix("limit")
    report(**{f"{of}{name}_{turn.size}_per_s": per_s for name, per_s in found.items()})


def environment(size: int) -> Step:
    """Return a step of an actor's games with random actions."""
    envs = environments.make(GAME, GAMES, Atari(image_size=size))
    envs.reset(seed=0)
    random = np.random.default_rng(0)
    return lambda: envs.step(random.integers(0, envs.actions.outputs, GAMES))


def inference(size: int) -> Step:
    """Return an actor's forward passes for STEPS steps of its games."""
    torch.set_num_threads(1)
    learner = make_learner(a2c.Config(env=GAME, image_size=size, device="cpu"))
    model, obs = learner.model.eval(), images(GAMES, size)

    @torch.inference_mode()
    def ask() -> None:
        with learner.autocast():
            for _ in range(STEPS):
                model(obs)

    return ask


def training(size: int) -> Step:
    """Return the learner's pass over a batch."""
    torch.set_num_threads(cores())
    learner = make_learner(a2c.Config(env=GAME, image_size=size, device="cpu"))
    actions = learner.actions.outputs
    log_prob = torch.full((ROWS,), 1 / actions).log()
    transitions = Transitions(
        action=torch.randint(0, actions, (ROWS,)),
        old_log_prob=log_prob,
        advantage=torch.randn(ROWS),
        value_target=torch.randn(ROWS),
        start_log_prob=log_prob,
    )
    batch = Batch(images(ROWS, size), transitions)

    def update() -> None:
        steps = []
        for minibatch in batch.minibatches(MINIBATCHES, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            losses = a2c.compute_losses(
                policy, value, rows, learner.config, learner.config.entropy_coef, learner.actions
            )
            steps.append(learner.step(losses))
        learner.end_update(steps, batch)

    return update


def training_again(size: int) -> Step:
    """Return an update of DQN on a batch that was drawn before."""
    torch.set_num_threads(cores())
    config = dqn.Config(env=GAME, image_size=size, device="cpu")
    learner = make_learner(config, kind=dqn.QLearner)
    actions = learner.model.actions
    draw = Draw(
        rows=np.arange(REPLAYED),
        obs=images(REPLAYED, size).numpy(),
        action=np.random.default_rng(0).integers(0, actions, REPLAYED),
        reward=np.zeros(REPLAYED, np.float32),
        discount=np.full(REPLAYED, config.gamma, np.float32),
        next_obs=images(REPLAYED, size).numpy(),
        weight=np.ones(REPLAYED, np.float32),
        version=np.zeros(REPLAYED, np.uint32),
    )
    return lambda: dqn.update(learner, to_device(learner, draw), env_steps=0, progress=0)


# The learner's work, and the number of environment steps that it corresponds to.
TRAINING: dict[str, tuple[Callable[[int], Step], float]] = {
    "limit": (training, ROWS),
    "dqn_limit": (training_again, REPLAYED / dqn.Config.replay_ratio),
}


def images(count: int, size: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 4, size, size), dtype=torch.uint8)


def together(make: Callable[[int], Step], size: int, window: Window) -> float:
    """Return the sum of the rates of simultaneous processes, one per core."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(cores(), timeout=START_S)
    with ProcessPoolExecutor(cores(), spawn, _begin, (barrier,)) as pool:
        return sum(pool.map(_apart, *([one] * cores() for one in (make, size, window))))


def rate(step: Step, window: Window, ready: Callable[[], object] = lambda: None) -> float:
    """Return calls per second after the warm-up; `ready` waits for the other processes."""
    _for(step, window.warm_up_s)
    ready()
    return _for(step, window.for_s)


def _begin(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _apart(make: Callable[[int], Step], size: int, window: Window) -> float:
    return rate(make(size), window, _barrier.wait)


def _for(step: Step, seconds: float) -> float:
    begin, count = time.perf_counter(), 0
    while (now := time.perf_counter()) < begin + seconds or not count:
        step()
        count += 1
    return count / (now - begin)


if __name__ == "__main__":
    main()

"""A2C with 16 to 512 simulators: steps to the target, and signal and noise of its gradients.

    python -m tools.studies.simulators                     # CartPole, three seeds each
    python -m tools.studies.simulators --task Pong --simulators 16 256 --seeds 1 --steps 60000

With more simulators a round is larger and updates are rarer; `rate_rule` sets the rate.  The policy
is evaluated every 5,120 steps by 25 separate whole games, until the mean of the last 100 is 475.
Returns of training would be later with more simulators: a game of CartPole has 500 steps, which are
256,000 of 512 simulators.

Gradients of half of the simulators are compared with that of all: their cosine, the share of equal
signs, and the noise scale (`remotely_rl.functions.gradients`).  Halves are of simulators instead of
rows, because rows of one simulator are similar.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from torch import Tensor

import remotely
from remotely_rl import a2c, trees
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.evaluation import measure
from remotely_rl.acting.policy import Trained
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import gradients, returns
from remotely_rl.functions.gradients import NoiseScale
from remotely_rl.learning.learner import Learner, make_batch, to_device
from remotely_rl.runs.training import make_learner
from tools import tables
from tools.studies import results

LOOK_EVERY = 5120  # steps between evaluations; two rounds of 512 simulators
GRADIENTS_EVERY = 1024  # steps between measurements of gradients
ALIKE = 40_000  # steps whose gradients are compared, which all runs have
GAMES = 25  # of an evaluation
LAST = 100  # games whose mean must reach the target, as in Gymnasium
SIMULATORS = (16, 32, 64, 128, 256, 512)


class Task(NamedTuple):
    """A problem: its target, the most steps, and differences from A2C's defaults."""

    env: Any
    target: float
    steps: int
    evaluates: bool  # otherwise returns are those of training
    settings: dict[str, Any]


# The paper's rounds of 5 steps, rate for 16 simulators, and entropy.  All are constant, because a
# schedule would depend on the number of updates.  Without the entropy bonus a seed of 512
# simulators, whose steps are large, stayed at a poor deterministic policy after 30 updates.
PAPER: dict[str, Any] = {
    "rollout_steps": 5, "learning_rate": 7e-4, "learning_rate_end": 7e-4, "entropy_coef": 0.01,
    "entropy_coef_end": 0.01, "normalize_advantage": True,
}  # fmt: skip
TASKS = {
    # CartPole-v1 in one process; the target is Gymnasium's.
    "CartPole": Task(
        CartPoleVectorEnv, 475.0, 1_000_000, True,
        {**PAPER, "random_start": 0, "gamma": 0.98},
    ),
    "Pong": Task("ALE/Pong-v5", 18.0, 10_000_000, False, {**PAPER, "gamma": 0.98}),
    "Breakout": Task("ALE/Breakout-v5", 200.0, 20_000_000, False, PAPER),
    "Qbert": Task("ALE/Qbert-v5", 5_000.0, 20_000_000, False, PAPER),
}  # fmt: skip


class Row(NamedTuple):
    """An evaluation of a run.  Values of gradients are means since the last one."""

    rule: str
    simulators: int
    seed: int
    env_steps: int
    updates: int
    looked: float  # mean of this evaluation
    returned: float  # mean of the last 100 games
    cosine: float  # of the gradients of half of the simulators and of all
    signs: float  # share of equal signs, of the same
    signal: float  # |G|^2
    noise: float  # S, of a row


class Compared(NamedTuple):
    """The gradients of halves of the simulators, compared with that of all."""

    cosine: float
    signs: float
    scale: NoiseScale


def halves(batch: Batch, valid: Tensor) -> list[Batch]:
    """Return the rows of the two halves of the simulators; `valid` is [T, B]."""
    width = valid.shape[1]
    column = torch.arange(width).expand(valid.shape)[valid.cpu()]
    return [
        Batch(
            trees.map_tree(lambda x: x[which], batch.obs),  # noqa: B023 - called at once
            Transitions(*(part[which] for part in batch.transitions)),
        )
        for which in (column < width // 2, column >= width // 2)
    ]


def gradient(learner: Learner[a2c.Config], batch: Batch) -> Tensor:
    """Return the unclipped gradient of A2C's losses on a batch as one vector."""
    config = learner.config
    policy, value, rows = learner.forward(batch)
    parts = a2c.compute_losses(policy, value, rows, config, config.entropy_coef, learner.actions)
    parameters = list(learner.model.parameters())
    return gradients.flat(torch.autograd.grad(parts.total, parameters))


def compare(whole: Tensor, of_halves: Sequence[Tensor], rows: int) -> Compared:
    """Compare the gradients of two halves with that of all `rows`."""
    squares = [float(half.double().square().sum()) for half in of_halves]
    return Compared(
        mean(gradients.cosine(half, whole) for half in of_halves),
        mean(gradients.sign_agreement(half, whole) for half in of_halves),
        gradients.noise_scale(mean(squares), rows / 2, float(whole.double().square().sum()), rows),
    )


def update(
    learner: Learner[a2c.Config], trajectory: Trajectory, compares: bool
) -> tuple[dict[str, float], Compared | None]:
    """Make A2C's update; before its step, compare gradients if `compares`."""
    config = learner.config
    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward, rollout.discount, rollout.value,
        valid=rollout.valid, gae_lambda=config.gae_lambda,
    )  # fmt: skip
    batch = make_batch(learner, rollout, targets, normalize_advantage=config.normalize_advantage)
    compared = None
    if compares:
        whole = gradient(learner, batch)
        parts = [gradient(learner, half) for half in halves(batch, rollout.valid)]
        compared = compare(whole, parts, len(batch.transitions.action))
    policy, value, rows = learner.forward(batch)
    losses = a2c.compute_losses(policy, value, rows, config, config.entropy_coef, learner.actions)
    return learner.end_update([learner.step(losses)], batch), compared


def run(task: Task, rule: str, simulators: int, seed: int) -> list[Row]:
    """Train until the target or the task's steps."""
    torch.set_num_threads(1)
    config = a2c.Config(
        env=task.env, actors=1, envs_per_actor=simulators, rate_rule=rule, seed=seed,
        **task.settings,
    )  # fmt: skip
    learner = make_learner(config)
    actor = remotely.local(Actor, config, learner.model, seed)
    rows: list[Row] = []
    seen: list[Compared] = []
    scores: list[float] = []
    steps, look, compare_at = 0, LOOK_EVERY, 0
    while steps < task.steps:
        actor.set_param(learner.parameters())
        rollout = actor.sample()
        steps += rollout.steps
        if not task.evaluates:
            scores += [game.score for game in rollout.episodes]
        _, compared = update(learner, rollout.trajectory, steps >= compare_at)
        if compared is not None:
            seen.append(compared)
            compare_at = steps + GRADIENTS_EVERY
        if steps >= look and seen:
            look += LOOK_EVERY
            if task.evaluates:
                trained = Trained(config, learner.model)
                scores += measure(trained, GAMES, greedy=False, envs=GAMES).scores
            looked, returned = (mean(scores[-n:] or [math.nan]) for n in (GAMES, LAST))
            signal, noise = (mean(one.scale[n] for one in seen) for n in (0, 1))
            rows.append(Row(
                rule, simulators, seed, steps, learner.version, looked, returned,
                mean(one.cosine for one in seen), mean(one.signs for one in seen), signal, noise,
            ))  # fmt: skip
            seen = []
            if len(scores) >= LAST and returned >= task.target:
                break
    actor.close()
    return rows


class Summary(NamedTuple):
    """The results of all seeds of one rule and number of simulators."""

    rule: str
    simulators: int
    seeds: int
    touched: list[float]  # by seed, steps until an evaluation reached the target, or infinite
    reached: list[float]  # by seed, steps until the last games did
    updates: float  # the median
    cosine: float
    signs: float
    noise_rows: float


def summaries(rows: Iterable[Row], target: float) -> list[Summary]:
    """Return a summary for each rule and number of simulators."""
    found: list[Summary] = []
    ordered = sorted(rows, key=lambda row: row[:4])
    for (rule, simulators), of_both in itertools.groupby(ordered, key=lambda row: row[:2]):
        runs = [list(of) for _, of in itertools.groupby(of_both, key=lambda row: row.seed)]
        alike = [row for of in runs for row in of if row.env_steps <= ALIKE]
        scale = NoiseScale(mean(row.signal for row in alike), mean(row.noise for row in alike))
        found.append(Summary(
            rule, simulators, len(runs),
            [next((row.env_steps for row in of if row.looked >= target), math.inf) for of in runs],
            [of[-1].env_steps if of[-1].returned >= target else math.inf for of in runs],
            statistics.median(of[-1].updates for of in runs),
            mean(row.cosine for row in alike),
            mean(row.signs for row in alike),
            scale.rows,
        ))  # fmt: skip
    return found


def table(found: Sequence[Summary]) -> str:
    """Return all in Markdown, with steps relative to the fewest simulators of the same rule."""
    lines = []
    for one in found:
        least = next(other for other in found if other.rule == one.rule)
        steps: list[str] = []
        for ours, theirs in ((one.reached, least.reached), (one.touched, least.touched)):
            of_least, median = statistics.median(theirs), statistics.median(ours)
            steps += [", ".join(f"{n:,.0f}" for n in ours), f"{median / of_least:.2f}"]
        lines.append([
            one.rule, str(one.simulators), *steps, f"{one.updates:,.0f}",
            f"{one.cosine:.3f}", f"{one.signs:.3f}", f"{one.noise_rows:,.0f}",
        ])  # fmt: skip
    head = [
        "rate_rule", "simulators", "steps to hold the target, by seed", "median / least",
        "to reach it in one look", "median / least", "updates, median",
        "half-batch cosine", "signs that agree", "noise scale, rows",
    ]  # fmt: skip
    return tables.table(head, lines)


def draw(rows: Sequence[Row], target: float, png: Path) -> None:
    """Draw returns over steps, steps to the target, cosines and noise scales."""
    figure, (curves, reached, cosines, scales) = results.panels(2, 2)
    found = summaries(rows, target)
    first = found[0].rule
    for number, simulators in enumerate(sorted({row.simulators for row in rows})):
        runs: dict[int, list[Row]] = {}
        for one in rows:
            if (one.rule, one.simulators) == (first, simulators):
                runs.setdefault(one.seed, []).append(one)
        for seed, of in enumerate(runs.values()):
            curves.plot(
                [row.env_steps for row in of], [row.returned for row in of], lw=0.9,
                color=f"C{number}", label=None if seed else str(simulators),
            )  # fmt: skip
    curves.set(xscale="log", xlabel="steps", ylabel=f"mean return of the last {LAST} games")
    curves.legend(title=f"simulators, {first}", fontsize=7, title_fontsize=7)
    for rule in dict.fromkeys(one.rule for one in found):
        of_rule = [one for one in found if one.rule == rule]
        x = [one.simulators for one in of_rule]
        for word, of_all in (("held", 0), ("one look", 1)):
            steps = [statistics.median((one.reached, one.touched)[of_all]) for one in of_rule]
            reached.plot(x, steps, ("o-", "s--")[of_all], label=f"{word}, {rule}")
        cosines.plot(x, [one.cosine for one in of_rule], "o-", label=f"cosine, {rule}")
        cosines.plot(x, [one.signs for one in of_rule], "s--", label=f"signs, {rule}")
        scales.plot(x, [one.noise_rows for one in of_rule], "o-", label=rule)
    cosines.axhline(0.5**0.5, color="gray", lw=0.8, ls=":")  # of pure noise
    cosines.axhline(0.75, color="gray", lw=0.8, ls=":")
    for axis, label in (
        (reached, f"steps to {target:g}, median"),
        (cosines, "half the simulators against all"),
        (scales, "noise scale, rows"),
    ):
        axis.set(xscale="log", xlabel="simulators", ylabel=label)
        sizes = sorted({one.simulators for one in found})
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.legend(fontsize=7)
    reached.set_ylim(bottom=0)
    scales.set_ylim(bottom=0)
    figure.savefig(png, dpi=110)


def main() -> None:
    parser = results.command("simulators", __doc__, [1, 2, 3])
    parser.add_argument("--task", default="CartPole", choices=TASKS)
    parser.add_argument("--rules", nargs="*", default=["sqrt"])
    parser.add_argument("--simulators", nargs="*", type=int, default=list(SIMULATORS))
    parser.add_argument("--steps", type=int, help="the most steps of a run; by default the task's")
    asked = parser.parse_args()
    task = TASKS[asked.task]._replace(**({"steps": asked.steps} if asked.steps else {}))
    runs = {
        (rule, count, seed): functools.partial(run, task, rule, count, seed)
        for seed, rule, count in itertools.product(asked.seeds, asked.rules, asked.simulators)
    }
    results.study(
        f"simulators-{asked.task.lower()}", Row, runs,
        lambda rows, png: draw(rows, task.target, png),
        lambda rows: table(summaries(rows, task.target)),
    )  # fmt: skip


if __name__ == "__main__":
    main()

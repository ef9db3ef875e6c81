"""REINFORCE with a baseline: an algorithm of your own, in a file of your own.

    remotely-rl train examples/reinforce.py:train --env CartPole-v1 --minutes 2
    python examples/reinforce.py

Williams 1992.  Each action is made more likely in proportion to the rewards after it, less what the
value predicted for them.  At the end of a round, the value stands for the rewards to come.
"""

import contextlib
import dataclasses

import remotely_rl as rl


@dataclasses.dataclass(frozen=True)
class Config(rl.Common):  # the settings: options of the command, too
    env: rl.fields.Env = "CartPole-v1"
    rollout_steps: int = 64
    gamma: rl.fields.Gamma = 0.99
    value_coef: rl.fields.ValueCoef = 0.5
    learning_rate: rl.fields.LearningRate = 0.01


def update(learner: rl.Learner[Config], trajectory: rl.Trajectory) -> dict[str, float]:
    # The mathematics: what a round of experience teaches.
    rollout = rl.to_device(learner, trajectory)
    targets = rl.returns.gae(
        rollout.reward, rollout.discount, rollout.value, valid=rollout.valid, gae_lambda=1.0
    )
    batch = rl.make_batch(learner, rollout, targets)
    policy, value, rows = learner.forward(batch)
    log_prob = learner.actions.log_prob(policy, rows.action)
    gradient = rl.losses.policy_gradient(log_prob, rows.advantage)
    parts = rl.actor_critic_losses(
        gradient, log_prob, policy, value, rows, learner.actions,
        value_coef=learner.config.value_coef, entropy_coef=0.0,
    )  # fmt: skip
    return learner.end_update([learner.step(parts)], batch)


def loop(session: rl.Session[Config]) -> None:  # how sampling and learning take turns
    learner, actors = session.learner, rl.sampling.rounds(session)
    while not session.over():
        if actors.idle:
            actors.begin(learner.parameters())
        trajectory = session.collect(actors)
        if trajectory is not None:  # the round is over
            with session.spending("learning"):
                metrics = update(learner, trajectory)
            session.learnt(metrics, staleness=[0])


train = rl.Train("reinforce", Config, loop)

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        train(Config(minutes=2, target=475))

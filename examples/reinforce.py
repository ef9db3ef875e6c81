"""REINFORCE with a baseline: your own algorithm, in one file.

    remotely-rl train examples/reinforce.py:train --env CartPole-v1 --minutes 2
    python examples/reinforce.py

Williams 1992.  An update makes each action more likely in proportion to the return that follows it,
minus its value.  At the end of a rollout, the value stands in for the rewards to come.
"""

import dataclasses

import remotely_rl as rl


@dataclasses.dataclass(frozen=True)
class Config(rl.Common):  # the settings, which are also the command's options
    env: rl.fields.Env = "CartPole-v1"
    rollout_steps: int = 64
    gamma: rl.fields.Gamma = 0.99
    value_coef: rl.fields.ValueCoef = 0.5
    learning_rate: rl.fields.LearningRate = 0.01


def update(learner: rl.Learner[Config], trajectory: rl.Trajectory) -> dict[str, float]:
    # The mathematics: one update from one round of experience.
    rollout = rl.to_device(learner, trajectory)
    targets = rl.returns.gae(
        rollout.reward, rollout.discount, rollout.value, valid=rollout.valid, gae_lambda=1.0
    )
    batch = rl.make_batch(learner, rollout, targets)
    policy, value, rows = learner.forward(batch)
    log_prob = learner.actions.log_prob(policy, rows.action)
    gradient = rl.losses.policy_gradient(log_prob, rows.advantage)
    coefs = {"value_coef": learner.config.value_coef, "entropy_coef": 0.0}
    parts = rl.actor_critic_losses(
        gradient, log_prob, policy, value, rows, learner.actions, **coefs
    )
    return learner.end_update([learner.step(parts)], batch)


def loop(session: rl.Session[Config]) -> None:  # sampling and learning alternate
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
    try:
        train(Config(minutes=2, target=475))
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None

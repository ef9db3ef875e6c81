"""Reinforcement learning on `remotely`: model, algorithm, template.

    from remotely_rl import impala

    impala.train(impala.Config(env="ALE/Pong-v5", actors=2, minutes=15))

An algorithm's file reads from top to bottom: what can be set, what is minimised, who
samples and who learns.  What they share lies beside them, a file a noun: `environments`,
`models`, `trajectory`, `returns`, `losses`, `sampler`, `training`.
"""

import remotely_rl.algorithms.impala as impala
from remotely_rl.errors import TrainingError

__all__ = ["TrainingError", "impala"]

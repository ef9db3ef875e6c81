"""An Optuna sweep: each trial is a run, several run at a time, and a hook prunes poor ones.

    pip install '.[sweep]'  # in a checkout
    python examples/optuna_sweep.py

Trials run in processes of the cluster and share the study through a file.  Run the script again to
add trials to the study.  On several machines, use a shared disk, or a database as storage.
"""

import math
from typing import Any

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[sweep]'  # in a checkout") from None

import remotely
from remotely_rl import Hook, ppo

PARALLEL_TRIALS = 2  # on a large machine, half the cores: a trial has an actor and a learner


def study() -> optuna.Study:
    return optuna.create_study(
        study_name="ppo on CartPole",
        storage=optuna.storages.JournalStorage(JournalFileBackend("sweep.log")),
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
        load_if_exists=True,
    )


class Pruning(Hook):
    """Stops a run whose return is below the median of earlier trials at the same tenth."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial, self.tenths, self.has_pruned = trial, 0, False

    def on_row(self, session: Any, row: dict[str, float]) -> None:
        tenths = int(10 * session.progress)
        if tenths > self.tenths and not math.isnan(row["rollout/return_mean"]):
            self.tenths = tenths
            self.trial.report(row["rollout/return_mean"], tenths)
            if tenths < 10 and self.trial.should_prune():
                self.has_pruned = True
                session.stop("pruned")


def objective(trial: optuna.Trial, steps: int) -> float:
    config = ppo.Config(
        env="CartPole-v1",
        actors=1,
        total_steps=steps,
        log_interval_s=0.5,
        learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
        gae_lambda=trial.suggest_float("gae_lambda", 0.8, 1.0),
        epochs=trial.suggest_int("epochs", 1, 10),
    )
    pruning = Pruning(trial)
    result = ppo.train(config, run=f"sweep/trial-{trial.number}", hooks=[pruning])
    if pruning.has_pruned:
        raise optuna.TrialPruned
    return result.return_mean


def one_trial(steps: int) -> None:
    study().optimize(lambda trial: objective(trial, steps), n_trials=1)


def main(trials: int = 20, steps: int = 60_000) -> None:
    study()
    with remotely.Executor(max_workers=PARALLEL_TRIALS) as executor:
        list(executor.map(one_trial, [steps] * trials))
    best = study().best_trial
    print(f"best of {len(study().trials)} trials: sweep/trial-{best.number}, {best.value:.1f}")
    print(best.params)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None

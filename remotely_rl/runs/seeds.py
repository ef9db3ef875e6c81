"""Runs of several seeds, and their mean: `remotely-rl train ALGORITHM --seeds 1-5`.

    runs/ppo-CartPole-v1-DATE-TIME/seed-1       the run of seed 1; the others are beside it
    runs/ppo-CartPole-v1-DATE-TIME/curve.png    the mean and the range of their returns

Each run is a process: the same command, with --seed and --run.  In threads of one process, learners
would share the GIL and torch's threads, and a kill would end them all.

    a signal            Ctrl-C or SIGTERM: each run ends gracefully, and no other starts; a second
                        Ctrl-C ends them immediately
    the parent dies     the runs end gracefully (PR_SET_PDEATHSIG)
    a run fails         the others continue; but if it failed before its folder was made, no other
                        starts, because it would fail too
    the same --run      finished runs are kept as they are, the others are resumed, and new seeds
                        start.  Other settings are rejected: the runs would not be comparable
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import remotely
from remotely_rl import cluster, settings
from remotely_rl.acting.evaluation import half_interval
from remotely_rl.config import Common, device_of
from remotely_rl.errors import TrainingError
from remotely_rl.learning import threads
from remotely_rl.runs import curve, progress, run_folder
from remotely_rl.runs.ending import limit_reached
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.status import How
from remotely_rl.runs.training import Train
from remotely_rl.supervision.failures import Failure
from remotely_rl.supervision.supervisor import Consequence, ProcessRole, consequence_of

# The code of a run's process, which receives SIGTERM when its parent dies, also after the exec.  So
# its command, which the run's folder keeps, is one that people can type.
COMMAND = (
    "import os, signal, sys; from remotely.machine import prctl;"
    " prctl.end_with_parent(signal.SIGTERM);"
    " os.execv(sys.executable, [sys.executable, '-P', '-m', 'remotely_rl', *sys.argv[1:]])"
)

Arguments = Sequence[str]  # of the command line
Commands = Mapping[int, Arguments]  # by seed


def numbers(text: str) -> list[int]:
    """Parse the seeds of 1-5, 1,2,7 or 1-3,7.  Raises TrainingError for other text."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise TrainingError(f"--seeds needs numbers such as 1-5 or 1,2,7, not {text!r}")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(seeds)) < len(seeds):
        raise TrainingError(f"--seeds {text} names a seed twice")
    return seeds


class Outcome(NamedTuple):
    """The outcome of a seed's run.  It `is_over` at a limit, or if a hook has stopped it.

    It may have failed at its limit, in its last evaluation, say.
    """

    seed: int
    ended: str
    is_over: bool
    has_failed: bool
    return_mean: float = math.nan
    best_return: float = math.nan
    env_steps: int = 0
    seconds: float = 0.0


def train(
    by: Train[Any],
    config: Common,
    seeds: Sequence[int],
    arguments: Arguments,
    *,
    folder: Path | None = None,
    requested: int | None = None,
    address: str | None = None,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Train a run for each seed, with these command-line arguments, and print the outcomes.

    `requested` is how many should run at a time.  Raises TrainingError, before any starts, if the
    runs have no limit, or if those in the folder have other settings.
    """
    if not (config.total_steps or config.minutes or config.target is not None):
        raise TrainingError(
            "each run of --seeds needs an end: --total-steps, --minutes or --target"
        )
    runs = {seed: _path(folder, seed) for seed in seeds} if folder is not None else {}
    for seed, run in runs.items():
        check_continues(run, by.algorithm, dataclasses.replace(config, seed=seed))
    count, why = at_once(config, len(seeds), requested, address)
    if folder is None:
        folder = run_folder.make_new(
            Path("runs") / run_folder.default_name(by.algorithm, config.env)
        )
        runs = {seed: _path(folder, seed) for seed in seeds}
    say(f"{len(seeds)} runs in {folder}, {count} at a time: {why}")
    over = [seed for seed, run in runs.items() if _outcome(seed, run, config).is_over]
    for seed in over:
        say(f"seed {seed} is over already")
    processes = Processes(count, say)
    codes = processes.run(
        {seed: command(arguments, seed, run) for seed, run in runs.items() if seed not in over},
        failure_of=lambda seed: Failure.ENDED if runs[seed].exists() else Failure.WRONG,
    )
    outcomes = [
        _outcome(seed, run, config, codes.get(seed), processes.is_stopped)
        for seed, run in runs.items()
    ]
    for line in table(outcomes):
        say(line)
    if started := [run for run in runs.values() if RunFolder(run).metrics.exists()]:
        with contextlib.suppress(TrainingError):  # no episode has ended
            curve.compare(started, folder / "curve.png")
            say(f"the curve is {folder / 'curve.png'}")
    if not all(outcome.is_over for outcome in outcomes):
        say(f"the same command with --run {folder} continues")
    return outcomes


def command(arguments: Arguments, seed: int, run: Path) -> list[str]:
    """Return the arguments of the command that starts or resumes the run of a seed."""
    if not run.exists():
        return [*arguments, f"--seed={seed}", f"--run={run}"]
    # A resumed run has its own model and settings.
    kept = [word for word in arguments if not word.startswith(("--initial=", "--preset="))]
    return [*kept, f"--seed={seed}", f"--resume={run}"]


def at_once(
    config: Common, count: int, requested: int | None = None, address: str | None = None
) -> tuple[int, str]:
    """Return how many of `count` runs to train at a time, by default as many as fit, and why."""
    if requested is not None:
        return min(requested, count), "as --at-once says"
    if device_of(config).type == "cuda":
        return 1, "they learn on the GPU; --at-once N trains more"
    if not config.processes:
        return 1, "each takes all free cores"
    cores = threads.cores()
    if address or os.environ.get("REMOTELY_ADDRESS"):
        cluster.connect(config.processes, address)
        free = int(sum(machine.free_cpus for machine in remotely.status().machines))
        remotely.shutdown()
        room = min(cores, free // config.processes)
        has = f"the cluster has {free} cores free for {config.processes} actors each"
        return max(1, min(count, room)), f"{has}, and this machine {cores} for the learners"
    room = cores // (config.processes + 1)
    actors = f"{config.processes} actor{'s' if config.processes > 1 else ''}"
    return (
        max(1, min(count, room)),
        f"each has {actors} and a learner, and there are {cores} cores; --at-once N trains more",
    )


def check_continues(run: Path, algorithm: str, config: Common) -> None:
    """Raise TrainingError unless a run can be started, or resumed with the same settings."""
    if not run.exists():
        if RunFolder(run.parent).config.exists():
            raise TrainingError(f"{run.parent} is a run itself: --seeds needs another --run")
        return
    _, kept = run_folder.reopen(run, algorithm)
    if not RunFolder(run).checkpoint.exists():
        raise run_folder.without_checkpoint(run)
    now = run_folder.upgrade(json.loads(json.dumps(run_folder.fields_of(config))))
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in sorted(now.keys() - (curve.PER_RUN - {"env"})):
        before = kept.as_asked.get(name, defaults.get(name, now[name]))  # of an earlier version
        if before != now[name]:
            raise TrainingError(
                f"{run} was trained with {name}={before}, not {now[name]}: give the"
                f" same {run_folder.AGAIN.get(name, settings.option(name))}, or another --run"
            )


class Processes:
    """Subprocesses, at most `count` at a time.  A signal is forwarded to all; then none starts."""

    def __init__(self, count: int, say: Callable[[str], None], code: str = COMMAND):
        """`code` is the Python code of each process, with its arguments in sys.argv."""
        self._count, self._say, self._code = count, say, code
        self._lock = threading.Lock()
        self._live: dict[int, subprocess.Popen[str]] = {}
        self._may_start = True
        self.is_stopped = False  # by a signal

    def run(
        self, commands: Commands, failure_of: Callable[[int], Failure] = lambda seed: Failure.ENDED
    ) -> dict[int, int]:
        """Run all; return the exit codes of those that were started.

        `failure_of(seed)` is what it means that a process has failed; after one that was wrong, no
        other starts.
        """
        handlers = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            with ThreadPoolExecutor(self._count) as pool:
                futures = [
                    pool.submit(self._run, seed, arguments, failure_of)
                    for seed, arguments in commands.items()
                ]
            codes = zip(commands, (future.result() for future in futures), strict=True)
            return {seed: code for seed, code in codes if code is not None}
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _run(
        self, seed: int, arguments: Arguments, failure_of: Callable[[int], Failure]
    ) -> int | None:
        with self._lock:
            if self.is_stopped or not self._may_start:
                return None
            sys.stdout.flush()
            has_terminal = self._count == 1
            # In its own process group, so that Ctrl-C reaches it only once, through `_stop`.
            process = self._live[seed] = subprocess.Popen(
                [sys.executable, "-P", "-c", self._code, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=None if has_terminal else subprocess.PIPE,
                stderr=None if has_terminal else subprocess.STDOUT,
                text=True,
                process_group=0,
            )
            if self.is_stopped:  # by a signal during Popen, which `_stop` may have missed
                process.send_signal(signal.SIGINT)
        with process:
            for line in process.stdout or ():
                self._say(f"seed {seed}: {line.rstrip()}")
        with self._lock:
            del self._live[seed]
            if process.returncode:
                consequence = consequence_of(ProcessRole.RUN, failure_of(seed))
                self._may_start &= consequence is not Consequence.END
        return process.returncode

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = True
        for process in list(self._live.values()):
            process.send_signal(number)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table of the runs, and the mean of finished runs with its 95 % interval."""
    lines = [f"{'seed':>6}  {'return':>10}  {'best':>10}  {'steps':>12}  {'time':>8}"]
    for each in outcomes:
        mean, best = progress.number(each.return_mean), progress.number(each.best_return)
        lines.append(
            f"{each.seed:>6}  {mean:>10}  {best:>10}  {each.env_steps:>12,}"
            f"  {progress.clock(each.seconds):>8}  {each.ended}"
        )
    returns = [
        each.return_mean for each in outcomes if each.is_over and not math.isnan(each.return_mean)
    ]
    if returns:
        interval = half_interval(returns)
        within = "" if math.isnan(interval) else f" ± {interval:,.2f} (95 %)"
        runs = f"{len(returns)} run{'s' if len(returns) > 1 else ''}"
        lines.append(f"mean return {np.mean(returns):,.2f}{within} of {runs}")
    return lines


def _path(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"


def _outcome(
    seed: int, run: Path, config: Common, code: int | None = None, is_stopped: bool = True
) -> Outcome:
    """Return the outcome of a run from its folder and the exit code of its process, if it had one.

    A process that was stopped has not failed.  What is over without a limit, because a hook or its
    own loop has ended it, is over for the next command too.
    """
    failed = f"failed, with status {code}" if code and not is_stopped else ""
    try:
        tally = Tally.of(run_folder.load_checkpoint(RunFolder(run).checkpoint))
    except TrainingError:  # there is none yet
        return Outcome(seed, failed or "not begun", is_over=False, has_failed=bool(failed))
    counters = tally.counters
    written = run_folder.read(run).ended
    how = written.get("how")
    ended = limit_reached(config, tally, counters.seconds).why
    if how == How.HOOK:
        ended = ended or "a hook has ended it"
    if how == How.LIMIT and written.get("limits") == {}:
        ended = ended or str(written.get("why"))
    has_failed_at_end = bool(ended) and how == How.FAILED
    best = counters.best_return if math.isfinite(counters.best_return) else math.nan
    return Outcome(
        seed,
        f"{ended}, and it has failed" if has_failed_at_end else ended or failed or "not over",
        bool(ended),
        has_failed_at_end or (bool(failed) and not ended),
        tally.return_mean(),
        best,
        counters.env_steps,
        counters.seconds,
    )

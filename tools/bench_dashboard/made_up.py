"""A dashboard of a simulated cluster and simulated runs, for measurements and tests.

    python -m tools.bench_dashboard.made_up ACTORS RUNS-FOLDER

It prints its link, as `remotely-rl dashboard` does, and at its end the number of questions to the
cluster.  The page, the server and the files are real; there is no master.
"""

import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from remotely.dashboard import app, server
from remotely.protocol import control
from remotely.protocol.resources import Resources
from remotely_rl.dashboard.panel import panel

PER_MACHINE = 50
HEAD = (
    "time/seconds,time/env_steps,time/updates,time/steps_per_second,rollout/episodes,"
    "rollout/return_mean,rollout/return_max,rollout/episode_length_mean,train/policy_loss,"
    "train/value_loss,train/entropy,train/staleness_mean,train/staleness_max,time/environment_s,"
    "time/inference_s,time/learning_s,time/waiting_s,time/idle_s,train/staleness_min,"
    "rollout/return_interval,train/learning_rate,train/approx_kl,train/grad_norm,"
    "train/rewards_clipped,train/temperature\r\n"
)


class MadeUp:
    """A cluster of `actors` actors, whose figures change with each question."""

    def __init__(self, actors: int) -> None:
        self.asked = 0
        self.on_lost: Callable[[str], object] = lambda why: None
        self._actors = actors

    def ask_status(self) -> "Future[control.Status]":
        self.asked += 1
        machines = range(math.ceil(self._actors / PER_MACHINE))
        workers = [self._worker(n) for n in machines]
        answer: Future[control.Status] = Future()
        ends = [
            control.EndStatus(
                name="Player-0",
                class_name="Player",
                actor=f"{0:032x}",
                machine="node0",
                ago_s=70.0,
                lost=False,
                restarting=False,
                restarted=True,
                exit=3,
                why="",
                stderr="its last words\n",
            )
        ]
        why = "Learner asks for 1 CPU; the most free is 0 CPUs. Close an actor. Or ask for less"
        waits = [control.WaitStatus(class_name="Learner", count=2, waits_s=9.0, why=why)]
        answer.set_result(
            control.Status(
                ticket=1,
                workers=workers,
                clients=[],
                waiting=5,
                waits=waits,
                ends=ends,
                ended=3,
                last_event=1,
            )
        )
        return answer

    def ask_events(self, after: int) -> "Future[control.Events]":
        answer: Future[control.Events] = Future()
        events = [
            control.EventStatus(kind="died", machine="node0", text=f"Player-0 {how}", number=number)
            for number, how in enumerate(("ended with exit code 3", "was killed"), 1)
        ]
        answer.set_result(control.Events(ticket=1, events=events, last=2))
        return answer

    def ask_timeline(self, seconds: float) -> "Future[list[control.ProcessTimeline]]":
        answer: Future[list[control.ProcessTimeline]] = Future()
        stuck = control.ProcessTimeline(
            timeline="made up",
            host="host-0",
            machine="node0",
            pid=1000,
            clock=100.0,
            name="Player-0",
            class_name="Player",
            actor=f"{0:032x}",
            running="step",
            running_s=60.0,
        )
        answer.set_result([stuck])
        return answer

    def read_log(self, actor: str, offset: int) -> "Future[control.LogPiece]":
        answer: Future[control.LogPiece] = Future()
        text = "" if offset > 0 else f"update 1 of {actor}: loss 0.25\n"
        piece = control.LogPiece(ticket=1, text=text, offset=99, known=True, ended=False)
        answer.set_result(piece)
        return answer

    def _worker(self, n: int) -> control.WorkerStatus:
        first = n * PER_MACHINE
        numbers = range(first, min(first + PER_MACHINE, self._actors))
        return control.WorkerStatus(
            worker=f"worker-{n}",
            machine=f"node{n}",
            host=f"host-{n}",
            address=f"10.0.{n // 250}.{n % 250}",
            python="3.11",
            resources=Resources(64, 0, 256 << 30),
            free_cpus=64 - len(numbers),
            free_gpus=0,
            free_memory=128 << 30,
            use=control.MachineUse(
                cpu_percent=float(n % 101),
                memory_used=n << 20,
                memory_total=256 << 30,
                disk_used=1 << 40,
                disk_total=2 << 40,
                cpu_hour=bytes(minute * n % 101 for minute in range(60)),
                memory_hour=bytes(60),
            ),
            actors=[self._actor(number, f"node{n}") for number in numbers],
        )

    def _actor(self, n: int, machine: str) -> control.ActorStatus:
        kind = ("Player", "Learner", "ReplayShard", "Evaluator")[n % 4]
        name, actor = f"{kind}-{n}", f"{n:032x}"
        location = control.Location(
            actor=actor,
            name=name,
            class_name=kind,
            life=0,
            pid=1000 + n,
            host=machine,
            machine=machine,
            ipc="",
            tcp="",
            public_key=b"",
        )
        request = control.Request(
            actor=actor, name=name, class_name=kind, owner="", job="", python="3.11"
        )
        figures = control.Figures(
            actor=actor,
            calls=self.asked * (n % 97),
            cpu_percent=float(n % 101),
            memory=(n % 1000 + 1) << 20,
            running=n % 2,
            method="step" * (n % 2),
            calls_per_s=float(n % 89),
            busy_percent=float(n % 101),
            received=n << 10,
            sent=n << 12,
            methods=[control.MethodFigures("step", 100 + n, 0.01, 0.02 + n / 1000)],
        )
        return control.ActorStatus(
            location=location, request=request, since=1.7e9 + n, figures=figures
        )


def make_runs(folder: Path, count: int, rows: int) -> None:
    """Make `count` run folders with `rows` rows of metrics, which differ only in their seeds."""
    lines = [HEAD]
    for n in range(rows):
        value = f"{100 * (1 - math.exp(-4 * n / rows)) + 10 * math.sin(n / 7):.6g}"
        numbers = [str(n * 10), str(n * 2048), str(n), "204.8", str(n // 2)]
        lines.append(",".join(numbers + [value] * 20) + "\r\n")
    text = "".join(lines)
    for seed in range(count):
        run = folder / f"ppo-{seed:03}"
        run.mkdir(parents=True)
        config = {"env": "ALE/Pong-v5", "seed": seed, "gamma": 0.98, "log_interval_s": 10.0}
        content = {"algorithm": "ppo", "config": config}
        (run / "config.json").write_text(json.dumps(content), encoding="utf-8")
        (run / "metrics.csv").write_text(text, encoding="utf-8")


def main() -> None:
    cluster = MadeUp(int(sys.argv[1]))
    try:
        server.serve(
            server.Where("127.0.0.1:0"),
            app.Cluster("10.0.0.1:8010", cluster),
            [panel(Path(sys.argv[2]))],
        )
    finally:
        print(f"asked {cluster.asked} times", flush=True)


if __name__ == "__main__":
    main()

"""TorchRL's collectors on a CPU, as its own benchmark makes them."""

from collections.abc import Callable
from typing import Any

from torchrl.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
from torchrl.envs import EnvCreator, GymEnv, ParallelEnv
from torchrl.modules import RandomPolicy

from tools.bench.stopwatch import report
from tools.bench_collectors.sizes import COLLECTORS, ENVIRONMENTS, FRAMES_PER_BATCH, FULL, QUICK
from tools.bench_rl.window import asked


def main() -> None:
    turn = asked()
    make = EnvCreator(lambda: GymEnv(ENVIRONMENTS[turn.what]))
    each = turn.size // COLLECTORS
    collectors: dict[str, Callable[[], Any]] = {
        "single_": lambda: collector(SyncDataCollector, ParallelEnv(turn.size, make)),
        "sync_": lambda: collector(MultiSyncDataCollector, [ParallelEnv(each, make)] * COLLECTORS),
        "async_": lambda: collector(
            MultiaSyncDataCollector, [ParallelEnv(each, make)] * COLLECTORS
        ),
    }

    def collector(kind: Any, envs: Any) -> Any:
        policy = RandomPolicy(make().action_spec)
        return kind(envs, policy, frames_per_batch=FRAMES_PER_BATCH, total_frames=-1)

    for prefix, begin in collectors.items():
        meter = (QUICK if turn.is_quick else FULL).meter()
        made = begin()
        for batch in made:
            if not meter.runs_on(batch.numel()):
                break
        report(**{f"{prefix}{turn.figure}": meter.per_s})
        made.shutdown()


if __name__ == "__main__":
    main()

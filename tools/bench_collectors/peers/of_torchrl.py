"""TorchRL's collectors on a CPU, as its own benchmark makes them."""

from collections.abc import Callable
from typing import Any

from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvCreator, GymEnv, ParallelEnv
from torchrl.modules import RandomPolicy

from tools.bench.stopwatch import report
from tools.bench_collectors.sizes import COLLECTORS, ENVIRONMENTS, FRAMES_PER_BATCH, FULL, QUICK
from tools.bench_rl.window import asked


def main() -> None:
    turn = asked()
    make = EnvCreator(lambda: GymEnv(ENVIRONMENTS[turn.what]))
    each = turn.size // COLLECTORS
    kinds: dict[str, Callable[[], Any]] = {
        "single_": lambda: begun(Collector, turn.size),
        "sync_": lambda: begun(MultiSyncCollector, each, COLLECTORS),
        "async_": lambda: begun(MultiAsyncCollector, each, COLLECTORS),
    }

    def begun(kind: Any, size: int, count: int = 0) -> Any:
        envs = ParallelEnv(size, make)
        policy = RandomPolicy(envs.action_spec)
        places = [envs] * count if count else envs
        return kind(places, policy, frames_per_batch=FRAMES_PER_BATCH, total_frames=-1)

    for prefix, begin in kinds.items():
        meter = (QUICK if turn.is_quick else FULL).meter()
        made = begin()
        for batch in made:
            if not meter.runs_on(batch.numel()):
                break
        report(**{f"{prefix}{turn.figure}": meter.per_s})
        made.shutdown()


if __name__ == "__main__":
    main()

"""TorchRL's collectors on a CPU."""

from typing import Any

from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvCreator, GymEnv, SerialEnv
from torchrl.modules import RandomPolicy

from tools.bench.stopwatch import report
from tools.bench_collectors.sizes import ENVIRONMENTS, FRAMES_PER_BATCH, FULL, QUICK, WORKERS
from tools.bench_rl.window import asked

KINDS: dict[str, Any] = {"sync_": MultiSyncCollector, "async_": MultiAsyncCollector}


def main() -> None:
    turn = asked()
    name, each = ENVIRONMENTS[turn.what], turn.size // WORKERS
    make = EnvCreator(lambda: SerialEnv(each, lambda: GymEnv(name)))
    policy = RandomPolicy(make().action_spec)
    for prefix, kind in KINDS.items():
        meter = (QUICK if turn.is_quick else FULL).meter()
        made = kind([make] * WORKERS, policy, frames_per_batch=FRAMES_PER_BATCH, total_frames=-1)
        for batch in made:
            if not meter.runs_on(batch.numel()):
                break
        report(**{f"{prefix}{turn.figure}": meter.per_s})
        made.shutdown()


if __name__ == "__main__":
    main()

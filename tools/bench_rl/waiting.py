"""The waiting of OpenMP's threads for each other: updates alone, and beside a busy process.

    python -m tools.bench_rl.waiting --rounds 5      # on an idle machine

Updates use the precision of learners on this machine.  Each way to wait runs in another process,
because OpenMP reads it once.  They take turns, and a ratio is of one round.
`remotely_rl/learning/threads.py` has the way that learners use, and the reason.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np

from tools import command_line
from tools.bench.figures import spread
from tools.bench_rl.window import busy_process

# Environment variables of each way.
WAYS: dict[str, dict[str, str]] = {
    "as OpenMP comes": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=30000": {"GOMP_SPINCOUNT": "30000"},
    "GOMP_SPINCOUNT=100000": {"GOMP_SPINCOUNT": "100000"},
    "one thread": {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"},
    # As learners in bfloat16: threads.Threads sets the count.  Measure it for ten seconds.
    "following": {
        "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000", "REMOTELY_BENCH_FOLLOWS": "1"
    },
}  # fmt: skip
SET = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "REMOTELY_BENCH_FOLLOWS")
# (side of the images, rows of an update)
WORK = [(84, 32), (84, 512), (42, 512)]
READY = "ready"


def serve() -> None:
    """Measure each update that stdin names; print its milliseconds."""
    import torch  # noqa: PLC0415 - before remotely_rl, which would set the way

    from remotely_rl import networks  # noqa: PLC0415
    from remotely_rl.environments.observations import Leaf  # noqa: PLC0415
    from remotely_rl.learning.threads import Threads, waited_s  # noqa: PLC0415
    from remotely_rl.networks import precision  # noqa: PLC0415

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    by_side = {
        side: networks.default_network(Leaf((4, side, side), np.dtype("uint8")), 6)
        for side, _ in WORK
    }
    optimizers = {
        side: torch.optim.Adam(network.parameters(), lr=1e-5, fused=True)
        for side, network in by_side.items()
    }
    images = {(side, rows): torch.randint(0, 256, (rows, 4, side, side), dtype=torch.uint8)
              for side, rows in WORK}  # fmt: skip

    cpu = torch.device("cpu")
    dtypes = {side: precision.of("auto", network, cpu) for side, network in by_side.items()}

    most = torch.get_num_threads() if "REMOTELY_BENCH_FOLLOWS" in os.environ else 1
    threads = Threads(most, lambda topic, said: None)

    def step(side: int, rows: int) -> None:
        began, waited = time.perf_counter(), waited_s() if most > 1 else 0.0
        with precision.computing(dtypes[side], cpu):
            policy, value = by_side[side](images[side, rows])
        loss = policy.log_softmax(-1).square().mean() + value.square().mean()
        optimizers[side].zero_grad()
        loss.backward()
        optimizers[side].step()
        if most > 1 and threads.updated(time.perf_counter() - began, waited_s() - waited):
            torch.set_num_threads(threads.count)

    for side, rows in WORK:
        step(side, rows)
    print(READY, flush=True)
    for line in sys.stdin:
        side, rows, for_s = json.loads(line)
        step(side, rows)
        began, count = time.perf_counter(), 0
        while count < 3 or time.perf_counter() < began + for_s:
            step(side, rows)
            count += 1
        print(1000 * (time.perf_counter() - began) / count, flush=True)


def measure(
    rounds: int, for_s: float, ways: list[str]
) -> dict[tuple[int, int, str, bool], list[float]]:
    """Return the milliseconds of an update in each round, by (side, rows, way, is busy)."""
    bare = {name: value for name, value in os.environ.items() if name not in SET}
    command = [sys.executable, "-c", "from tools.bench_rl import waiting; waiting.serve()"]
    servers = {
        way: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**bare, **given}
        )
        for way, given in WAYS.items()
        if way in ways
    }
    found: dict[tuple[int, int, str, bool], list[float]] = {}
    for server in servers.values():
        assert server.stdout is not None
        assert server.stdout.readline().strip() == READY
    for _ in range(rounds):
        for is_busy in (False, True):
            with busy_process(is_busy):
                for side, rows in WORK:
                    for way, server in servers.items():
                        assert server.stdin is not None
                        assert server.stdout is not None
                        print(json.dumps([side, rows, for_s]), file=server.stdin, flush=True)
                        ms = float(server.stdout.readline())
                        found.setdefault((side, rows, way, is_busy), []).append(ms)
    for server in servers.values():
        server.communicate()
    return found


def main() -> None:
    parser = command_line.parser("python -m tools.bench_rl.waiting", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    asked = parser.parse_args()
    found = measure(asked.rounds, asked.seconds, asked.ways)
    first = "passive" if "passive" in asked.ways else asked.ways[0]
    print(f"| update | way | alone, ms | of {first} | beside a busy process, ms | slower by |")
    print("| --- | --- | --- | --- | --- | --- |")
    for side, rows in WORK:
        of_first = found[side, rows, first, False]
        for way in asked.ways:
            alone, beside = (found[side, rows, way, is_busy] for is_busy in (False, True))
            ratios = [one / other for one, other in zip(alone, of_first, strict=True)]
            slower = [busy_ms / alone_ms for busy_ms, alone_ms in zip(beside, alone, strict=True)]
            cells = (f"{spread(values):.2f}" for values in (alone, ratios, beside, slower))
            print(f"| {side}x{side}, {rows} rows | {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""Ray's microbenchmarks, in the names of the JSON of its releases, beside Ray on this machine.

    python -m tools.bench ray                    three rounds
    python -m tools.bench ray --quick ours ray   one short round
    python -m tools.bench ray --write --json run.json

`make bench-peers` installs Ray.  Run it on an idle machine: ratios of figures of one run are
comparable, single figures are of that machine.

What each does is what `ray microbenchmark` (python/ray/_private/ray_perf.py) does, with smaller
batches where that is made for 64 cores (effort.py).  WITHOUT names those that mean nothing here.
"""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least
from tools.bench.systems import PEERS

RAY = Term("ray", "Ray")

NAMES = (
    "1_1_actor_calls_async",
    "1_1_actor_calls_concurrent",
    "1_1_actor_calls_sync",
    "1_1_async_actor_calls_async",
    "1_1_async_actor_calls_sync",
    "1_1_async_actor_calls_with_args_async",
    "1_n_actor_calls_async",
    "1_n_async_actor_calls_async",
    "multi_client_put_calls_Plasma_Store",
    "multi_client_put_gigabytes",
    "multi_client_tasks_async",
    "n_n_actor_calls_async",
    "n_n_actor_calls_with_arg_async",
    "n_n_async_actor_calls_async",
    "single_client_get_calls_Plasma_Store",
    "single_client_put_calls_Plasma_Store",
    "single_client_put_gigabytes",
    "single_client_tasks_and_get_batch",
    "single_client_tasks_async",
    "single_client_tasks_sync",
    "single_client_wait_1k_refs",
)

# The other names of the JSON.
WITHOUT = {
    "client__...": "Ray Client is a proxy for scripts outside of a cluster; here such a script is"
    " a client like any other",
    "placement_group_create/removal": "nothing is reserved without actors: a group is placed whole",
    "single_client_get_object_containing_10k_refs": "what `put` returned arrives as its value, also"
    " within another value",
}

ROWS = tuple(
    Row(
        f"`{name}`",
        f"{name}_{'bytes_per_s' if name.endswith('gigabytes') else 'per_s'}",
        (at_least(1, RAY),),
    )
    for name in NAMES
)

SYSTEMS = {
    "ours": System("remotely", OWN, "remotely-actors", note="tasks are those of an Executor"),
    "ray": System("Ray", PEERS, "ray"),
}

BOTH = {"ours": "ours/micro.py", "ray": "peers/of_ray.py"}

PARTS: dict[str, dict[str, str]] = {
    "objects": BOTH,
    "tasks": BOTH,
    "calls": BOTH,
    "async_calls": BOTH,
}

BENCH = Benchmark(
    command="python -m tools.bench ray",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-peers",
    code=("remotely",),
)

SECTION = Section(
    BENCH,
    ROOT / "docs" / "lab" / "benchmarks.md",
    "bench-ray",
    "Calls, tasks, batches or bytes a second, median of the rounds and their range. A ratio is that"
    " of one round; the median of the rounds' ratios is judged.",
)

"""The benchmark of calls and arrays: its rows, systems and parts."""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System, python_of
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least, at_most

BARE = Term("bare", "bare pyzmq")
RAY = Term("ray", "Ray")
LIBRARY = Term("pipe", "ProcessPoolExecutor")
CALL = Term("ours", "a blocking call", "call_s")
EMPTY_CALL = Term("ours", "an empty call", "empty_16_s")


def copy_of(size: str, times: float = 1) -> Term:
    return Term("memory", "one copy", f"copy_{size}", times)


def bare_on_ray(figure: str) -> Term:
    """Return the same figure of an async actor of Ray, without our engine."""
    return Term("on_ray", "a bare async actor", f"bare_{figure}")


def from_memory(size: str, times: float = 1) -> Term:
    """Return a copy from memory, of more than the caches hold."""
    return Term("memory", "one that no cache helps", f"copy_{size}_memory_s", times)


ROWS = (
    Row("blocking call, ipc", "call_s", (at_most(1.3, BARE),)),
    Row("blocking call, tcp; bare pyzmq with CURVE too", "call_tcp_s", (at_most(1.3, BARE),)),
    Row("submitted call, by as_completed", "as_completed_s", (at_most(2, CALL), at_most(1, RAY))),
    Row(
        "pipelined calls, one client, one actor",
        "pipelined_per_s",
        (at_least(40_000), at_least(10, RAY)),
    ),
    Row("pipelined calls, 8 clients, 8 actors", "crowd_per_s", (at_least(8, RAY),)),
    Row("blocking call to an object that has dialled in, through a worker", "call_served_s"),
    Row("pipelined calls to it", "pipelined_served_per_s"),
    Row("array of 10 MB to it and back", "echo_served_10mb_s"),
    Row("`Executor.map` over 4 processes, an empty function", "map_s", (at_most(1.5, LIBRARY),)),
    Row("the same in chunks of 100", "map_chunked_s", (at_most(1.5, LIBRARY),)),
    Row("the same of a function of 10 ms", "map_10ms_s", (at_most(1.1, LIBRARY),)),
    Row(
        "blocking call, our handles on Ray's actors",
        "call_s",
        (at_most(1.3, bare_on_ray("call_s")),),
        of="on_ray",
    ),
    Row(
        "array of 10 MB there and back, the same",
        "echo_10mb_s",
        (at_most(1.5, bare_on_ray("echo_10mb_s")),),
        of="on_ray",
    ),
    Row("array there and back, 0.1 MB", "echo_100kb_s", beside=(copy_of("100kb_s"),)),
    Row(
        "array there and back, 1 MB",
        "echo_1mb_s",
        (at_most(0.35, RAY), at_most(1, BARE)),
        beside=(copy_of("1mb_s"),),
    ),
    Row(
        "array there and back, 10 MB",
        "echo_10mb_s",
        (at_most(4, from_memory("10mb")), at_most(4, copy_of("10mb_s")), at_most(1 / 3, RAY)),
    ),
    Row(
        "array there and back, 100 MB",
        "echo_100mb_s",
        (at_most(4, from_memory("100mb")), at_most(4, copy_of("100mb_s")), at_most(1, RAY)),
    ),
    Row(
        "8 MB of parameters to a group of 16",
        "broadcast_s",
        (
            at_most(1, from_memory("parameters", 2), EMPTY_CALL),
            at_most(1, copy_of("parameters_s", 2), EMPTY_CALL),
            at_most(1 / 4, RAY),
        ),
        beside=(Term("parl", "PARL, to 8", "broadcast_8_s"),),
    ),
    Row("the same by put, to the group", "broadcast_put_s"),
    Row("the same by put, in a loop", "broadcast_put_loop_s"),
    Row("an empty call to the group", "empty_16_s"),
    Row(
        "trajectories of 28 MB, from 4 actors",
        "stream_bytes_per_s",
        (at_least(0.7, copy_of("bytes_per_s")),),
    ),
    Row("16 actors that use torch, with a call each", "spawn_16_torch_s", (at_most(0.3),)),
    Row("unique memory of an actor that uses torch", "torch_uss_bytes", (at_most(10e6),)),
    Row("first actor that uses torch, with a call", "first_torch_s"),
    Row("a further one that uses torch, with a call", "next_torch_s"),
    Row("embedded connect()", "connect_s", (at_most(0.4),)),
    Row("`remotely start`, from the prompt to the next", "start_s", (at_most(1.5),)),
    Row("`remotely stop`", "stop_s"),
    Row("first actor, with a call", "first_actor_s"),
    Row("16 actors, with a call each", "spawn_16_s"),
    Row("shutdown() with 17 actors", "shutdown_s"),
    Row("200 actors, with a call each", "spawn_200_s"),
    Row("an empty call to a group of 199", "empty_199_s"),
    Row(
        "blocking call while 200 actors are alive",
        "call_of_200_s",
        (at_most(1.2, Term("ours", "one while 10 are", "call_of_10_s")),),
    ),
    Row("idle cluster, of one core", "idle_0_share", (at_most(0.005),)),
    Row("idle cluster with 16 actors, of one core", "idle_16_share", (at_most(0.005),)),
    Row("of that, the client", "idle_16_client_share"),
    Row("of that, the master", "idle_16_master_share"),
    Row("of that, the worker", "idle_16_worker_share"),
    Row("of that, the zygote", "idle_16_zygote_share"),
    Row("of that, the actors", "idle_16_actors_share"),
    Row(
        "the master's part in a placement, of 1,000 workers",
        "placement_of_1000_s",
        (at_most(1e-3),),
        beside=(Term("ours", "of 10", "placement_of_10_s"),),
    ),
    Row("what 1,000 workers at rest take of its core", "master_of_1000_share", (at_most(0.1),)),
)

PEERS = python_of(".peers")
PEERS_PARL = python_of(".peers-parl")

SYSTEMS = {
    "ours": System("remotely", OWN, "remotely-actors"),
    "memory": System("one copy", OWN, "numpy", is_limit=True),
    "bare": System("bare pyzmq", OWN, "pyzmq", is_limit=True),
    "pipe": System("multiprocessing", OWN, ""),
    "rpyc": System("RPyC", PEERS, "rpyc"),
    "pyro5": System("Pyro5", PEERS, "Pyro5"),
    "ray": System("Ray", PEERS, "ray", is_quick=False),
    "on_ray": System("remotely on Ray", PEERS, "ray", is_quick=False),
    "xoscar": System("xoscar", PEERS, "xoscar", is_quick=False),
    "parl": System("PARL", PEERS_PARL, "parl", is_quick=False),
}

PARTS: dict[str, dict[str, str]] = {
    "calls": {
        "bare": "peers/of_zmq.py",
        "ours": "ours/calls.py",
        "pipe": "peers/of_pipe.py",
        "rpyc": "peers/of_rpyc.py",
        "pyro5": "peers/of_pyro5.py",
        "ray": "peers/of_ray.py",
        "xoscar": "peers/of_xoscar.py",
        "parl": "peers/of_parl.py",
    },
    "engine": {"on_ray": "ours/on_ray.py"},
    "tcp": {"bare": "peers/of_zmq.py", "ours": "ours/calls.py"},
    "served": {"ours": "ours/served.py"},
    "executor": {"ours": "ours/executor.py", "pipe": "peers/of_executor.py"},
    "crowd": {"ours": "ours/calls.py", "ray": "peers/of_ray.py"},
    "arrays": {
        "memory": "peers/of_memory.py",
        "bare": "peers/of_zmq.py",
        "ours": "ours/arrays.py",
        "ray": "peers/of_ray.py",
        "pipe": "peers/of_pipe.py",
        "xoscar": "peers/of_xoscar.py",
        "parl": "peers/of_parl.py",
    },
    "broadcast": {
        "memory": "peers/of_memory.py",
        "ours": "ours/arrays.py",
        "ray": "peers/of_ray.py",
        "parl": "peers/of_parl.py",
    },
    "streams": {
        "memory": "peers/of_memory.py",
        "ours": "ours/arrays.py",
        "ray": "peers/of_ray.py",
    },
    "spawn": {"ours": "ours/startup.py", "ray": "peers/of_ray.py"},
    "start": {
        "ours": "ours/startup.py",
        "ray": "peers/of_ray.py",
        "xoscar": "peers/of_xoscar.py",
        "parl": "peers/of_parl.py",
    },
    "many": {"ours": "ours/many.py"},
    "idle": {"ours": "ours/idle.py", "ray": "peers/of_ray.py"},
    "registry": {"ours": "ours/master.py"},
}

BENCH = Benchmark(
    command="python -m tools.bench",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-peers",
    code=("remotely",),
    not_quick=frozenset({"registry"}),
)

SECTION = Section(
    BENCH,
    ROOT / "docs" / "lab" / "benchmarks.md",
    "bench",
    "Median of the rounds and their range. A ratio is that of one round; the median of the rounds'"
    ' ratios is judged. "Others" are medians.',
)

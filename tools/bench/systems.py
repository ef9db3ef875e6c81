"""Who measures calls and arrays, and which of them."""

from pathlib import Path

from tools.bench.bars import ROWS
from tools.bench.benchmark import OWN, Benchmark, System, python_of

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

"""Savina's actor benchmarks on remotely, beside Ray, xoscar and Dask's actors.

    python -m tools.bench savina                    all programs, all installed peers, three rounds
    python -m tools.bench savina --quick            small ones, without the slow peers
    python -m tools.bench savina --only big ours ray
    python -m tools.bench savina --write --json run.json

The programs are those of Imam and Sarkar, "Savina, an actor benchmark suite", AGERE 2014
(https://shamsimam.github.io/papers/2014-agere-savina.pdf).  Each is one file of `programs/`, which
says its sizes, and runs unchanged on every system, in the words of words.py; the answer of each
play is checked.  `make bench-peers` installs the peers.  Run it on an idle machine: ratios of
figures of one run are comparable, single figures are of that machine.
"""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System, python_of
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_most
from tools.bench.systems import PEERS
from tools.bench_savina import PROGRAMS

RAY = Term("ray", "Ray")

ROWS = tuple(
    Row(f"{title} (`{name}`)", f"{name}_s", (at_most(1, RAY),)) for name, title in PROGRAMS.items()
)

SYSTEMS = {
    "ours": System("remotely", OWN, "remotely-actors", note="a process for each actor"),
    "ray": System("Ray", PEERS, "ray", is_quick=False, note="a process for each actor"),
    "xoscar": System(
        "xoscar", PEERS, "xoscar", is_quick=False, note="two processes, which the actors share"
    ),
    "dask": System(
        "Dask",
        python_of(".peers-dask"),
        "distributed",
        is_quick=False,
        note="two workers, which the actors share",
    ),
}

SCRIPTS = {
    "ours": "ours/on_remotely.py",
    "ray": "peers/on_ray.py",
    "xoscar": "peers/on_xoscar.py",
    "dask": "peers/on_dask.py",
}

PARTS: dict[str, dict[str, str]] = dict.fromkeys(PROGRAMS, SCRIPTS)

BENCH = Benchmark(
    command="python -m tools.bench savina",
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
    "bench-savina",
    "Seconds of a play, without those in which its actors are made, except of the creation of"
    " actors and of fibonacci, which make them as they go; median of the rounds and their range. A"
    " ratio is that of one round; the median of the rounds' ratios is judged.",
)

"""The benchmarks: how fast remotely and remotely_rl are, beside a floor and peers.

    python -m tools.bench                      calls and arrays: all that is installed here
    python -m tools.bench --quick              under a minute, without the slow peers
    python -m tools.bench --only arrays bare ours
    python -m tools.bench --write --png docs/img/benchmarks.png --json run.json
    python -m tools.bench rl --help            training; and so `replay`, and `vector` environments
    python -m tools.bench_rl.gpu --help        training on a machine with a GPU

What is measured, what it is to reach and who measures it is in the `systems.py` of each; how they
take turns, in turns.py.  `make bench-peers` installs the peers.  Run it on a machine that does
nothing else: a ratio of two figures of one run can be claimed, a figure alone is that machine's.
"""

import importlib
import sys

from tools.bench import program, systems

OTHERS = ("rl", "replay", "vector")


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        other = importlib.import_module(f"tools.bench_{sys.argv.pop(1)}.systems")
        return program.main(other.SECTION, other.__doc__)
    return program.main(systems.SECTION, __doc__)


if __name__ == "__main__":
    sys.exit(main())

"""The benchmarks of remotely and remotely_rl, compared with a minimum and with peers.

    python -m tools.bench                      calls and arrays, with all installed peers
    python -m tools.bench --quick              under a minute, without the slow peers
    python -m tools.bench --only arrays bare ours
    python -m tools.bench --write --png docs/img/benchmarks.png --json run.json
    python -m tools.bench rl --help            training; also `replay` and `vector`
    python -m tools.bench ray --help           in the names of others: also `savina`, `collectors`
    python -m tools.bench_rl.gpu --help        training on a machine with a GPU

Each `systems.py` has the measurements, their targets and the systems; turns.py has their order.
`make bench-peers` installs the peers.  Run it on an idle machine: ratios of figures of one run
are comparable, single figures are of that machine.
"""

import importlib
import sys

from tools.bench import program, systems

OTHERS = ("rl", "replay", "vector", "savina", "ray", "collectors")


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        other = importlib.import_module(f"tools.bench_{sys.argv.pop(1)}.systems")
        return program.main(other.SECTION, other.__doc__)
    return program.main(systems.SECTION, __doc__)


if __name__ == "__main__":
    sys.exit(main())

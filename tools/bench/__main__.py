"""How fast remotely is, beside the floor below it and the peers around it.

    python -m tools.bench                      all that is installed here, three rounds
    python -m tools.bench --quick              under a minute, without the slow peers
    python -m tools.bench --only arrays bare ours
    python -m tools.bench --write --png docs/img/benchmarks.png --json run.json

What is measured and what it is to reach is in bars.py; who measures it, in systems.py; how they
take turns, in turns.py.  `make bench-peers` installs the peers.  Run it on a machine that does
nothing else: a ratio of two figures of one run can be claimed, a figure alone is that machine's.
"""

import sys

from tools.bench import page, program
from tools.bench.systems import BENCH

if __name__ == "__main__":
    sys.exit(program.main(BENCH, __doc__, program.Page(page.PAGE, page.filled)))

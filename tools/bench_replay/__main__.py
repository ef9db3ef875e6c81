"""How fast a replay draws, beside Stable-Baselines3, torchrl, cpprb and a plain copy.

    python -m tools.bench_replay                    all that is installed here, three rounds
    python -m tools.bench_replay --quick            one round of smaller replays
    python -m tools.bench_replay --only uniform_84
    python -m tools.bench_replay --write --json run.json

All hold the same random experience, and return 256 rows as torch tensors.  What is measured and
what it is to reach is in bars.py; who measures it, in systems.py.  `make bench-replay-peers`
installs the others.  It needs 6 GiB of memory.  Run it on a machine that does nothing else.
"""

import sys

from tools.bench import program
from tools.bench_replay.page import SECTION
from tools.bench_replay.systems import BENCH

if __name__ == "__main__":
    sys.exit(program.main(BENCH, __doc__, program.Page(SECTION.path, SECTION.filled)))

"""How fast remotely_rl trains, beside the limit of the machine and installed peers.

    python -m tools.bench_rl                    all that is installed here, three rounds
    python -m tools.bench_rl --quick            one round of short turns, without the slow peers
    python -m tools.bench_rl --only a2c_84 limit_84
    python -m tools.bench_rl --write --png docs/img/throughput.png --json run.json

Everybody trains on Pong: frames in fours, no sticky actions, no GPU; a step is one of the agent's.
What is measured and what it is to reach is in bars.py; who measures it, in systems.py.
`make bench-rl-peers` installs the peers.  Run it on a machine that does nothing else: a ratio of
two figures of one run can be claimed, a figure alone is that machine's.
"""

import sys

from tools.bench import program
from tools.bench_rl.page import SECTION
from tools.bench_rl.systems import BENCH

if __name__ == "__main__":
    sys.exit(program.main(BENCH, __doc__, program.Page(SECTION.path, SECTION.filled)))

"""How fast vector environments step, beside Gymnasium's AsyncVectorEnv and SB3's SubprocVecEnv.

    python -m tools.bench_vector                    all that is installed here, three rounds
    python -m tools.bench_vector --quick            one round of short turns
    python -m tools.bench_vector --only cartpole_8
    python -m tools.bench_vector --write --json run.json

All step the same environments by actions drawn before; a step is one of one environment.  What is
measured and what it is to reach is in bars.py; who measures it, in systems.py.
`make bench-rl-peers` installs Stable-Baselines3.  Run it on a machine that does nothing else: a
ratio of two figures of one run can be claimed, a figure alone is that machine's.
"""

import sys

from tools.bench import program
from tools.bench_vector.page import SECTION
from tools.bench_vector.systems import BENCH

if __name__ == "__main__":
    sys.exit(program.main(BENCH, __doc__, program.Page(SECTION.path, SECTION.filled)))

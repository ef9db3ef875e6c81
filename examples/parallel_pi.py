"""Pi, by darts thrown in four processes at once.  Run it: python examples/parallel_pi.py

To run it on a cluster, give that one's address to `connect` instead: remotely.connect("host:8010").
"""

import contextlib
import random

import remotely

ACTORS = 4
ROUNDS = 5
DARTS_A_ROUND = 200_000


@remotely.remote_class
class Thrower:
    """Throws darts at a square and counts those that land in the circle's quarter."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def throw(self, darts: int) -> int:
        draw = self._random.random
        return sum(draw() ** 2 + draw() ** 2 <= 1 for _ in range(darts))


def main() -> None:
    # So many CPUs to share out, whatever the machine has, and each actor takes one.  Without `cpus`
    # it would be the same, and a line would say so where they outnumber the cores.
    remotely.connect(cpus=ACTORS)
    throwers = remotely.Group([Thrower(seed) for seed in range(ACTORS)])

    inside = thrown = 0
    for _ in range(ROUNDS):
        futures = throwers.throw.submit(DARTS_A_ROUND)  # all of them at once
        for future in remotely.as_completed(futures):  # whoever is first
            inside += future.result()
            thrown += DARTS_A_ROUND
        print(f"{thrown:>9,} darts: pi is about {4 * inside / thrown:.4f}")

    remotely.shutdown()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()

"""A Monte Carlo estimate of pi, in four processes.  Run it: python examples/parallel_pi.py

To run it on a cluster, pass the cluster's address instead: remotely.connect("host:8010").
"""

import random

import remotely

ACTORS = 4
ROUNDS = 5
DARTS_PER_ROUND = 200_000


@remotely.remote_class
class Thrower:
    """Throws darts at a square and counts those that land in the circle's quarter."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def throw(self, darts: int) -> int:
        draw = self._random.random
        return sum(draw() ** 2 + draw() ** 2 <= 1 for _ in range(darts))


def main() -> None:
    # Offer four CPUs, whatever the machine has; each actor takes one.  Without `cpus` the script
    # runs too, and prints a line if the actors outnumber the cores.
    remotely.connect(cpus=ACTORS)
    throwers = remotely.Group([Thrower(seed) for seed in range(ACTORS)])

    inside = thrown = 0
    for _ in range(ROUNDS):
        futures = throwers.throw.submit(DARTS_PER_ROUND)  # on all actors at once
        for future in remotely.as_completed(futures):  # in order of completion
            inside += future.result()
            thrown += DARTS_PER_ROUND
        print(f"{thrown:>9,} darts: pi is about {4 * inside / thrown:.4f}")

    remotely.shutdown()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None

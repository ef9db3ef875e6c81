"""A learner fed by futures: batches go from samplers to the learner, not through this script.

Run it: python examples/learner_fed_by_futures.py

On a cluster (`remotely.connect("host:8010")`) each batch is sent once, from the sampler's machine
to the learner's.  This script sends and receives about two kilobytes per batch, whatever its size.
"""

import numpy as np

import remotely

SAMPLERS = 2
BATCHES = 40
ROWS = 10_000  # per batch: 0.5 MB
WEIGHTS = np.array([1.0, -2.0, 3.0, -4.0, 5.0])


@remotely.remote_class
class Sampler:
    """Draws batches: inputs, and noisy outputs of the function to learn."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        inputs = self._random.normal(size=(ROWS, len(WEIGHTS)))
        return inputs, inputs @ WEIGHTS + self._random.normal(size=ROWS)


@remotely.remote_class
class Learner:
    """Fits a linear function by gradient descent, one step per batch."""

    def __init__(self) -> None:
        self.weights = np.zeros(len(WEIGHTS))

    def learn(self, batch: tuple[np.ndarray, np.ndarray]) -> float:
        """Take one step; return the mean squared error before it."""
        inputs, outputs = batch
        errors = inputs @ self.weights - outputs
        self.weights -= 0.2 * inputs.T @ errors / len(errors)
        return float(np.mean(errors**2))


def main() -> None:
    remotely.connect(cpus=SAMPLERS + 1)
    samplers = [Sampler(seed) for seed in range(SAMPLERS)]
    learner = Learner()

    # Pass a future like any argument: the learner receives its value, in the order of the calls.
    losses = [learner.learn.submit(samplers[i % SAMPLERS].sample.submit()) for i in range(BATCHES)]
    print("mean squared error:", *(f"{loss.result():.1f}" for loss in losses[::8]))
    print("weights:", *(f"{weight:.1f}" for weight in learner.weights))
    remotely.shutdown()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None

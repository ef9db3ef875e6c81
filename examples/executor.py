"""Functions on the cores of a cluster, through the API of concurrent.futures.

Run it: python examples/executor.py

By default the cluster is this machine; for another one, first call remotely.connect("host:8010").
"""

import math
from concurrent.futures import as_completed

import remotely


def smallest_factor(number: int) -> int:
    """Return the smallest factor of a number, or 0 for a prime."""
    return next((n for n in range(2, math.isqrt(number) + 1) if number % n == 0), 0)


@remotely.idempotent(retries=2)  # if its process or machine is lost, it runs again on another
def count_primes(start: int, stop: int) -> int:
    return sum(not smallest_factor(number) for number in range(max(2, start), stop))


def main() -> None:
    with remotely.Executor() as executor:  # max_workers=8 would use at most 8 cores
        numbers = [2**31 - 1, 10**12 + 39, 10**12 + 41]
        for number, factor in zip(numbers, executor.map(smallest_factor, numbers), strict=True):
            print(f"{number} is {f'divisible by {factor}' if factor else 'a prime'}")

        futures = [executor.submit(count_primes, n, n + 20_000) for n in range(0, 100_000, 20_000)]
        primes = sum(future.result() for future in as_completed(futures))
        print(f"there are {primes} primes below 100000")

        lengths = executor.map(len, (f"{n:b}" for n in range(10_000)), chunksize=500)
        print(f"the numbers below 10000 have {sum(lengths)} binary digits")
    remotely.shutdown()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None

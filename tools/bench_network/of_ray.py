"""Ray's client on machine 0, with a Ray cluster on the same machines.

It is a script for the interpreter of `.peers` and imports nothing of this repository.

of_ray.py ADDRESS MACHINES NBYTES TIMES    prints the seconds to one machine, and to all
"""

import json
import sys
import time
from typing import Any

PORT = "6390"


def main(address: str, machines: int, nbytes: int, times: int) -> None:
    import numpy as np  # noqa: PLC0415
    import ray  # noqa: PLC0415

    class Peer:
        def take(self, value: Any) -> int:
            return int(value.nbytes)

    ray.init(address, log_to_driver=False, configure_logging=False)
    try:
        peers = [ray.remote(num_cpus=1)(Peer).remote() for _ in range(machines)]
        value = np.ones(nbytes, np.uint8)

        def send(to: list[Any]) -> float:
            begin = time.perf_counter()
            ref = ray.put(value)
            ray.get([peer.take.remote(ref) for peer in to])
            return time.perf_counter() - begin

        send(peers)
        one = [send(peers[:1]) for _ in range(times)]
        every = [send(peers) for _ in range(times)]
    finally:
        ray.shutdown()
    print(json.dumps({"one_s": one, "all_s": every}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

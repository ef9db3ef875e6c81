"""Ray's microbenchmarks on Ray, with two cores; actors and clients take none of them."""

from typing import Any

import numpy as np
import ray

from tools.bench import processes, stopwatch
from tools.bench.stopwatch import Effort
from tools.bench_ray.effort import (
    ACTORS,
    BATCH,
    CALLS_OF_CLIENT,
    CLIENTS,
    GIGABYTE,
    LARGE_BYTES,
    PIECE_BYTES,
    timed,
)

CPUS = 2


@ray.remote(num_cpus=0)
class Actor:
    def small_value(self) -> bytes:
        return b"ok"

    def small_value_arg(self, x: object) -> bytes:
        return b"ok"


@ray.remote(num_cpus=0)
class AsyncActor:
    async def small_value(self) -> bytes:
        return b"ok"

    async def small_value_with_arg(self, x: object) -> bytes:
        return b"ok"


@ray.remote(num_cpus=0)
class Client:
    def __init__(self, *servers: Any) -> None:
        self.servers = servers

    def small_value_batch(self, n: int) -> None:
        ray.get([server.small_value.remote() for server in self.servers for _ in range(n)])

    def small_value_batch_arg(self, n: int) -> None:
        x = ray.put(0)
        ray.get([server.small_value_arg.remote(x) for server in self.servers for _ in range(n)])

    def round_robin(self, n: int) -> None:
        count = len(self.servers)
        ray.get([self.servers[i % count].small_value.remote() for i in range(n)])

    def tasks(self, n: int) -> None:
        ray.get([small_value.remote() for _ in range(n)])

    def put_small(self) -> None:
        for _ in range(100):
            ray.put(0)

    def put_large(self) -> None:
        for _ in range(10):
            ray.put(np.zeros(PIECE_BYTES // 8, np.int64))


@ray.remote  # type: ignore[untyped-decorator]
def small_value() -> bytes:
    return b"ok"


def objects(effort: Effort) -> None:
    _init()
    value = ray.put(0)
    timed(effort, "single_client_get_calls_Plasma_Store", lambda: ray.get(value))
    timed(effort, "single_client_put_calls_Plasma_Store", lambda: ray.put(0))
    array = np.zeros(LARGE_BYTES // 8, np.int64)
    large = lambda: ray.put(array)
    timed(effort, "single_client_put_gigabytes", large, GIGABYTE * 1e9, "bytes_per_s")
    clients = [Client.remote() for _ in range(CLIENTS)]
    small = lambda: ray.get([client.put_small.remote() for client in clients])
    timed(effort, "multi_client_put_calls_Plasma_Store", small, 100 * CLIENTS)
    pieces = lambda: ray.get([client.put_large.remote() for client in clients])
    each = CLIENTS * GIGABYTE * 1e9
    timed(effort, "multi_client_put_gigabytes", pieces, each, "bytes_per_s")


def tasks(effort: Effort) -> None:
    _init()
    one = lambda: ray.get(small_value.remote())
    many = lambda: ray.get([small_value.remote() for _ in range(BATCH)])

    def wait() -> None:
        left = [small_value.remote() for _ in range(BATCH)]
        is_first = True  # the references are fetched once, as in Ray's
        while left:
            _, left = ray.wait(left, fetch_local=is_first)
            is_first = False

    timed(effort, "single_client_tasks_sync", one)
    timed(effort, "single_client_tasks_async", many, BATCH)
    timed(effort, "single_client_tasks_and_get_batch", many)
    timed(effort, "single_client_wait_1k_refs", wait)
    clients = [Client.remote() for _ in range(CLIENTS)]
    run = lambda: ray.get([client.tasks.remote(BATCH) for client in clients])
    timed(effort, "multi_client_tasks_async", run, CLIENTS * BATCH)


def calls(effort: Effort) -> None:
    _init()
    actor = Actor.remote()
    timed(effort, "1_1_actor_calls_sync", lambda: ray.get(actor.small_value.remote()))
    timed(effort, "1_1_actor_calls_async", batch(actor), BATCH)
    concurrent = Actor.options(max_concurrency=16).remote()
    timed(effort, "1_1_actor_calls_concurrent", batch(concurrent), BATCH)
    servers = [Actor.remote() for _ in range(ACTORS)]
    one_to_n(effort, "1_n_actor_calls_async", servers)
    n_to_n(effort, "n_n_actor_calls_async", servers)
    clients = [Client.remote(server) for server in servers]
    with_arg = lambda: ray.get([client.small_value_batch_arg.remote(BATCH) for client in clients])
    timed(effort, "n_n_actor_calls_with_arg_async", with_arg, BATCH * ACTORS)


def async_calls(effort: Effort) -> None:
    _init()
    actor = AsyncActor.remote()
    timed(effort, "1_1_async_actor_calls_sync", lambda: ray.get(actor.small_value.remote()))
    timed(effort, "1_1_async_actor_calls_async", batch(actor), BATCH)
    with_args = lambda: ray.get([actor.small_value_with_arg.remote(i) for i in range(BATCH)])
    timed(effort, "1_1_async_actor_calls_with_args_async", with_args, BATCH)
    servers = [AsyncActor.remote() for _ in range(ACTORS)]
    one_to_n(effort, "1_n_async_actor_calls_async", servers)
    n_to_n(effort, "n_n_async_actor_calls_async", servers)


def batch(actor: Any) -> Any:
    return lambda: ray.get([actor.small_value.remote() for _ in range(BATCH)])


def one_to_n(effort: Effort, name: str, servers: list[Any]) -> None:
    client = Client.remote(*servers)
    run = lambda: ray.get(client.small_value_batch.remote(CALLS_OF_CLIENT))
    timed(effort, name, run, CALLS_OF_CLIENT * ACTORS)


def n_to_n(effort: Effort, name: str, servers: list[Any]) -> None:
    clients = [Client.remote(*servers) for _ in range(CLIENTS)]
    run = lambda: ray.get([client.round_robin.remote(CALLS_OF_CLIENT) for client in clients])
    timed(effort, name, run, CALLS_OF_CLIENT * CLIENTS)


def _init() -> None:
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
    processes.wait_until_quiet()  # processes for later tasks are still starting


if __name__ == "__main__":
    stopwatch.main({"objects": objects, "tasks": tasks, "calls": calls, "async_calls": async_calls})

"""Ray's microbenchmarks on remotely: tasks are functions of an Executor, objects are puts."""

from typing import Any

import numpy as np

import remotely
from tools.bench import stopwatch
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


@remotely.remote_class(cpus=0)
class Actor:
    def small_value(self) -> bytes:
        return b"ok"

    def small_value_arg(self, x: object) -> bytes:
        return b"ok"


@remotely.remote_class(cpus=0)
class AsyncActor:
    async def small_value(self) -> bytes:
        return b"ok"

    async def small_value_with_arg(self, x: object) -> bytes:
        return b"ok"


@remotely.remote_class(cpus=0)
class Client:
    def __init__(self, *servers: Any) -> None:
        self.servers = servers

    def small_value_batch(self, n: int) -> None:
        results_of([server.small_value.submit() for server in self.servers for _ in range(n)])

    def small_value_batch_arg(self, n: int) -> None:
        x = remotely.put(0)
        results_of([server.small_value_arg.submit(x) for server in self.servers for _ in range(n)])

    def round_robin(self, n: int) -> None:
        count = len(self.servers)
        results_of([self.servers[i % count].small_value.submit() for i in range(n)])

    def tasks(self, n: int) -> None:
        with remotely.Executor(1) as executor:
            results_of([executor.submit(small_value) for _ in range(n)])

    def put_small(self) -> None:
        for _ in range(100):
            remotely.put(0)

    def put_large(self) -> None:
        for _ in range(10):
            remotely.put(np.zeros(PIECE_BYTES // 8, np.int64))


def small_value() -> bytes:
    return b"ok"


def results_of(futures: list[Any]) -> None:
    for future in futures:
        future.result()


def objects(effort: Effort) -> None:
    remotely.connect(cpus=CPUS)
    value = remotely.put(0)
    timed(effort, "single_client_get_calls_Plasma_Store", lambda: remotely.get(value))
    timed(effort, "single_client_put_calls_Plasma_Store", lambda: remotely.put(0))
    array = np.zeros(LARGE_BYTES // 8, np.int64)
    large = lambda: remotely.put(array)
    timed(effort, "single_client_put_gigabytes", large, GIGABYTE * 1e9, "bytes_per_s")
    clients: Any = remotely.group(Client, CLIENTS)
    small = lambda: clients.put_small()
    timed(effort, "multi_client_put_calls_Plasma_Store", small, 100 * CLIENTS)
    pieces = lambda: clients.put_large()
    each = CLIENTS * GIGABYTE * 1e9
    timed(effort, "multi_client_put_gigabytes", pieces, each, "bytes_per_s")


def tasks(effort: Effort) -> None:
    remotely.connect(cpus=CPUS)
    with remotely.Executor(CPUS) as executor:
        one = lambda: executor.submit(small_value).result()
        many = lambda: results_of([executor.submit(small_value) for _ in range(BATCH)])

        def wait() -> None:
            left = {executor.submit(small_value) for _ in range(BATCH)}
            for future in remotely.as_completed(left):
                future.result()

        timed(effort, "single_client_tasks_sync", one)
        timed(effort, "single_client_tasks_async", many, BATCH)
        timed(effort, "single_client_tasks_and_get_batch", many)
        timed(effort, "single_client_wait_1k_refs", wait)
    clients: Any = remotely.group(Client, CLIENTS)
    run = lambda: clients.tasks(BATCH)
    timed(effort, "multi_client_tasks_async", run, CLIENTS * BATCH)


def calls(effort: Effort) -> None:
    remotely.connect(cpus=CPUS)
    actor: Any = Actor()
    timed(effort, "1_1_actor_calls_sync", lambda: actor.small_value())
    timed(effort, "1_1_actor_calls_async", batch(actor), BATCH)
    concurrent = remotely.options(Actor, concurrency=16)()
    timed(effort, "1_1_actor_calls_concurrent", batch(concurrent), BATCH)
    servers: Any = remotely.group(Actor, ACTORS)
    one_to_n(effort, "1_n_actor_calls_async", servers)
    n_to_n(effort, "n_n_actor_calls_async", servers)
    clients: Any = remotely.Group([Client(server) for server in servers])
    with_arg = lambda: clients.small_value_batch_arg(BATCH)
    timed(effort, "n_n_actor_calls_with_arg_async", with_arg, BATCH * ACTORS)


def async_calls(effort: Effort) -> None:
    remotely.connect(cpus=CPUS)
    actor: Any = AsyncActor()
    timed(effort, "1_1_async_actor_calls_sync", lambda: actor.small_value.submit().result())
    timed(effort, "1_1_async_actor_calls_async", batch(actor), BATCH)
    with_args = lambda: results_of([actor.small_value_with_arg.submit(i) for i in range(BATCH)])
    timed(effort, "1_1_async_actor_calls_with_args_async", with_args, BATCH)
    servers: Any = remotely.group(AsyncActor, ACTORS)
    one_to_n(effort, "1_n_async_actor_calls_async", servers)
    n_to_n(effort, "n_n_async_actor_calls_async", servers)


def batch(actor: Any) -> Any:
    return lambda: results_of([actor.small_value.submit() for _ in range(BATCH)])


def one_to_n(effort: Effort, name: str, servers: Any) -> None:
    client = Client(*servers)
    run = lambda: client.small_value_batch(CALLS_OF_CLIENT)
    timed(effort, name, run, CALLS_OF_CLIENT * ACTORS)


def n_to_n(effort: Effort, name: str, servers: Any) -> None:
    clients: Any = remotely.group(Client, CLIENTS, *servers)
    run = lambda: clients.round_robin(CALLS_OF_CLIENT)
    timed(effort, name, run, CALLS_OF_CLIENT * CLIENTS)


if __name__ == "__main__":
    stopwatch.main({"objects": objects, "tasks": tasks, "calls": calls, "async_calls": async_calls})

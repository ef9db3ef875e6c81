"""The minimum of a remote call: a DEALER and a ROUTER in another process, with nothing between."""

import contextlib
import multiprocessing
import tempfile
from collections.abc import Iterator

import zmq

from tools.bench import stopwatch
from tools.bench.stopwatch import Array, Effort, report

CALL = b"x" * 40  # about the size of a call without arguments
Pair = tuple[bytes, bytes]
Socket = zmq.Socket[bytes]


def calls(effort: Effort) -> None:
    with _router(copy=True) as dealer:
        report(
            call_s=stopwatch.per_call(lambda n: _blocking(dealer, n), effort.calls, effort.repeats),
            pipelined_per_s=1
            / stopwatch.per_call(lambda n: _pipelined(dealer, n), effort.pipelined, effort.repeats),
        )


def tcp(effort: Effort) -> None:
    with _router(copy=True, tcp=True, pair=zmq.curve_keypair()) as dealer:
        run = lambda n: _blocking(dealer, n)
        report(call_tcp_s=stopwatch.per_call(run, effort.calls, effort.repeats))


def arrays(effort: Effort) -> None:
    def run(array: Array, count: int) -> None:
        for _ in range(count):
            dealer.send(zmq.Frame(array.data), copy=False)
            dealer.recv(copy=False)

    with _router(copy=False) as dealer:
        stopwatch.echoes(run, effort)


def _blocking(dealer: Socket, count: int) -> None:
    for _ in range(count):
        dealer.send(CALL)
        dealer.recv()


def _pipelined(dealer: Socket, count: int) -> None:
    for _ in range(count):
        dealer.send(CALL)
    for _ in range(count):
        dealer.recv()


@contextlib.contextmanager
def _router(copy: bool, tcp: bool = False, pair: Pair | None = None) -> Iterator[Socket]:
    """Yield a DEALER connected to a ROUTER that echoes; with CURVE if there is a pair."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"tcp://127.0.0.1:{stopwatch.free_port()}" if tcp else f"ipc://{folder}/router"
        router = multiprocessing.Process(target=_serve, args=(address, copy, pair), daemon=True)
        router.start()
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.set_hwm(0)
            dealer.linger = 0
            if pair is not None:
                dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
                dealer.curve_serverkey = pair[0]
            dealer.connect(address)
            yield dealer
        router.terminate()
        router.join()


def _serve(address: str, copy: bool, pair: Pair | None) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    router.set_hwm(0)
    if pair is not None:
        router.curve_server = True
        router.curve_secretkey = pair[1]
    router.bind(address)
    while True:
        router.send_multipart(router.recv_multipart(0, copy), copy=copy)


if __name__ == "__main__":
    stopwatch.main({"calls": calls, "tcp": tcp, "arrays": arrays})

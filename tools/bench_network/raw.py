"""The minimum: a plain connection, one thread on each side; TCP alone, or TLS 1.3 over it.

python -m tools.bench_network.raw tcp|tls serve
python -m tools.bench_network.raw tcp|tls send ADDRESS NBYTES TIMES    prints seconds there and back
"""

import json
import socket
import sys
import time
from collections.abc import Callable

from remotely.transport import certificate

PORT = 9009
PIECE_BYTES = 1 << 18  # at a time, because TLS holds a lock meanwhile

Wrap = Callable[[socket.socket], socket.socket]


def plain(connection: socket.socket) -> socket.socket:
    return connection


def serve(wrap: Wrap) -> None:
    """Echo the values of one connection after the other, in a reused buffer."""
    memory = bytearray()
    with socket.create_server(("0.0.0.0", PORT)) as listener:
        print("ready", flush=True)
        while True:
            raw, _ = listener.accept()
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with wrap(raw) as connection:
                head = bytearray(8)
                _receive(connection, head)
                nbytes = int.from_bytes(head, "big")
                memory = memory if len(memory) == nbytes else bytearray(nbytes)
                while _receive(connection, memory):
                    connection.sendall(b".")
                    connection.recv(1)
                    _send(connection, memory)


def send(wrap: Wrap, address: str, nbytes: int, times: int) -> None:
    there, back = [], []
    value, memory = bytes(nbytes), bytearray(nbytes)
    raw = socket.create_connection((address, PORT))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with wrap(raw) as connection:
        connection.sendall(nbytes.to_bytes(8, "big"))
        for _ in range(times):
            begin = time.perf_counter()
            _send(connection, value)
            connection.recv(1)
            middle = time.perf_counter()
            connection.sendall(b".")
            _receive(connection, memory)
            there.append(middle - begin)
            back.append(time.perf_counter() - middle)
    print(json.dumps({"there_s": there, "back_s": back}))


def _send(connection: socket.socket, memory: bytes | bytearray) -> None:
    view = memoryview(memory)
    for at in range(0, len(view), PIECE_BYTES):
        connection.sendall(view[at : at + PIECE_BYTES])


def _receive(connection: socket.socket, memory: bytearray) -> bool:
    view, at = memoryview(memory), 0
    while at < len(view):
        count = connection.recv_into(view[at:])
        if not count:
            return False
        at += count
    return True


if __name__ == "__main__":
    if sys.argv[2] == "serve":
        context = certificate.make().context
        serve(plain if sys.argv[1] == "tcp" else lambda raw: context.wrap_socket(raw, True))
    else:
        wrap = plain if sys.argv[1] == "tcp" else certificate.client_context().wrap_socket
        send(wrap, sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))

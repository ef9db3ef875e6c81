"""The floor: a plain TCP connection, one thread on each side, and no encryption.

python -m tools.bench_network.raw serve
python -m tools.bench_network.raw send ADDRESS NBYTES TIMES    prints seconds there and back
"""

import json
import socket
import sys
import time

PORT = 9009


def serve() -> None:
    """Send back what arrives, one connection after the other, in a buffer that is reused."""
    memory = bytearray()
    with socket.create_server(("0.0.0.0", PORT)) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                nbytes = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
                memory = memory if len(memory) == nbytes else bytearray(nbytes)
                while _receive(connection, memory):
                    connection.sendall(b".")
                    connection.recv(1)
                    connection.sendall(memory)


def send(address: str, nbytes: int, times: int) -> None:
    there, back = [], []
    value, memory = bytes(nbytes), bytearray(nbytes)
    with socket.create_connection((address, PORT)) as connection:
        connection.sendall(nbytes.to_bytes(8, "big"))
        for _ in range(times):
            begin = time.perf_counter()
            connection.sendall(value)
            connection.recv(1)
            middle = time.perf_counter()
            connection.sendall(b".")
            _receive(connection, memory)
            there.append(middle - begin)
            back.append(time.perf_counter() - middle)
    print(json.dumps({"there_s": there, "back_s": back}))


def _receive(connection: socket.socket, memory: bytearray) -> bool:
    view, at = memoryview(memory), 0
    while at < len(view):
        count = connection.recv_into(view[at:])
        if not count:
            return False
        at += count
    return True


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

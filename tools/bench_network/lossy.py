"""A line between two machines that loses and delays packets, without the kernel's netem.

It is a process with a network device (tun) in each of two namespaces.  It carries packets from one
to the other after a delay, and drops some at random.

    python -m tools.bench_network.lossy SPACE ADDRESS SPACE ADDRESS LOSS_PERCENT DELAY_MS
"""

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import sys
import time

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
_CLONE_NEWNET = 0x40000000
DEVICE = "lossy"


def device_in(space: str, address: str) -> int:
    """Return a device of a namespace with this address."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{space}", os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        name = struct.pack("16sH", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(fd, _TUNSETIFF, name)
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)
    ip = ["ip", "-n", space]
    subprocess.run([*ip, "addr", "add", f"{address}/24", "dev", DEVICE], check=True)
    subprocess.run([*ip, "link", "set", DEVICE, "up"], check=True)
    return fd


def carry(one: int, two: int, loss: float, delay_s: float) -> None:
    draw = random.Random(1)
    order = itertools.count()
    due: list[tuple[float, int, int, bytes]] = []
    poll = select.poll()
    other = {one: two, two: one}
    for fd in other:
        poll.register(fd, select.POLLIN)
    while True:
        wait_ms = max(0.0, 1000 * (due[0][0] - time.monotonic())) if due else None
        for fd, _ in poll.poll(wait_ms):
            for _ in range(100):
                try:
                    packet = os.read(fd, 65536)
                except BlockingIOError:
                    break
                if draw.random() >= loss:
                    at = time.monotonic() + delay_s
                    heapq.heappush(due, (at, next(order), other[fd], packet))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, fd, packet = heapq.heappop(due)
            try:
                os.write(fd, packet)
            except BlockingIOError:  # its queue is full: the packet is lost
                pass


if __name__ == "__main__":
    from_space, from_address, to_space, to_address, percent, delay_ms = sys.argv[1:]
    ends = device_in(from_space, from_address), device_in(to_space, to_address)
    print("ready", flush=True)
    carry(*ends, float(percent) / 100, float(delay_ms) / 1000)

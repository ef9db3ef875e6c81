"""A semaphore whose number can be changed."""

import threading
from functools import partial
from operator import eq

from remotely_rl.learning.semaphore import ResizableSemaphore
from tests.clusters import wait_until


def test_so_many_are_let_in_at_a_time_and_the_number_can_be_raised_and_lowered() -> None:
    semaphore = ResizableSemaphore(1)
    inside, most = [0], [0]
    counting, leave = threading.Lock(), threading.Semaphore(0)

    def go_in() -> None:
        with semaphore:
            with counting:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            leave.acquire()
            with counting:
                inside[0] -= 1

    crowd = [threading.Thread(target=go_in, daemon=True) for _ in range(8)]
    for one in crowd:
        one.start()
    for width in (1, 3):
        semaphore.resize(width)
        wait_until(partial(eq, inside, [width]), f"{width} are inside")
        assert most[0] == width
    semaphore.resize(2)  # one leaves, and nobody comes in its place
    leave.release()
    wait_until(lambda: inside[0] == 2, "two are inside")
    for _ in crowd:
        leave.release()
    for one in crowd:
        one.join(10)
    assert inside[0] == 0
    assert most[0] == 3

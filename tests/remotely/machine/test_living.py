"""Objects for as long as they exist."""

import gc
import os
import threading

from remotely.machine.living import Living


class Member:
    pass


def test_it_has_what_exists_in_order() -> None:
    living: Living[Member] = Living()
    members = [Member() for _ in range(3)]
    for member in members:
        living.add(member)
    assert living.all() == members
    del member, members[1]
    gc.collect()
    assert living.all() == members


def test_it_may_be_extended_while_another_thread_goes_through_it() -> None:
    living: Living[Member] = Living()
    kept = [Member() for _ in range(100)]
    over = threading.Event()

    def extend() -> None:
        for _ in range(20_000):
            living.add(Member())
        over.set()

    for member in kept:
        living.add(member)
    thread = threading.Thread(target=extend)
    thread.start()
    while not over.is_set():
        assert living.all()[:100] == kept
    thread.join()


def test_a_forked_child_begins_with_an_empty_one() -> None:
    living: Living[Member] = Living()
    member = Member()
    living.add(member)
    if (pid := os.fork()) == 0:
        os._exit(len(living.all()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert living.all() == [member]

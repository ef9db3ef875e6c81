"""The mark by which a worker knows what its actors have started, whatever became of it.

It is a variable of the environment (host.TAG), since that is inherited.  But the kernel shows the
environment that a process had when it last executed a program (man 5 proc), and an actor is a fork
of the zygote: so is what the actor forks in its turn.  What the kernel shows is the process's own
memory, though.  So the zygote is started with room for a mark, and an actor writes its own there.
"""

import ctypes

from remotely import host

ROOM = "-" * 65  # two ids and a colon


def mark(tag: str) -> None:
    """Have the kernel show this tag for our process, and for what we fork.

    To be called before the variable is changed by other means: those put it elsewhere in memory.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    room = getenv(host.TAG.encode())
    if room and len(tag) <= (length := len(ctypes.string_at(room))):
        ctypes.memmove(room, tag.encode().ljust(length, b"\0"), length)

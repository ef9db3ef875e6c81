"""The engine of "ray:..." addresses: the same objects, as actors of a Ray cluster.

    address    "ray:auto", "ray:local", "ray:HOST:PORT", and the sentences for bad ones
    session    how this process joins a cluster, or starts one
    engine     the verbs of the seam
    placing    how an actor gets its room, its process and its object, in each of its lives
    actor      one actor as a client knows it, and what Ray's errors mean
    calls      how calls leave, and how their outcomes arrive
    stored     values in Ray's object store, which arguments refer to
    host       the Ray actor in which one object lives
    report     who is on the cluster

An object lives in one Ray actor of its own, its Host, which runs the same servant as an actor of
ours (remotely/actor/hosted.py).  Ray starts the process, carries bytes and notices its end.
Values are pickled by our codec.  Large buffers, and results that are passed on, lie in Ray's object
store; Ray sees no pickle of ours, and so counts references by the ObjectRefs beside it.

Ray is imported where such an address is used, and nowhere else.
"""

from remotely.engine import Promises

PROMISES = Promises(
    own_process=False,
    exit_status=False,
    output=False,
    deadlocks=False,
    keys=False,
    detached_restarts=False,
    dial_in=False,
    exact_doubt=False,
)

"""The carrier of "ray:..." addresses: remote objects as actors of a Ray cluster.

    address    "ray:auto", "ray:local", "ray:HOST:PORT", and the errors for bad ones
    session    joining a cluster, or starting one
    carrier    the verbs of a `calling.carrier.Carrier`
    placing    the resources, process and object of an actor, in each of its lives
    actor      one actor as a client knows it, and the meaning of Ray's errors
    channel    sending calls to one life of an actor, and receiving their outcomes
    stored     values in Ray's object store, which arguments refer to
    host       the Ray actor that contains one object
    report     the status of the cluster

Each object has a Ray actor of its own, its Host, which runs the same servant as an actor of ours
(remotely/actor/hosted.py).  Ray starts the process, carries bytes and detects the end of the
process.  Our codec pickles values.  Large buffers, and results that are passed on, are in Ray's
object store.  Ray never sees our pickles, so it counts references by the ObjectRefs sent with them.

Ray is imported only when such an address is used.
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
    shared_ownership=False,
    debugger=False,
)

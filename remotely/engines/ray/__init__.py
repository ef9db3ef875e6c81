"""The engine of "ray:..." addresses: the same objects, as actors of a Ray cluster.

    address      "ray:auto", "ray:local", "ray:HOST:PORT", and the sentences for bad ones
    session      how this process joins a cluster, or starts one
    engine       the verbs of the seam
    remote       one actor as a client knows it
    factory      how actors are made
    births       what a new actor is given, and where it may be
    room         what room actors need, and how a group waits for it
    calls        how calls leave
    referred     what their arguments refer to
    put          values that are kept in Ray's store
    replies      how the outcomes of calls arrive
    frames       messages as Ray carries them
    host         the Ray actor in which one object lives
    serial_host  that of an object with plain methods
    async_host   that of an object which serves several calls at a time
    ends         what Ray's errors mean
    restarts     how an actor that died is given its next life
    report       who is on the cluster
    promises     what Ray does not keep

An object lives in one Ray actor of its own, its Host, which runs the same servant as an actor of
ours (remotely/actor/hosted.py).  Ray starts the process, carries bytes and notices its end.
Values are pickled by our codec.  Large buffers, and results that are passed on, lie in Ray's object
store; Ray sees no pickle of ours, and so counts references by the ObjectRefs beside it.

Ray is imported where such an address is used, and nowhere else.
"""

"""The engine of "ray:..." addresses: the same objects, as actors of a Ray cluster.

    address     "ray:auto", "ray:local", "ray:HOST:PORT", and the sentences for bad ones
    engine      the verbs of the seam
    remote      one actor as a client knows it
    factory     how actors are made
    calls       how calls leave
    replies     how the outcomes of calls arrive
    host        the Ray actor in which one object lives
    births      what a new actor is given, and where it may be
    room        what room actors need, and how a group waits for it
    ends        what Ray's errors mean
    restarts    how an actor that died is given its next life
    report      who is on the cluster
    promises    what Ray does not keep

An object lives in one async Ray actor of its own, its Host, which runs the same servant as an actor
of ours (remotely/actor/hosted.py).  Ray starts the process, carries bytes and notices its end.
Values are pickled by our codec.  Large buffers, and results that are passed on, lie in Ray's object
store; Ray sees no pickle of ours, and so counts references by the ObjectRefs beside it.

Ray is imported where such an address is used, and nowhere else.
"""

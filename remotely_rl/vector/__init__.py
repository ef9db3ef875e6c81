"""VectorEnv: a Gymnasium vector environment whose environments live in supervised actors.

It imports no torch.

    vector_env.py   VectorEnv, as its user sees it
    hosts.py        Hosts: all of its hosts, any of which may die between a call and its answer
    host.py         Host: the actor, with a few environments
    seat.py         Seat: what the VectorEnv holds of a host, and how it is replaced
    states.py       what follows from what happens to a seat: a table, without I/O
    board.py        Board: the rows of all environments, in memory that hosts of this machine share
    bells.py        how they wake each other
"""

from remotely_rl.vector.vector_env import VectorEnv

__all__ = ["VectorEnv"]

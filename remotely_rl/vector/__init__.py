"""VectorEnv: a Gymnasium vector environment whose environments run in supervised actors.

It does not import torch.

    vector_env.py   VectorEnv, the public class
    hosts.py        Hosts: all hosts of a VectorEnv; any of them may die during a call
    host.py         Host: the actor, with a few environments
    whole.py        Whole: a vector environment as the environments of a host
    seat.py         Seat: the VectorEnv's side of one host, and its replacement
    states.py       the state table of the seats, without I/O
    board.py        Board: the rows of all environments, in memory shared with local hosts
    bells.py        the pipes by which a VectorEnv and its local hosts wake each other
"""

from remotely_rl.vector.vector_env import VectorEnv

__all__ = ["VectorEnv"]

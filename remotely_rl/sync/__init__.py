"""Sync rules: how the gradients of many workers become one set of parameters.

    from remotely_rl import sync

    rule = sync.make("semi_async:n=4,counted=3", parameters, clients=8)
    reply = rule.push(client=0, contribution=gradient, version=0)

A rule is a pure object, in `rules/`; `rule.py` says what they share.  The same
object is driven by the simulator (`simulation/`) and by a parameter server on a cluster
(`learning/parameter_server.py`).  `client.py` is the part that runs at a worker, `gates.py` what
withholds messages.
"""

from remotely_rl.errors import SyncError
from remotely_rl.sync.client import Client
from remotely_rl.sync.gates import Gates
from remotely_rl.sync.rule import Accepted, Counters, Release, Reply, Rule, sgd
from remotely_rl.sync.specs import RULES, make, settings_of, summary_of

__all__ = [
    "RULES",
    "Accepted",
    "Client",
    "Counters",
    "Gates",
    "Release",
    "Reply",
    "Rule",
    "SyncError",
    "make",
    "settings_of",
    "sgd",
    "summary_of",
]

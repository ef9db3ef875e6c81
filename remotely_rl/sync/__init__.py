"""Sync rules: how the gradients of many workers become one set of parameters.

    from remotely_rl import sync

    rule = sync.make("semi_async:n=4,counted=3", parameters, clients=8)
    reply = rule.push(client=0, contribution=gradient, version=0)

Rules are pure objects: `rule.py` has the base class, `rules/` the rules.  The simulator
(`simulation/`) and the parameter server (`learning/parameter_server.py`) drive the same objects.
`client.py` is the part of a rule that runs on a worker; `gates.py` withholds messages to save
bandwidth.
"""

from remotely_rl.errors import SyncError
from remotely_rl.sync.client import Client
from remotely_rl.sync.gates import Gates
from remotely_rl.sync.rule import Accepted, Release, Reply, Rule, RuleCounters, sgd
from remotely_rl.sync.specs import RULES, make, settings_of, summary_of

__all__ = [
    "RULES",
    "Accepted",
    "Client",
    "RuleCounters",
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

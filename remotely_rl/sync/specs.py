"""Rules by name, and specs of rules: `NAME` or `NAME:SETTING=VALUE,...`, as in `--sync`."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from remotely_rl.errors import SyncError, nearest
from remotely_rl.settings import Setting, settings, whole
from remotely_rl.sync.client import MakeOptimizer
from remotely_rl.sync.gates import Gates
from remotely_rl.sync.rule import Rule, sgd
from remotely_rl.sync.rules.asynchronous import (
    Asynchronous,
    DelayCompensated,
    ExponentialPenalty,
    StalenessScaled,
)
from remotely_rl.sync.rules.fasgd import Fasgd
from remotely_rl.sync.rules.local_steps import DiLoCo, ElasticAveraging, LocalSteps
from remotely_rl.sync.rules.semi_async import SemiAsync
from remotely_rl.sync.rules.synchronous import (
    BackupWorkers,
    SoftSync,
    StaleSynchronous,
    Synchronous,
)

RULES: dict[str, type[Rule]] = {
    "synchronous": Synchronous,
    "soft_sync": SoftSync,
    "backup_workers": BackupWorkers,
    "semi_async": SemiAsync,
    "stale_synchronous": StaleSynchronous,
    "asynchronous": Asynchronous,
    "sasgd": StalenessScaled,
    "exponential_penalty": ExponentialPenalty,
    "delay_compensated": DelayCompensated,
    "fasgd": Fasgd,
    "b_fasgd": Fasgd,
    "elastic_averaging": ElasticAveraging,
    "local_sgd": LocalSteps,
    "diloco": DiLoCo,
}
# B-FASGD is FASGD with gates, here with the default weights of the authors' code.
GATED = {"b_fasgd": {"gate_push": "0.01", "gate_fetch": "0.01"}}
DESCENT = sgd(0.1)
RATE = "rate"
GATE = "gate_"  # the prefix of the settings of `Gates` in a spec


def settings_of(name: str) -> list[Setting]:
    """Return the settings of a rule, without those of `Gates`, which work with any rule."""
    return settings(_rule(name))


def summary_of(name: str) -> str:
    """Return the first paragraph of the docstring of a rule's class, or of its module."""
    kind = _rule(name)
    of_file = sys.modules[kind.__module__].__doc__ or ""
    of_class = kind.__doc__ or "See"
    prose = of_file if of_class.startswith("See") else of_class
    return prose.split("\n\n")[0].replace("\n", " ")


def make(spec: str, parameters: Tensor, clients: int, optimizer: MakeOptimizer = DESCENT) -> Rule:
    """Make a rule from a spec: `fasgd`, `semi_async:n=4,counted=3`, `sasgd:gate_fetch=0.1`.

    `parameters` [P] are the initial ones of all clients.  `rate=0.1` in a spec replaces the
    optimizer by plain descent at that rate.  Raises SyncError for an unknown rule or setting,
    suggesting the closest match, and for a value of the wrong type or out of range.
    """
    name, _, rest = spec.partition(":")
    kind = _rule(name)
    given = {**GATED.get(name, {}), **_pairs(spec, rest)}
    gates = {key[len(GATE) :]: text for key, text in given.items() if key.startswith(GATE)}
    own = {key: text for key, text in given.items() if not key.startswith(GATE)}
    fixes_rate = RATE in own
    if fixes_rate:
        optimizer = sgd(_value(float, RATE, own.pop(RATE)))
    rule = kind(
        parameters,
        clients,
        optimizer,
        gates=Gates(**_values(Gates, gates, GATE)) if gates else None,
        **_values(kind, own, ""),
    )
    rule.has_fixed_rate |= fixes_rate
    return rule


def _rule(name: str) -> type[Rule]:
    if name not in RULES:
        hint = nearest(name, RULES) or f"; there is {', '.join(RULES)}"
        raise SyncError(f"no rule is called {name!r}{hint}")
    return RULES[name]


def _pairs(spec: str, rest: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, rest.split(",")):
        key, equals, text = part.partition("=")
        if not equals:
            raise SyncError(f"a rule is NAME:SETTING=VALUE,..., not {spec!r}")
        pairs[key.strip()] = text.strip()
    return pairs


def _values(kind: type, texts: Mapping[str, str], prefix: str) -> dict[str, Any]:
    known = {setting.name: setting for setting in settings(kind)}
    values: dict[str, Any] = {}
    for key, text in texts.items():
        if key not in known:
            raise SyncError(f"there is no setting {prefix + key!r}{nearest(key, known)}")
        values[key] = _value(known[key].first_kind, prefix + key, text)
    return values


def _value(kind: type, name: str, text: str) -> Any:
    parse: Callable[[str], Any] = {
        bool: {"true": True, "false": False}.__getitem__,
        int: whole,
    }.get(kind, kind)
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise SyncError(f"{name} must be of type {kind.__name__}, not {text!r}") from None

"""The oracle for calls under faults: it compares the journals of clients and actors.

A client records each call before it is sent, and its single outcome; an actor appends the call's id
to a file before it replies.  Then

    a value                    the id is in the file, once
    an error, "did not run"    the id is not in the file
    an error, "may have run"   either; but at most one call of a dead actor had begun without
                               recording its id
    any id                     in the file at most once, unless its method is idempotent
    a call without an outcome  its client was killed; for a living client, a call without an
                               outcome at the deadline is a hang

Zero failures in n trials bound their rate by 3/n at 95 % (the rule of three): n is always reported.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

AGAIN = "r"  # the suffix of a call's id if its method is idempotent: the call may be retried
_DIED = re.compile(r"\(pid \d+ on \S+\) ended with")


class Outcome(Enum):
    VALUE = "value"
    MAY_HAVE_RUN = "may have run"
    DID_NOT_RUN = "did not run"
    HUNG = "hung"
    ODD = "odd"  # an unexpected error


@dataclass
class Verdict:
    """The result; `anomalies` is empty if all promises held."""

    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {name}" for name, count in self.outcomes.most_common())
        return f"{self.calls:,} calls ({told}), {len(self.anomalies)} anomalies"


def judge(journals: Iterable[str], ran: Iterable[str], ended_well: Iterable[str] = ()) -> Verdict:
    """Compare the lines of clients, `ID sent` and `ID OUTCOME [why]`, with the ids that ran.

    `ended_well` are the clients that were not killed (an id is CLIENT:NUMBER).
    """
    verdict = Verdict()
    runs = Counter(ran)
    sent: set[str] = set()
    outcomes: dict[str, list[tuple[Outcome, str]]] = {}
    for line in journals:
        call, word, *why = line.rstrip("\n").split("\t")
        if word == "sent":
            sent.add(call)
        else:
            outcomes.setdefault(call, []).append((Outcome(word), " ".join(why)))
    verdict.calls = len(sent)
    well = set(ended_well)
    doubts: dict[str, list[str]] = {}  # calls that did not run, by the death in their error
    for call in sorted(sent):
        found = outcomes.pop(call, [])
        for outcome, told in found:
            died = None if call.endswith(AGAIN) else _DIED.search(told)
            if outcome is Outcome.MAY_HAVE_RUN and died and not runs[call]:
                doubts.setdefault(died[0], []).append(call)
        for anomaly in _anomalies(call, found, runs[call], call.split(":")[0] in well):
            verdict.anomalies.append(anomaly)
        verdict.outcomes[found[0][0].value if found else "client killed"] += 1
    verdict.anomalies += [f"{call}: an outcome of a call that was never sent" for call in outcomes]
    verdict.anomalies += [f"{call}: ran, and was never sent" for call in runs.keys() - sent]
    verdict.anomalies += [
        f"{', '.join(calls)}: said that they may have run, and one at most had begun: {died}"
        for died, calls in doubts.items()
        if len(calls) > 1
    ]
    return verdict


def _anomalies(
    call: str, found: list[tuple[Outcome, str]], runs: int, ended_well: bool
) -> list[str]:
    wrong = []
    if runs > 1 and not call.endswith(AGAIN):
        wrong.append(f"{call}: ran {runs} times")
    if len(found) > 1:
        wrong.append(f"{call}: {len(found)} outcomes")
    if not found and ended_well:
        wrong.append(f"{call}: no outcome, and its client lives")
    for outcome, why in found[:1]:
        if outcome is Outcome.VALUE and runs == 0:
            wrong.append(f"{call}: a value, and it never ran")
        if outcome is Outcome.DID_NOT_RUN and runs:
            wrong.append(f"{call}: said not to have run, and it did: {why}")
        if outcome in (Outcome.HUNG, Outcome.ODD):
            wrong.append(f"{call}: {outcome.value}: {why}")
    return wrong

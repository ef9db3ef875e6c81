"""What must hold of calls, whatever is killed: two journals, compared.

A client writes down each call before it leaves, and its one outcome; an actor appends the call's
id to a file before it answers.  Then

    a value                    the id is in the file, once
    an error, "did not run"    the id is not in the file
    an error, "may have run"   either; but of the calls of an actor that died, one at most had
                               begun and did not write its id
    any id                     in the file at most once, unless its method is idempotent
    a call without an outcome  its client was killed; a living one that has none after the
                               deadline is a hang

Zero failures in n trials bound their rate by 3/n at 95 % (the rule of three): n is told with each.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

AGAIN = "r"  # at the end of a call's id: its method is idempotent, and the call may be repeated
_DIED = re.compile(r"\(pid \d+ on \S+\) ended with")


class Outcome(Enum):
    VALUE = "value"
    MAY_HAVE_RUN = "may have run"
    DID_NOT_RUN = "did not run"
    HUNG = "hung"
    ODD = "odd"  # an error that nobody promised


@dataclass
class Verdict:
    """What was found; `anomalies` is empty if all promises held."""

    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {name}" for name, count in self.outcomes.most_common())
        return f"{self.calls:,} calls ({told}), {len(self.anomalies)} anomalies"


def judge(journals: Iterable[str], ran: Iterable[str], ended_well: Iterable[str] = ()) -> Verdict:
    """Compare what clients wrote, `ID sent` and `ID OUTCOME [why]`, with the ids that ran.

    `ended_well` names the clients (an id is CLIENT:NUMBER) that were not killed.
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
    doubts: dict[str, list[str]] = {}  # of calls that did not run, by whose end they heard of
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

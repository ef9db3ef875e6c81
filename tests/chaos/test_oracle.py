"""The oracle accepts allowed histories and names each broken promise."""

import pytest

from tests.chaos.oracle import judge


@pytest.mark.parametrize(
    ("outcome", "ran"),
    [
        ("value", ["c:1"]),
        ("may have run", []),
        ("may have run", ["c:1"]),
        ("did not run", []),
    ],
)
def test_allowed_histories_are_no_anomalies(outcome: str, ran: list[str]) -> None:
    verdict = judge(["c:1\tsent\n", f"c:1\t{outcome}\twhy\n"], ran, ["c"])
    assert not verdict.anomalies
    assert verdict.outcomes == {outcome: 1}


@pytest.mark.parametrize(
    ("journal", "ran", "wrong"),
    [
        ("c:1 sent/c:1 value", "", "a value, and it never ran"),
        ("c:1 sent/c:1 value", "c:1 c:1", "ran 2 times"),
        ("c:1 sent/c:1 did not run\twhy", "c:1", "said not to have run, and it did: why"),
        ("c:1 sent", "", "no outcome, and its client lives"),
        ("c:1 sent/c:1 value/c:1 did not run", "c:1", "2 outcomes"),
        ("c:1 sent/c:1 hung\t60 s", "", "hung: 60 s"),
        ("c:1 sent/c:1 odd\tKeyError", "", "odd: KeyError"),
        ("c:1 value", "c:1", "an outcome of a call that was never sent"),
        ("c:1 sent/c:1 value", "c:1 c:2", "c:2: ran, and was never sent"),
    ],
)
def test_each_broken_promise_is_named(journal: str, ran: str, wrong: str) -> None:
    lines = [line.replace(" ", "\t", 1) for line in journal.split("/")]
    assert any(wrong in found for found in judge(lines, ran.split(), ["c"]).anomalies)


def test_at_most_one_call_of_a_dead_actor_may_have_begun_unrecorded() -> None:
    doubt = "may have run\tLedger-1 (pid 7 on here) ended with SIGKILL; the call may have run"
    one = ["c:1\tsent", f"c:1\t{doubt}"]
    assert not judge(one, [], ["c"]).anomalies
    two = [*one, "c:2\tsent", f"c:2\t{doubt}"]
    assert not judge(two, ["c:1"], ["c"]).anomalies
    (wrong,) = judge(two, [], ["c"]).anomalies
    assert wrong.startswith("c:1, c:2: said that they may have run, and one at most had begun")


def test_a_killed_clients_last_call_may_have_no_outcome_and_may_have_run_once() -> None:
    for ran in ([], ["c:1"]):
        verdict = judge(["c:1\tsent"], ran, [])
        assert not verdict.anomalies
        assert verdict.outcomes == {"client killed": 1}
    assert judge(["c:1\tsent"], ["c:1", "c:1"], []).anomalies

"""Who waits for room is tried in the order of asking, and is removed once served."""

from remotely.master.waiting import Waiter, WaitingList
from remotely.protocol import control


def place(actor: str) -> control.Place:
    request = control.Request(
        actor=actor, name=actor, class_name="Counter", owner="s", job="s", python="3"
    )
    return control.Place(ticket=1, request=request, patience_s=1.0)


def test_who_asks_anew_while_served_waits_on() -> None:
    """The master may be told, in the middle of a turn, that a placed actor needs a new place."""
    waiting = WaitingList()
    waiting.add("s", place("a"), deadline=1.0)

    def asks_anew(waiter: Waiter) -> bool:
        if waiter.deadline == 2.0:
            return False
        waiting.remove("a")
        waiting.add("s", place("a"), deadline=2.0)
        return True

    waiting.serve(lambda *_: True, asks_anew)

    left = waiting.get("a")
    assert left is not None
    assert left.deadline == 2.0

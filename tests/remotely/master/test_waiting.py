"""Who waits for room is tried in the order of asking, and is removed once served."""

from remotely.master.waiting import WaitingList
from remotely.protocol import control


def place(actor: str) -> control.Place:
    request = control.Request(
        actor=actor, name=actor, class_name="Counter", owner="s", job="s", python="3"
    )
    return control.Place(ticket=1, request=request, patience_s=1.0)


def test_who_asks_anew_while_served_waits_on() -> None:
    """An answer in the middle of a turn may cause that."""
    waiting = WaitingList()
    waiting.add("s", place("a"), since=0.0, deadline=1.0)

    for waiter in waiting.turns(lambda *_: True):
        if waiter.deadline != 2.0:
            waiting.remove("a")
            waiting.add("s", place("a"), since=0.0, deadline=2.0)

    left = waiting.get("a")
    assert left is not None
    assert left.deadline == 2.0

"""Batches of output: one on its way, a limit for each script, and nothing that nobody shows."""

from collections.abc import Callable

import msgspec
import pytest

from remotely.protocol import control
from remotely.worker.output_relay import (
    MOST_WAITING,
    PAUSE_S,
    PIECE_SIZE,
    UNSHOWN_S,
    OutputRelay,
)


class Played:
    """A relay with a clock that the test moves, and a master that answers when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[control.OutputBatch] = []
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.relay = OutputRelay(self._send, self._later, lambda: self.now)

    def _send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, control.OutputBatch)
        self.sent.append(message)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, action))

    def prints(self, text: str, actor: str = "a", error: bool = False, job: str = "job") -> None:
        printed = control.Printed(actor=actor, name=actor, job=job, error=error, text=text)
        self.relay.add_text(printed, "; all of it is in FILE")

    def logs(self, message: str, actor: str = "a") -> None:
        record = control.Logged(
            logger="root",
            level=20,
            level_name="INFO",
            message=message,
            created=1.0,
            path="/x.py",
            line=1,
            function="f",
            process=1,
            process_name="p",
            thread=1,
            thread_name="t",
            actor=actor,
            name=actor,
            job="job",
        )
        self.relay.add_record(record, "; all of it is in FILE")

    def passes(self, seconds: float = 0.0) -> None:
        self.now += seconds
        due = [action for at, action in self.due if at <= self.now]
        self.due = [each for each in self.due if each[0] > self.now]
        for action in due:
            action()

    def answers(self, *unshown: str) -> None:
        self.relay.handle_reply(control.OutputHeard(unshown=list(unshown)))

    def taken(self) -> list[str]:
        """Remove and return the texts that were sent."""
        items = [item for output in self.sent for item in output.items]
        self.sent.clear()
        return [item.text if isinstance(item, control.Printed) else item.message for item in items]


@pytest.fixture
def played() -> Played:
    return Played()


def test_the_first_line_leaves_at_once(played: Played) -> None:
    played.prints("one\n")
    played.passes()
    assert played.taken() == ["one\n"]


def test_the_next_batch_leaves_when_the_last_was_answered_and_after_a_pause(played: Played) -> None:
    played.prints("one\n")
    played.passes()
    played.taken()
    for text in ("two\n", "three\n"):
        played.prints(text)
    played.passes(10.0)
    assert played.taken() == []
    played.answers()
    played.passes()
    assert played.taken() == ["two\nthree\n"]
    played.answers()
    played.prints("four\n")
    played.passes(PAUSE_S / 2)
    assert played.taken() == []
    played.passes(PAUSE_S / 2)
    assert played.taken() == ["four\n"]


def test_each_actor_keeps_the_order_of_its_streams_and_records(played: Played) -> None:
    played.prints("out 1\n")
    played.prints("of b\n", actor="b")
    played.prints("out 2\n")
    played.prints("error\n", error=True)
    played.logs("record")
    played.prints("out 3\n")
    played.passes()
    assert played.taken() == ["out 1\nout 2\n", "of b\n", "error\n", "record", "out 3\n"]


def test_what_does_not_fit_is_dropped_and_counted_in_its_place(played: Played) -> None:
    played.prints("first\n")
    played.passes()
    played.taken()
    line = "x" * 1023 + "\n"
    for _ in range(MOST_WAITING // 1024 + 4312):
        played.prints(line)
    played.answers()
    played.passes(PAUSE_S)
    *kept, note = played.taken()
    assert "".join(kept) == line * (MOST_WAITING // 1024)
    assert max(map(len, kept)) < 2 * PIECE_SIZE
    assert note == "(4,312 lines dropped here; all of it is in FILE)\n"
    played.answers()
    played.prints("next\n")
    played.passes(PAUSE_S)
    assert played.taken() == ["next\n"]


def test_one_script_takes_no_room_from_another(played: Played) -> None:
    played.prints("first\n")
    played.passes()
    played.taken()
    for _ in range(2):
        played.prints("x" * (MOST_WAITING - 1) + "\n")
    played.prints("of the other\n", actor="b", job="other")
    played.answers()
    played.passes(PAUSE_S)
    assert "of the other\n" in played.taken()


def test_records_are_dropped_and_counted_too(played: Played) -> None:
    played.logs("first")
    played.passes()
    played.taken()
    for _ in range(3):
        played.logs("x" * (MOST_WAITING // 2))
    played.answers()
    played.passes(PAUSE_S)
    *_, note = played.taken()
    assert note == "(2 lines dropped here; all of it is in FILE)\n"


def test_a_silent_master_is_sent_nothing_more(played: Played) -> None:
    for _ in range(10_000):
        played.prints("x" * 99 + "\n")
        played.passes(1.0)
    assert len(played.sent) == 1


def test_a_new_connection_needs_no_answer_to_what_was_sent_before(played: Played) -> None:
    played.prints("lost\n")
    played.passes()
    played.prints("next\n")
    played.relay.begin_again()
    played.passes(PAUSE_S)
    assert played.taken() == ["lost\n", "next\n"]


def test_nothing_is_sent_for_a_while_to_a_script_that_is_gone(played: Played) -> None:
    played.prints("to nobody\n")
    played.passes()
    played.answers("job")
    played.taken()
    played.prints("to nobody\n")
    played.passes(UNSHOWN_S / 2)
    assert played.taken() == []
    played.passes(UNSHOWN_S / 2)
    played.prints("is it back?\n")
    played.passes()
    assert played.taken() == ["is it back?\n"]


def test_the_last_words_of_an_actor_leave_ahead_of_its_death(played: Played) -> None:
    played.prints("first\n")
    played.passes()
    played.taken()
    played.prints("of b\n", actor="b")
    played.prints("last words\n")
    played.relay.flush("a", "job")
    assert played.taken() == ["last words\n"]
    played.answers()
    played.passes(PAUSE_S)
    assert played.taken() == ["of b\n"]

"""Questions to the master: waiting for answers, and cancelling."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from remotely.client import master_session
from remotely.client.channels import ActorState
from remotely.client.master_session import Question, Questions
from remotely.client.placing import Placing, requests
from remotely.engine import Options
from remotely.errors import NoResources, NotConnected
from remotely.futures import wakeup
from remotely.protocol import control
from remotely.values.owned import NOTHING
from remotely.values.shipping import Shipment
from tests.clusters import wait_until


def test_a_wait_for_an_answer_continues_when_the_request_is_queued() -> None:
    question = Question(control.AskStatus(ticket=1))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(question.result)
        wait_until(lambda: wakeup.sleepers, "a thread that waits")
        for _ in range(2):
            question.note_queued()
        assert not question.has_room()
        question.set_result("room")
        assert answer.result() == "room"
    assert question.has_room()


def test_has_room_returns_when_there_is_an_answer() -> None:
    question = Question(control.AskStatus(ticket=1))
    threading.Timer(0.05, lambda: question.set_exception(ValueError())).start()
    assert question.has_room()


def test_a_cancelled_question_is_not_repeated_and_its_answer_is_ignored() -> None:
    questions = Questions(lambda message: None)
    question = questions.ask(control.AskStatus)
    kept = questions.ask(control.AskStatus)
    question.cancel()
    assert questions.unanswered() == [kept.message]
    questions.answer(1, "late")
    kept.cancel()
    assert not questions


def test_no_question_is_asked_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would answer one that a thread asks while another leaves."""
    sent: list[object] = []
    questions = Questions(sent.append)

    class Late(Question):
        def then(self, function: Any) -> None:
            super().then(function)
            questions.refuse(NotConnected, "it was shut down")

    monkeypatch.setattr(master_session, "Question", Late)
    with pytest.raises(NotConnected, match="shut down"):
        _ = questions.ask(control.AskStatus)
    assert not sent
    assert not questions


def test_if_one_member_of_a_group_is_refused_the_other_requests_are_cancelled() -> None:
    def send(message: object) -> None:
        if isinstance(message, control.Place) and message.ticket == 3:
            questions.fail(1, NoResources("no room"))

    questions = Questions(send)
    session: Any = SimpleNamespace(ask=questions.ask, id="client", job="client", patience_s=1.0)
    unused: Any = SimpleNamespace(release=lambda _: None)
    wanted = requests(session, SimpleNamespace, ["a", "b", "c"], Options())
    actors = [ActorState(unused, request, owned=True, giver="") for request in wanted]
    placing = Placing(session, unused, unused, Shipment(()))
    with pytest.raises(NoResources):
        placing.make(actors, [NOTHING] * 3, Options(), control.MakerState(), None)
    assert not questions
    assert len({request.actor for request in wanted}) == 3
    assert len({request.gang for request in wanted}) == 1

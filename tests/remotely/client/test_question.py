"""Questions to the master: waiting for answers, and cancelling."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from remotely.client.actors import Actors
from remotely.client.master_session import Question, Questions
from remotely.engine import Options
from remotely.errors import NoResources
from remotely.futures import wakeup
from remotely.protocol import control
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


def test_if_one_member_of_a_group_is_refused_the_other_requests_are_cancelled() -> None:
    ended: list[control.End] = []

    def send(message: object) -> None:
        if isinstance(message, control.Place) and message.ticket == 3:
            questions.fail(1, NoResources("no room"))

    questions = Questions(send)
    session: Any = SimpleNamespace(
        ask=questions.ask,
        check=lambda: None,
        id="client",
        job="client",
        inside="",
        link=SimpleNamespace(send=ended.append),
        loop=SimpleNamespace(call=lambda act: act()),
        patience_s=1.0,
    )
    unused: Any = SimpleNamespace(release=lambda _: None)
    shared: Any = SimpleNamespace(session=session, stores=unused)
    actors = Actors(unused, shared, unused, unused, Shipment(()))
    with pytest.raises(NoResources):
        actors.place(SimpleNamespace, [((), {})] * 3, Options())
    assert not questions
    assert len({end.actor for end in ended if end.kill}) == 3

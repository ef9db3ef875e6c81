"""A question to the master is waited for until it is answered, whatever is said meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remotely.client.actor_factory import ActorFactory
from remotely.client.question import Question, Questions
from remotely.engine import Options
from remotely.errors import NoResources
from remotely.futures import wakeup
from remotely.machine import this_machine
from remotely.protocol import control
from remotely.values import codec
from remotely.values.shipping import Shipment
from tests.clusters import wait_until


def test_who_waits_for_the_answer_is_not_woken_by_the_word_that_it_will_be_long() -> None:
    question = Question(control.AskStatus(ticket=1))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(question.result)
        wait_until(lambda: wakeup.sleepers, "a thread that waits")
        for _ in range(2):
            question.wait_for_room()
        assert not question.has_room()
        question.set_result("room")
        assert answer.result() == "room"
    assert question.has_room()


def test_who_asks_whether_there_is_room_hears_of_an_answer_too() -> None:
    question = Question(control.AskStatus(ticket=1))
    threading.Timer(0.05, lambda: question.set_exception(ValueError())).start()
    assert question.has_room()


def test_a_question_that_is_taken_back_is_not_asked_again_and_its_answer_is_ignored() -> None:
    questions = Questions(lambda message: None)
    question = questions.ask(lambda ticket: control.AskStatus(ticket=ticket))
    kept = questions.ask(lambda ticket: control.AskStatus(ticket=ticket))
    question.cancel()
    assert questions.unanswered() == [kept.message]
    questions.answer(1, "late")
    kept.cancel()
    assert not questions


def test_a_group_of_which_one_is_refused_asks_for_none_of_the_others_any_more() -> None:
    ended: list[str] = []

    def tell(message: object) -> None:
        if isinstance(message, control.Place) and message.ticket == 3:
            questions.fail(1, NoResources("no room"))

    questions = Questions(tell)
    factory = ActorFactory(
        session=cast(Any, SimpleNamespace(ask=questions.ask, patience_s=1.0)),
        shipment=Shipment(()),
        channels=cast(Any, None),
        stores=cast(Any, None),
        terminations=cast(
            Any, SimpleNamespace(request=lambda actors, *_, **__: ended.extend(actors))
        ),
    )
    request = control.Request(
        actor="a", name="a", class_name="C", owner="o", job="j", python=this_machine.PYTHON
    )
    actors = [cast(Any, SimpleNamespace(actor=f"{n}", request=request)) for n in range(3)]
    with pytest.raises(NoResources):
        factory.make(actors, codec.Encoded((), ()), Options())
    assert not questions
    assert ended == ["0", "1", "2"]

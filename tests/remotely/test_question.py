"""A question to the master is waited for until it is answered, whatever is said meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

from remotely import control
from remotely.question import Question
from tests.clusters import wait_until


def test_who_waits_for_the_answer_is_not_woken_by_the_word_that_it_will_be_long() -> None:
    question = Question(control.AskStatus(ticket=1))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(question.result)
        wait_until(lambda: question._condition._waiters, "a thread that waits")
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

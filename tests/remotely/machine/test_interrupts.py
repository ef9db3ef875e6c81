"""What a signal handler raises is told from what the user's code raises."""

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from remotely.machine.interrupts import errors_ignored, is_for_main


class Stop(Exception):
    """Raised by a handler."""


def stop(*_: object) -> None:
    raise Stop


def stop_with(error: type[Exception], number: int, frame: FrameType | None) -> None:
    raise error


class Handler:
    def method(self, *_: object) -> None:
        raise Stop

    def __call__(self, *_: object) -> None:
        stop()


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[..., object]], object]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


def error_of(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("it raises")


def strike() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize(
    "handler", [stop, Handler(), Handler().method, functools.partial(stop_with, Stop)]
)
def test_the_error_of_a_handler_is_for_main_however_the_handler_is_written(
    handle: Callable[[Callable[..., object]], object], handler: Callable[..., object]
) -> None:
    handle(handler)
    assert is_for_main(error_of(strike))


def test_what_is_raised_from_the_error_of_a_handler_is_for_main(
    handle: Callable[[Callable[..., object]], object],
) -> None:
    def wrap() -> None:
        try:
            strike()
        except Stop as error:
            raise ValueError from error

    handle(stop)
    assert is_for_main(error_of(wrap))


def test_an_error_that_follows_the_error_of_a_handler_is_of_the_users_code(
    handle: Callable[[Callable[..., object]], object],
) -> None:
    def call_later() -> None:
        try:
            strike()
        except Stop:
            int("no number")

    handle(stop)
    assert not is_for_main(error_of(call_later))


def test_only_exits_and_errors_of_handlers_are_for_main_and_only_on_the_main_thread() -> None:
    assert is_for_main(KeyboardInterrupt())
    assert is_for_main(SystemExit())
    assert not is_for_main(error_of(lambda: int("no number")))
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(is_for_main(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert elsewhere == [False]


def test_ignoring_errors_lets_those_of_handlers_pass(
    handle: Callable[[Callable[..., object]], object],
) -> None:
    handle(stop)
    with errors_ignored:
        int("no number")
    for act, error in (
        (strike, Stop),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    ):
        with pytest.raises(error), errors_ignored:
            act()

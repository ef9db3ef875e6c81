"""Fixtures of the tests of sampling."""

from collections.abc import Iterator

import pytest

from tests.remotely_rl.acting.fakes import faked


@pytest.fixture
def fakes() -> Iterator[None]:
    with faked():
        yield

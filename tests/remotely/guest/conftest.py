"""The cluster of a test alone whose worker is played."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remotely.guest.played import Played


@pytest.fixture
def played(nothing_left: None, tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.close()

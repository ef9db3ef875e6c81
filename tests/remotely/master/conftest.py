"""The cluster that most tests of the master play."""

import pytest

from tests.remotely.master.played import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.hello("client")
    return made

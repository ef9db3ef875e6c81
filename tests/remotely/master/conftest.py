"""A cluster with one client, for most tests of the master."""

import pytest

from tests.remotely.master.played import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.hello("client")
    return made

"""Clusters for the tests, each in two settings, and the proof that they leave nothing behind.

here       a master and a worker on this machine: calls on ipc, and arrays through memory
joined     a started master, and two workers that joined it over TCP from two loopback
           addresses, each with a copy of worker.key in a home of its own, and so passing for
           machines of their own: their calls go over TCP too
embedded   master and worker of the test's process alone, for tests of just that

The first two are started once: to start one takes a second of CPU, and hundreds of tests need one.
"""

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import remotely
from remotely.protocol import control
from tests.clusters import Here, Started, Traces, wait_until

# On a busy machine an example takes as long as it takes: no test claims a time.
settings.register_profile(
    "quick", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# Before any test imports torch: where two tests run at a time, its threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


SETTINGS = {"zeromq": ["here", "joined"], "ray": ["ray"]}  # of the fixture `cluster`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=SETTINGS,
        default="zeromq",
        help="what the objects live on; with `ray`, the tests run whose promises hold on any engine",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cluster" in metafunc.fixturenames:
        metafunc.parametrize("cluster", SETTINGS[metafunc.config.option.engine], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On another engine, leave out the tests that start clusters of our own."""
    if config.option.engine != "zeromq":
        of_any = [item for item in items if "cluster" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in of_any])
        items[:] = of_any


@pytest.fixture(scope="session", autouse=True)
def temporary_folder_of_its_own() -> Iterator[None]:
    """Let folders that are left be those of this run; the path is short, for ipc sockets."""
    with tempfile.TemporaryDirectory(prefix="rt-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module", autouse=True)
def light_zygote(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the zygotes of tests of `remotely` from importing torch.

    A few tests import it, so every test process has it loaded, and its clusters would each spend
    two seconds on importing what hardly any actor of theirs uses.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name == "remotely":
            patch.setattr(control, "HEAVY", ("numpy",))
        yield


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Assert, after a test, that no process, thread, folder or segment of it is left."""
    before = Traces()
    yield
    remotely.shutdown()
    wait_until(lambda: not Traces().left_since(before), f"gone: {Traces().left_since(before)}")


@pytest.fixture
def embedded(nothing_left: None) -> None:
    """A cluster of this test alone, with room for 16 actors."""
    remotely.connect(cpus=16)


@pytest.fixture(scope="session")
def started_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    cluster = Here(tmp_path_factory.mktemp("here"))
    yield cluster
    cluster.stop()


@pytest.fixture
def here(started_here: Here, nothing_left: None) -> Iterator[None]:
    """Connect to a cluster with room for 16 actors, and assert that none of them is left."""
    before = started_here.below_worker()
    remotely.connect(started_here.address, key=started_here.key)
    yield
    remotely.shutdown()
    wait_until(lambda: started_here.below_worker() <= before, "the end of all actors")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for all tests, with room for 16 actors."""
    import ray
    from remotely.engines.ray.remote import NAMESPACE
    from remotely.engines.ray.session import own_cluster

    ray.init(namespace=NAMESPACE, logging_level="WARNING", **own_cluster(cpus=16))
    yield
    ray.shutdown()


@pytest.fixture
def on_ray(ray_session: None) -> Iterator[None]:
    """Join that Ray, and assert that no actor and no thread of the test is left."""
    from ray.util import list_named_actors

    before = Traces()
    remotely.connect("ray:local")
    yield
    remotely.shutdown()
    wait_until(lambda: not list_named_actors(all_namespaces=True), "the end of all actors")
    wait_until(lambda: Traces().threads <= before.threads, "the end of all threads")


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    cluster = Started(tmp_path_factory.mktemp("started"))
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """Connect to a cluster, once in each setting of the engine."""
    if request.param == "ray":
        request.getfixturevalue("on_ray")
    elif request.param == "joined":
        joined: Started = request.getfixturevalue("started")
        request.getfixturevalue("nothing_left")
        remotely.connect(joined.address, key=joined.key)
    else:
        request.getfixturevalue("here")
    return str(request.param)

"""Clusters for the tests, each in two settings, and the proof that they leave nothing behind.

here       a master and a worker on this machine: calls on ipc, and arrays through memory
joined     a started master, and two workers that joined it over TCP from two loopback
           addresses, each with a copy of worker.key in a home of its own, and so passing for
           machines of their own: their calls go over TCP too
embedded   master and worker of the test's process alone, for tests of just that

The first two are started once: to start one takes a second of CPU, and hundreds of tests need one.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import remotely
from remotely.engines.ray import PROMISES
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

# Images of containers often forbid bytecode.  The tests start thousands of processes, each of which
# would compile the same files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell has what it starts by `&` ignore Ctrl-C, and commands of ours leave that as it is.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SETTINGS = {"zeromq": ["here", "joined"], "ray": ["ray"]}  # of a cluster
PLACES = {"zeromq": ["cluster", "local"], "ray": ["ray"]}  # where objects live that need no setting

OF_REMOTELY = Path(__file__).parent / "remotely"

RAY_ALONE = {"on_ray", "own_ray"}  # fixtures of tests of what only Ray has to keep


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=SETTINGS,
        default="zeromq",
        help="on what the objects live; with `ray`, the tests of what every engine promises run",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, values in (("setting", SETTINGS), ("home", PLACES)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values[metafunc.config.option.engine], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On Ray, leave out what is about clusters of our own, and skip what Ray cannot keep."""
    is_ray = config.option.engine == "ray"
    is_chosen = _is_for_ray if is_ray else _is_for_zeromq
    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = filter(is_chosen, items)
    for item in items if is_ray else ():
        for marker in item.iter_markers("promise"):
            (promise,) = marker.args
            if not getattr(PROMISES, promise):
                item.add_marker(pytest.mark.skip(reason=f"Ray does not keep: {promise}"))


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of garbage collections: each would take 0.3 s with them."""
    gc.collect()
    gc.freeze()


def _is_for_ray(item: pytest.Item) -> bool:
    """Tell whether a test states what every engine promises, or what Ray does."""
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(fixtures & {"setting", "home", *RAY_ALONE}) and not item.get_closest_marker(
        "zeromq"
    )


def _is_for_zeromq(item: pytest.Item) -> bool:
    return not set(getattr(item, "fixturenames", ())) & RAY_ALONE


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

    Some tests import it, so every test process has it loaded, and its clusters would each spend
    two seconds on importing what hardly any actor of theirs uses.
    """
    with pytest.MonkeyPatch.context() as patch:
        if OF_REMOTELY in request.path.parents:
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

    from remotely.engines.ray.actor import NAMESPACE
    from remotely.engines.ray.session import own_cluster
    from remotely.machine.gpus import Offer

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else each test waits for whatever else runs here
        ray.init(
            "local", namespace=NAMESPACE, logging_level="WARNING", **own_cluster(Offer(cpus=16))
        )
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
def setting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, setting: str) -> str:
    """Connect to a cluster, once in each setting of the engine."""
    if setting == "ray":
        request.getfixturevalue("on_ray")
    elif setting == "joined":
        joined: Started = request.getfixturevalue("started")
        request.getfixturevalue("nothing_left")
        remotely.connect(joined.address, key=joined.key)
    else:
        request.getfixturevalue("here")
    return setting

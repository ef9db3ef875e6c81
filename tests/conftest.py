"""Clusters for the tests, and checks that the tests leave nothing behind.

here       a master and a worker on this machine: calls use ipc, arrays shared memory
joined     a started master, and two workers that joined it over TCP from two loopback addresses,
           each with a copy of worker.key in its own home: they count as separate machines, and
           calls use TCP
embedded   a master and a worker for the process of the test alone

The fixture `cluster` runs a test in both of the first two settings, `any_cluster` in one.  These
clusters are started once per session: starting one costs a second of CPU, and hundreds of tests
need one.
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

# Before they are imported, so that assertions of helpers show their values too.
pytest.register_assert_rewrite(
    *(f"tests.{file.stem}" for file in Path(__file__).parent.glob("*.py"))
)
from tests.clusters import Here, Started, Traces, wait_until  # noqa: E402

# No deadline: on a busy machine an example may take long.
settings.register_profile(
    "quick", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# Before any test imports torch: its threads must not spin, since tests run in parallel.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Container images often disable bytecode.  Without it, each of the thousands of processes that the
# tests start would compile the same files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell makes background jobs (`&`) ignore SIGINT, and our commands leave it ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SETTINGS = {"zeromq": ["here", "joined"], "ray": ["ray"]}  # of `cluster`
PLACES = {"zeromq": ["cluster", "local"], "ray": ["ray"]}  # of `home`

OF_REMOTELY = Path(__file__).parent / "remotely"

OF_EVERY_ENGINE = {"setting", "home", "any_cluster"}  # fixtures of tests that run on every engine
OF_RAY = {"on_ray", "own_ray"}  # fixtures of tests of the Ray engine alone


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=SETTINGS,
        default="zeromq",
        help="the engine that runs the actors; `ray` selects the tests that apply to every engine",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, values in (("setting", SETTINGS), ("home", PLACES)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values[metafunc.config.option.engine], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other engines, and skip promises that Ray does not keep."""
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
    """Exclude the tests themselves from garbage collections, each of which would take 0.3 s."""
    gc.collect()
    gc.freeze()


def _is_for_ray(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(fixtures & (OF_EVERY_ENGINE | OF_RAY)) and not item.get_closest_marker("zeromq")


def _is_for_zeromq(item: pytest.Item) -> bool:
    return not set(getattr(item, "fixturenames", ())) & OF_RAY


@pytest.fixture(scope="session", autouse=True)
def temporary_folder_of_its_own() -> Iterator[None]:
    """Use a temporary folder of this run; its path is short, for ipc sockets."""
    with tempfile.TemporaryDirectory(prefix="rt-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module", autouse=True)
def light_zygote(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the zygotes in tests of `remotely` from importing torch.

    Test processes have torch loaded, so each of their clusters would import it for two seconds,
    although hardly any actor uses it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if OF_REMOTELY in request.path.parents:
            patch.setattr(control, "HEAVY", ("numpy",))
        yield


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Assert that the test leaves no process, thread, folder or shared memory segment behind."""
    before = Traces()
    yield
    remotely.shutdown()
    wait_until(lambda: not Traces().left_since(before), f"gone: {Traces().left_since(before)}")


@pytest.fixture
def embedded(nothing_left: None) -> None:
    """Connect to a cluster for this test alone, with 16 CPUs."""
    remotely.connect(cpus=16)


@pytest.fixture(scope="session")
def started_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    cluster = Here(tmp_path_factory.mktemp("here"))
    yield cluster
    cluster.stop()


@pytest.fixture
def here(started_here: Here, nothing_left: None) -> Iterator[None]:
    """Connect to a cluster with 16 CPUs, and assert that the test leaves no actor behind."""
    before = started_here.below_worker()
    remotely.connect(started_here.address, key=started_here.key)
    yield
    remotely.shutdown()
    wait_until(lambda: started_here.below_worker() <= before, "the end of all actors")


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for all tests, with 16 CPUs."""
    import ray

    from remotely.engines.ray.actor import NAMESPACE
    from remotely.engines.ray.session import own_cluster
    from remotely.machine.gpus import OfferedResources

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else tests wait for other processes here
        ray.init(
            "local",
            namespace=NAMESPACE,
            logging_level="WARNING",
            **own_cluster(OfferedResources(cpus=16)),
        )
    yield
    ray.shutdown()


@pytest.fixture
def on_ray(ray_session: None) -> Iterator[None]:
    """Connect to that Ray, and assert that the test leaves no actor and no thread behind."""
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
    """Connect to a cluster, once in each setting of the engine: for promises of the transport."""
    if setting == "ray":
        request.getfixturevalue("on_ray")
    elif setting == "joined":
        joined: Started = request.getfixturevalue("started")
        request.getfixturevalue("nothing_left")
        remotely.connect(joined.address, key=joined.key)
    else:
        request.getfixturevalue("here")
    return setting


@pytest.fixture
def any_cluster(request: pytest.FixtureRequest) -> None:
    """Connect to one cluster of the engine: for promises that every transport keeps alike."""
    is_ray = request.config.option.engine == "ray"
    request.getfixturevalue("on_ray" if is_ray else "here")

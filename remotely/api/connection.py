"""The connection of this process to a cluster: a started one, or one of its own.

REMOTELY_LOCAL=1   no cluster: every object lives in this process
REMOTELY_ADDRESS   the default address of connect()
REMOTELY_KEY       the key file, by default ~/.remotely/keys/client.key
"""

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from remotely import arguments
from remotely.arguments import suggests
from remotely.calling import tracing
from remotely.calling.engine import CallEngine
from remotely.engine import Engine
from remotely.errors import NotConnected, RemotelyError
from remotely.futures import unfinished
from remotely.machine.gpus import Gpus, OfferedResources, choose
from remotely.machine.shield import RLock
from remotely.protocol.address import FORKED, SHARED
from remotely.protocol.lease import PLACE_S
from remotely.protocol.resources import parse_labels, parse_others
from remotely.values.sources import importing, library

RAY = "ray:"  # the prefix of addresses of Ray clusters
RAY_HERE = "ray:local"  # a Ray cluster of this process alone

_lock = RLock()
_engine: Engine | None = None
_forked = False
_adopted: Callable[[], Engine] | None = None  # in an actor: makes its engine
# The threads that ran when another one called `shutdown`, until the next connection.
_bystanders: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_shipped_root: Path | None = None


@suggests
def connect(
    address: str | None = None,
    *,
    key: str | Path | None = None,
    cpus: float | None = None,
    gpus: Gpus | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Sequence[str] = (),
    ship: str | Path | Iterable[str | Path] = (),
    patience_s: float | None = None,
    show_output: bool = True,
) -> None:
    """Use the cluster at `address` ("host:8010"), or start one that lives as long as this process.

    A cluster of Ray is "ray:auto" or "ray:HOST:PORT"; "ray:local" starts one for this process.

    cpus, gpus   what the cluster of this process offers; by default what this machine has.  `gpus`
                 is a number or a list: [2, 3], or names as in CUDA_VISIBLE_DEVICES.  Both are
                 ignored if REMOTELY_ADDRESS names a started cluster
    resources    custom resources that it offers: {"license": 2}
    labels       what is true of it, for classes that ask for that: ["ssd", "zone=a"]
    key          the client's key file; see keys.py
    ship         files, folders and patterns ("*.csv") that the actors need: see `shipped`
    patience_s   seconds to wait for room for a new actor before NoResources is raised, by default
                 60.  If given, also the seconds to wait for a cluster that does not answer yet
    show_output  whether this terminal shows the output of actors; `remotely logs` always does

    Raises MasterLost if nothing answers there, NotAllowed for a wrong key, VersionMismatch,
    RemotelyError if Ray is wanted and not installed, and TypeError or ValueError for invalid
    arguments.
    """
    global _engine, _forked
    arguments.of_type("address", address, (str, type(None)), 'a string: "host:8010"')
    arguments.of_type("key", key, (str, Path, type(None)), "a path")
    arguments.not_empty("address", address)
    arguments.not_empty("key", key)
    arguments.of_type("show_output", show_output, bool, "True or False")
    if patience_s is not None:
        arguments.number("patience_s", patience_s)
    if cpus is not None:
        arguments.number("cpus", cpus)
    if resources is not None:
        arguments.of_type("resources", resources, dict, 'a dict: {"license": 2}')
        parse_others(resources)
    arguments.of_type("labels", labels, (list, tuple), 'a list: ["ssd"]')
    if _adopted is not None and importing():  # an actor imports the script, and is connected
        return
    offer = OfferedResources(cpus, gpus, resources, parse_labels(labels))
    with _lock:
        if _engine is not None and not _forked:
            raise RemotelyError("this process is connected already; call remotely.shutdown() first")
        if address not in (None, RAY_HERE) and offer != OfferedResources():
            start = "ray start" if address.startswith(RAY) else "remotely start"
            raise RemotelyError(
                "cpus, gpus, resources and labels are for a cluster of your own; those of the one "
                f"at {address} were set by '{start}'"
            )
        address = address or os.environ.get("REMOTELY_ADDRESS")
        _engine = tracing.begin(_new_engine(address, key, offer, ship, patience_s, show_output))
        _forked = False
        _bystanders.clear()


def current() -> Engine:
    """Return the engine of this process; make it at the first use."""
    global _engine
    if _engine is None or _forked:
        with _lock:
            if _forked:
                raise NotConnected(FORKED)
            if _engine is None:
                _check_may_connect()
                if _adopted is not None:
                    _engine = tracing.begin(_adopted())
                else:
                    connect()
    assert _engine is not None
    return _engine


def _check_may_connect() -> None:
    """Raise NotConnected if another thread has ended the connection: see `shutdown`."""
    if threading.current_thread() in _bystanders:
        raise NotConnected(
            "another thread of this process has called remotely.shutdown(), or the process exits: "
            "to go on in this thread, call remotely.connect()"
        )


def engine_for(cluster: str) -> Engine:
    """Return the engine for a handle that has arrived here from a client of `cluster`.

    If this process is not connected, it connects to a started cluster, with its own key.  It cannot
    connect to a cluster that another process started for itself, and raises NotConnected.
    """
    address, _, identity = cluster.partition(" ")
    is_free = not is_connected() and not _forked and _adopted is None
    if is_free and not os.environ.keys() & {"REMOTELY_ADDRESS", "REMOTELY_LOCAL"}:
        if address.startswith("ipc://"):
            raise NotConnected(
                "this handle belongs to a cluster that another process started for itself, and "
                f"cannot be used in this process. {SHARED}"
            )
        if address:
            _check_may_connect()
            connect(address)
    engine = current()
    if engine.cluster.partition(" ")[2] != identity:
        mine = engine.cluster.partition(" ")[0] or "none: its objects live in it (REMOTELY_LOCAL)"
        raise NotConnected(
            f"this handle belongs to the cluster at {address or 'no address'}, and this process "
            f"uses another: {mine}. {SHARED}"
        )
    return engine


def shutdown() -> None:
    """End the actors that this process owns, and its own cluster if it has one.

    Called automatically when the interpreter exits.  Idempotent.  Later, this thread connects again
    when it makes an actor, as at the first use, and so do threads that begin later.  In the other
    threads, which may not know of the end, that raises NotConnected until `connect` is called.
    """
    global _engine
    with _lock:
        engine, _engine = _engine, None
        if engine is not None:
            _note_end()
    if engine is not None and not _forked:
        engine.shutdown()


def _note_end() -> None:
    """Have the other threads ask for a connection before they go on."""
    _bystanders.update(threading.enumerate())
    _bystanders.discard(threading.current_thread())


def shipped(name: str | Path) -> Path:
    """Return the path of a shipped file or folder, in a client or an actor."""
    return (_shipped_root or Path.cwd()) / name


def adopt(engine_of_actor: Callable[[], Engine]) -> None:
    """Note that this process is an actor: its first call makes it a client of its cluster."""
    global _adopted
    _adopted = engine_of_actor


def shipped_root() -> Path | None:
    """Return the folder of the files shipped to this process; None in a script."""
    return _shipped_root


def set_shipped_root(root: Path) -> None:
    global _shipped_root
    _shipped_root = root


def made() -> Engine | None:
    """Return the engine of this process, if there is one already."""
    return _engine


def _new_engine(
    address: str | None,
    key: str | Path | None,
    offer: OfferedResources,
    ship: str | Path | Iterable[str | Path],
    patience_s: float | None,
    show_output: bool,
) -> Engine:
    if os.environ.get("REMOTELY_LOCAL") == "1":
        from remotely.engines.in_process import InProcess  # noqa: PLC0415 - it imports asyncio

        return CallEngine(InProcess())
    if not address:
        return _embed(offer, ship, patience_s, show_output)
    if address.startswith(RAY):
        return _connect_to_ray(address, key, offer, ship, patience_s, show_output)
    from remotely.client.carrier import client_of  # noqa: PLC0415 - only such addresses need it

    client = client_of(address, key, ship, patience_s, show_output)
    client.check_python()
    client.say_goodbye_when_terminated()
    return CallEngine(client)


def _connect_to_ray(
    address: str,
    key: str | Path | None,
    offer: OfferedResources,
    ship: str | Path | Iterable[str | Path],
    patience_s: float | None,
    show_output: bool,
) -> Engine:
    from remotely.engines.ray.address import check_installed, parse  # noqa: PLC0415 - rarely used
    from remotely.values.shipping import Shipment  # noqa: PLC0415 - as above

    where = parse(address)
    check_installed(address)
    if key is not None:
        raise RemotelyError(f"{address} takes no key: Ray uses a token (ray get-auth-token)")
    from remotely.engines.ray import session  # noqa: PLC0415 - it imports Ray, which is an extra

    patience_s = PLACE_S if patience_s is None else patience_s
    return session.connect(where, offer, Shipment(ship), patience_s, show_output)


def _embed(
    offer: OfferedResources,
    ship: str | Path | Iterable[str | Path],
    patience_s: float | None,
    show_output: bool,
) -> Engine:
    from remotely.client.carrier import ClusterCarrier  # noqa: PLC0415 - as in `_new_engine`
    from remotely.ops.embedded import EmbeddedCluster  # noqa: PLC0415
    from remotely.values.shipping import Shipment  # noqa: PLC0415

    shipment = Shipment(ship)
    choose(offer.gpus)  # raises for invalid GPUs: here, not in the worker
    cluster = EmbeddedCluster()
    try:
        cluster.start(offer)
        carrier = ClusterCarrier(
            cluster.address,
            cluster.key,
            shipment,
            PLACE_S if patience_s is None else patience_s,
            show_output,
            on_shutdown=cluster.close,
            on_forget=cluster.forget,
        )
        return CallEngine(carrier)
    except BaseException:  # Ctrl-C too: nothing else ends its processes
        cluster.close()
        raise


def _after_fork() -> None:
    """Disconnect a forked child: ZeroMQ's threads do not survive a fork."""
    global _forked, _lock
    _lock = RLock()
    library.after_fork()
    _forked = _engine is not None or _adopted is not None
    if (forget := getattr(_engine, "forget", None)) is not None:
        forget()


def _at_exit() -> None:
    _silence_daemon_threads()
    _note_end()  # even if this process never connected
    with contextlib.suppress(KeyboardInterrupt):
        unfinished.report()
        shutdown()


def _silence_daemon_threads() -> None:
    """Hide the errors of daemon threads whose calls fail because this process exits."""
    original = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        is_daemon = args.thread is not None and args.thread.daemon
        if not (is_daemon and isinstance(args.exc_value, RemotelyError)):
            original(args)

    threading.excepthook = hook


def is_connected() -> bool:
    """Tell whether this process is connected; if not, its first actor starts a cluster."""
    return _engine is not None and not _forked


def is_idle_actor() -> bool:
    """Tell whether this process is an actor that has not been a client of its cluster yet."""
    return _engine is None and _adopted is not None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)

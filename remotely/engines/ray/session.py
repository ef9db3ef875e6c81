"""The Ray cluster of this process: joined, or started."""

import logging
import socket
from typing import Any

import ray
from ray._private import services
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available as use_token,
)
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError, RayError

from remotely.calling.engine import CallEngine
from remotely.engines.ray.actor import NAMESPACE
from remotely.engines.ray.address import GCS_PORT, NO_LABELS, check_trust
from remotely.engines.ray.carrier import RayCarrier, engine_on
from remotely.errors import MasterLost, NotAllowed, RemotelyError, VersionMismatch
from remotely.machine.gpus import OfferedResources, choose
from remotely.protocol.address import split_address
from remotely.protocol.lease import CONNECT_S
from remotely.values.shipping import Shipment

STORE_BYTES = 1 << 30  # Ray's object store, in /dev/shm, of a local cluster

_NO_TOKEN = (
    "the Ray cluster at ray:{} does not admit this process: set RAY_AUTH_MODE=token here, with the "
    "token of that cluster in ~/.ray/auth_token or RAY_AUTH_TOKEN"
)
_OTHER_VERSION = (
    "the Ray cluster at ray:{} runs another version of Ray or Python; install the same here. {}"
)


def connect(
    where: str,
    offer: OfferedResources,
    shipment: Shipment,
    patience_s: float,
    show_output: bool,
) -> CallEngine:
    """Return an engine on the cluster `where`, an address from `address.parse`.

    A process that has already joined Ray, as a Ray job has, uses that connection.
    """
    is_ours = not ray.is_initialized()
    if not is_ours:
        check_trust(where)
    else:
        settings: dict[str, Any] = {
            "namespace": NAMESPACE,
            "log_to_driver": show_output,
            "logging_level": logging.WARNING,
        }
        if where == "local":
            settings |= own_cluster(offer)
        try:
            head = _head_of(where)
            check_trust(head)
            _check_answers(head)
            ray.init(address=head, **settings)
        except AuthenticationError:
            raise NotAllowed(_NO_TOKEN.format(where)) from None
        except (OSError, RayError) as error:
            raise MasterLost(
                f"no Ray cluster at ray:{where}: {str(error).rstrip('. ')}. Start one there "
                "with 'ray start --head', or use ray:local for one of your own"
            ) from None
        except RuntimeError as error:
            if "Version mismatch" not in str(error):
                raise
            ray.shutdown()  # undo the partial connection
            raise VersionMismatch(
                _OTHER_VERSION.format(where, " ".join(str(error).split()))
            ) from None
    return engine_on(
        RayCarrier(cluster_of_this_process(), shipment, patience_s, owns_session=is_ours)
    )


def _head_of(where: str) -> str:
    """Resolve "auto" to a head, possibly of another machine that this machine has joined.

    Raises OSError if there is none.
    """
    if where != "auto":
        return where
    return services.canonicalize_bootstrap_address(where) or where


def _check_answers(where: str) -> None:
    """Raise OSError or AuthenticationError immediately, where `ray.init` would retry."""
    if where not in ("local", "auto"):
        host, port = split_address(where)
        socket.create_connection((host, port or GCS_PORT), CONNECT_S).close()
        use_token(warn_if_disabled=False)  # `ray.init` does this too, but later
        GcsClient(address=where)


def own_cluster(offer: OfferedResources) -> dict[str, Any]:
    """Return the arguments of `ray.init` for a local cluster.

    Raises ValueError if `cpus` is not whole, because Ray counts only whole CPUs, and RemotelyError
    for labels.
    """
    cpus, gpus, resources, labels, _ = offer
    if labels:
        raise RemotelyError(NO_LABELS)
    if cpus is not None and cpus != int(cpus):
        raise ValueError(f"cpus={cpus!r}: a Ray cluster offers whole CPUs")
    return {
        "num_cpus": None if cpus is None else int(cpus),
        "num_gpus": None if gpus is None else len(choose(gpus)),
        "resources": dict(resources or {}),
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
    }


def cluster_of_this_process() -> str:
    """Return the id of the cluster for handles: the address, and the unique session name."""
    context = ray.get_runtime_context()
    session = ray._private.worker.global_worker.node.session_name
    return f"ray:{context.gcs_address} {session}"

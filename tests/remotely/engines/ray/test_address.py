"""Addresses of Ray clusters, and the errors for bad ones; Ray itself is not needed."""

import subprocess
import sys

import pytest

import remotely
from remotely.engines.ray import address


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("ray:local", "local"),
        ("ray:auto", "auto"),
        ("ray:node0:7000", "node0:7000"),
        ("ray:10.0.0.1", "10.0.0.1:6379"),
        ("ray:[fd00::1]:7000", "[fd00::1]:7000"),
    ],
)
def test_an_address_names_a_cluster(given: str, where: str) -> None:
    assert address.parse(given) == where


@pytest.mark.parametrize("given", ["ray:", "ray:node0:", "ray::6379", "ray:node0:port"])
def test_a_bad_address_raises_with_the_valid_forms(given: str) -> None:
    with pytest.raises(ValueError, match=r"ray:local, ray:auto or ray:HOST:6379"):
        address.parse(given)


def test_ray_client_is_refused_with_advice() -> None:
    with pytest.raises(remotely.RemotelyError) as refused:
        remotely.connect("ray://head:10001")
    assert "on the head of the cluster with 'ray:auto'" in str(refused.value)
    assert "ray job submit -- python script.py (pip install 'ray[default]')" in str(refused.value)


def test_auto_uses_ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.77:6379")
    assert address.parse("ray:auto") == "192.0.2.77:6379"

    monkeypatch.setenv("RAY_ADDRESS", "ray://192.0.2.77:10001")
    with pytest.raises(remotely.RemotelyError, match="cannot stream"):
        address.parse("ray:auto")


def test_the_cores_of_a_cluster_that_runs_are_those_of_ray_start() -> None:
    with pytest.raises(remotely.RemotelyError, match="were set by 'ray start'"):
        remotely.connect("ray:auto", cpus=2)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(remotely.RemotelyError, match=r"pip install '\.\[ray\]'"):
        remotely.connect("ray:local")


def test_another_machine_is_refused_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("disabled", None):
        if mode is None:
            monkeypatch.delenv("RAY_AUTH_MODE")
        else:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        address.check_trust("127.0.0.1:6379")
        with pytest.raises(remotely.NotAllowed, match="RAY_AUTH_MODE=token"):
            address.check_trust("192.0.2.77:6379")

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    address.check_trust("192.0.2.77:6379")


def test_an_unknown_host_raises_with_the_valid_forms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)

    for where in ("no.such.invalid:6379", "a..b:6379"):
        with pytest.raises(ValueError, match=r"does not resolve here: write ray:local, ray:auto"):
            address.check_trust(where)
    with pytest.raises(remotely.NotAllowed, match="another machine"):
        address.check_trust("[2001:db8::1]:6379")


def test_importing_remotely_never_imports_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import remotely, sys; sys.exit('ray' in sys.modules)"], check=False
    )

    assert done.returncode == 0

"""The tables of a status, for made-up clusters."""

import msgspec

from remotely.protocol import control
from remotely.protocol.resources import Resources, Shares
from remotely.reporting.cluster_status import as_json, cluster_status, tables

GIB = 1 << 30


def worker(name: str, host: str, free_memory: int, away_s: float = 0) -> control.WorkerStatus:
    return control.WorkerStatus(
        worker=name,
        machine=f"machine of {host}",
        host=host,
        address="",
        python="3.11",
        resources=Resources(2, 0, 8 * GIB),
        away_s=away_s,
        free_cpus=0 if away_s else 1,
        free_gpus=0,
        free_memory=free_memory,
        actors=[],
    )


def test_the_memory_and_gpus_of_a_machine_with_two_workers_count_once() -> None:
    workers = [worker("a", "h1", 5 * GIB), worker("b", "h1", 5 * GIB), worker("c", "h2", 8 * GIB)]
    both = Shares("h1", 8 * GIB, ("gpu 0", "gpu 1"))
    has_gpus = {"resources": Resources(2, 2, 8 * GIB), "free_gpus": 1.5}
    workers[:2] = [msgspec.structs.replace(w, shares=both, **has_gpus) for w in workers[:2]]
    found = control.Status(ticket=1, workers=workers, clients=[], waiting=0)
    head, *_ = tables(cluster_status(found, "here"), now=0).splitlines()
    assert head.endswith("free: 3 of 6 CPUs, 1.5 of 2 GPUs; memory: 3 GiB of 16 GiB reserved")


def test_workers_that_offer_parts_of_the_memory_of_a_machine_add_up() -> None:
    workers = [
        msgspec.structs.replace(worker(name, "h1", free * GIB), shares=Shares("h1", 24 * GIB))
        for name, free in (("a", 7), ("b", 3))
    ]
    found = control.Status(ticket=1, workers=workers, clients=[], waiting=0)
    head, *_ = tables(cluster_status(found, "here"), now=0).splitlines()
    assert head.endswith("6 GiB of 16 GiB reserved")


def test_a_sick_machine_is_shown_with_its_last_error() -> None:
    well = worker("a", "h1", 8 * GIB)
    sick = msgspec.structs.replace(worker("b", "h2", 0), sick="no space left", sick_s=70.0)
    found = control.Status(ticket=0, workers=[well, sick], clients=[], waiting=0)
    status = cluster_status(found, "here:1")
    lines = tables(status, now=0).splitlines()
    assert lines[1] == "machine of h2: SICK for 1 min, last error: no space left"
    assert "SICK 1 min" in lines[-1]
    assert [machine["sick"] for machine in as_json(status)["machines"]] == ["", "no space left"]


def test_an_unreachable_machine_is_shown_with_its_time_away() -> None:
    workers = [worker("a", "h1", 8 * GIB), worker("b", "h2", 0, away_s=6.4)]
    found = control.Status(ticket=1, workers=workers, clients=[], waiting=0)
    status = cluster_status(found, "here")
    head, _, _, there, away = tables(status, now=0).splitlines()
    assert "free: 1 of 4 CPUs" in head
    assert "1 of 2" in there
    assert "AWAY 6 s" in away
    assert [machine.away_s for machine in status.machines] == [0, 6.4]


def test_a_machine_that_is_drained_is_shown_with_the_time_left() -> None:
    drained = msgspec.structs.replace(worker("a", "h1", 0), drains_s=540.0)
    found = control.Status(ticket=0, workers=[drained], clients=[], waiting=0)
    status = cluster_status(found, "here:1")
    lines = tables(status, now=0).splitlines()
    assert lines[1] == "machine of h1: DRAINING, leaves within 9 min"
    assert "DRAINING 9 min" in lines[-1]
    assert as_json(status)["machines"][0]["drains_s"] == 540.0

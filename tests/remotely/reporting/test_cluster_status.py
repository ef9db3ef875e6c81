"""The tables of a status, for made-up clusters."""

import msgspec

from remotely.protocol import control
from remotely.protocol.resources import Resources, Shares
from remotely.reporting.cluster_status import as_json, cluster_status, cut, field_help, tables

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


def test_where_only_named_cpus_are_counted_it_says_so() -> None:
    told = "Only actors that name cpus take CPUs here; there may be any number of others"
    for counts in (True, False):
        found = control.Status(
            ticket=1,
            workers=[worker("a", "h1", 8 * GIB)],
            clients=[],
            waiting=0,
            counts_cpus=counts,
        )
        status = cluster_status(found, "here")
        assert (told in tables(status, now=0).splitlines()) == (not counts)
        assert as_json(status)["counts_cpus"] == counts


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


def ended(name: str, **how: object) -> control.EndStatus:
    known = {"class_name": "C", "machine": "m", "ago_s": 3.0, "lost": False, "restarting": False}
    return msgspec.convert(
        {"name": name, "exit": None, "why": "", "stderr": "", **known, **how}, control.EndStatus
    )


def test_the_last_ends_are_shown_in_words_and_as_of_now() -> None:
    ends = [
        ended("a", exit="SIGKILL", restarting=True),
        ended("b", exit=3, restarted=True),
        ended("c", exit="SIGKILL", why="out of memory: it used 2 GiB"),
        ended("d", lost=True),
    ]
    found = control.Status(ticket=0, workers=[], clients=[], waiting=0, ends=ends)
    status = cluster_status(found, "here:1")
    assert [end.how for end in status.ends] == ["SIGKILL", "exit code 3", "out of memory", "lost"]
    killed, code, memory, lost = tables(status, now=0).splitlines()[-4:]
    assert killed.split() == ["a", "C", "m", "SIGKILL", "3", "s", "is", "restarted"]
    assert "exit code 3" in code
    assert "runs again" in code
    assert "out of memory: it used 2 GiB" in memory
    assert "lost" in lost
    status = cluster_status(msgspec.structs.replace(found, ended=7), "here:1")
    assert tables(status, now=0).endswith("\nand 3 more since the master started: remotely events")


def test_what_is_kept_for_a_waiting_request_is_neither_free_nor_held() -> None:
    kept = msgspec.structs.replace(worker("a", "h1", 0), free_cpus=0, kept_cpus=2)
    found = control.Status(ticket=0, workers=[kept], clients=[], waiting=1)
    table = tables(cluster_status(found, "here:1"), now=0)
    assert "0 of 2 (2 kept for a waiting request)" in table


def test_a_long_name_is_cut_in_its_middle() -> None:
    name = "ppo-learner-of-the-experiment-with-a-very-long-name-17"
    assert cut(name) == "ppo-learner-of-the-…-a-very-long-name-17"
    assert cut("short") == "short"


def test_the_help_names_every_field_of_the_json() -> None:
    known = {line.split()[0] for line in field_help()}
    found = control.Status(
        ticket=0,
        workers=[worker("a", "h1", 0)],
        clients=[control.ClientStatus(session="s", machine="m", pid=1)],
        waiting=1,
        waits=[control.WaitStatus(class_name="C", count=1, waits_s=1, why="")],
        ends=[ended("a")],
    )
    content = as_json(cluster_status(found, "here:1"))
    rows = [
        content,
        *(row for value in content.values() if isinstance(value, list) for row in value),
    ]
    assert {name for row in rows for name in row} <= known

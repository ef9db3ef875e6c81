"""Remembered deaths and flight records."""

from remotely.master.state import (
    REMEMBERED_DEATHS,
    REMEMBERED_FLIGHT_RECORDS,
    ActorTable,
)
from remotely.protocol import control


def death(actor: str, record: bytes = b"", life: int = 0) -> control.Obituary:
    return control.Obituary(actor=actor, life=life, flight_record=record)


def test_only_the_newest_deaths_are_remembered() -> None:
    table = ActorTable()
    for number in range(REMEMBERED_DEATHS + 1):
        table.remember(death(f"a{number}"))
    assert len(table.deaths) == REMEMBERED_DEATHS
    assert "a0" not in table.deaths
    assert f"a{REMEMBERED_DEATHS}" in table.deaths


def test_only_the_newest_flight_records_are_kept() -> None:
    table = ActorTable()
    for number in range(REMEMBERED_FLIGHT_RECORDS + 2):
        table.remember(death(f"a{number}", b"%d" % number))
        table.remember(death(f"none{number}"))
    kept = [o.flight_record for o in table.deaths.values() if o.actor.startswith("a")]
    assert kept[:3] == [b"", b"", b"2"]
    assert all(kept[2:])
    assert table.deaths["a0"].actor == "a0"


def test_dropping_an_old_flight_record_keeps_that_of_a_later_life() -> None:
    table = ActorTable()
    for life in range(REMEMBERED_FLIGHT_RECORDS + 1):
        table.remember(death("a", b"%d" % life, life))
    assert table.deaths["a"].flight_record == b"%d" % REMEMBERED_FLIGHT_RECORDS
    for number in range(REMEMBERED_FLIGHT_RECORDS):
        table.remember(death(f"b{number}", b"x"))
    assert table.deaths["a"].flight_record == b""


def test_dropping_the_flight_record_of_a_forgotten_death_is_no_error() -> None:
    table = ActorTable()
    table.remember(death("a", b"x"))
    del table.deaths["a"]
    for number in range(REMEMBERED_FLIGHT_RECORDS):
        table.remember(death(f"b{number}", b"x"))
    assert "a" not in table.deaths

"""Control messages: encoding, which sender may send each, and hostile input."""

import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remotely.errors import RemotelyError, VersionMismatch, WireError
from remotely.protocol import control
from remotely.protocol.numbers import MOST_FLIGHT_RECORD, MOST_GPUS, MOST_OTHERS
from remotely.protocol.resources import Resources, Shares

DECODERS = {way: control.Decoder(way) for way in control.WAYS}


def members(way: str) -> set[type[msgspec.Struct]]:
    return set(control.WAYS[way])


EVERY = sorted(set().union(*map(members, DECODERS)), key=lambda kind: kind.__name__)
ROWS = [(way, kind) for way in DECODERS for kind in sorted(members(way), key=lambda k: k.__name__)]

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),  # NaN is not equal to itself
    type(None): st.none(),
}
NUMBERS: dict[Any, Callable[[Any, Any], st.SearchStrategy[Any]]] = {
    int: st.integers,
    float: st.floats,
}

# The GPUs of a worker are limited, and have as many ids or none; a client may request any number.
OF_FIELD: dict[tuple[type[msgspec.Struct], str], st.SearchStrategy[Any]] = {
    (control.Register, "resources"): st.builds(
        Resources,
        cpus=st.floats(0, 1e12),
        gpus=st.integers(0, MOST_GPUS).map(float),
        memory=st.integers(0, control.MOST),
    ),
    (control.Register, "shares"): st.builds(
        Shares, pool=st.text(max_size=8), memory=st.integers(0, control.MOST)
    ),
}


@cache
def made(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Return messages of this kind, with values for all fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {
        name: OF_FIELD[kind, name] if (kind, name) in OF_FIELD else values(hint)
        for name, hint in hints.items()
    }
    return st.fixed_dictionaries(fields).map(lambda fields: kind(**fields))


def values(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kind, bounds = arguments
        if kind is str:
            return st.from_regex(bounds.pattern, fullmatch=True)
        if kind is bytes:
            return st.binary(min_size=bounds.min_length or 0, max_size=min(bounds.max_length, 100))
        return NUMBERS[kind](bounds.ge, bounds.le)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is list:
        return st.lists(values(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    if arguments:
        return st.one_of(*map(values, arguments))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return made(hint)
    return PLAIN[hint]


def accepts(way: str, data: bytes) -> bool:
    try:
        DECODERS[way].decode(data)
    except WireError:
        return False
    return True


messages = st.sampled_from(EVERY).flatmap(made)


# --- encoding and senders -------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "kind"), ROWS)
@settings(max_examples=10)
@given(data=st.data())
def test_every_message_is_decoded_as_it_was_encoded(
    way: str, kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    message = data.draw(made(kind))
    sent = control.encode(message)
    assert DECODERS[way].decode(sent) == DECODERS[way].decode(memoryview(sent)) == message


@pytest.mark.parametrize("kind", EVERY)
@settings(max_examples=5)
@given(data=st.data())
def test_a_message_of_another_sender_is_refused(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    sent = control.encode(data.draw(made(kind)))
    assert {way for way in DECODERS if accepts(way, sent)} == {
        way for way in DECODERS if kind in members(way)
    }


def test_clients_and_workers_have_different_messages() -> None:
    both = {
        control.Beat,
        control.TimelineClock,
        control.ProcessTimeline,
        control.TimelineEnd,
    }  # timelines
    assert members("client > master") & members("worker > master") == both


def test_what_is_as_by_default_is_not_sent() -> None:
    figures = control.Figures(actor="a" * 32)
    assert len(control.encode(figures)) < 50
    request = control.Request(
        actor="a" * 32,
        class_name="Player",
        name="Player-1",
        owner="o" * 32,
        job="j" * 32,
        python="3.11",
    )
    assert len(control.encode(request)) < 200


def test_only_the_master_can_tell_a_worker_to_start_or_end_something() -> None:
    for way in DECODERS:
        if way not in ("master > worker", "worker > actor"):
            assert not members(way) & {control.Spawn, control.Leave, control.Registered}


# --- invalid messages -----------------------------------------------------------------------------


def numbers(kind: type[msgspec.Struct]) -> list[str]:
    """Return the names of the numeric fields, bounded or not."""
    hints = typing.get_type_hints(kind)
    return [name for name, hint in hints.items() if hint in (int, float)]


TO_MASTER: list[type[msgspec.Struct]] = sorted(
    {kind for role in ("client", "worker", "viewer") for kind in members(f"{role} > master")}
    | members("actor > worker")
    | {
        Resources,
        control.Request,
        control.Location,
        control.ActorStatus,
        control.Figures,
        control.Obituary,
    },
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", [kind for kind in TO_MASTER if numbers(kind)])
@settings(max_examples=1)
@given(data=st.data())
def test_a_number_out_of_bounds_is_refused_in_every_field(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    """An infinity among the CPUs once left the master unable to answer any status."""
    good = msgspec.to_builtins(data.draw(made(kind)))
    for name in numbers(kind):
        for wrong in (float("inf"), float("nan"), -2, 1 << 63):
            bad = msgspec.msgpack.encode({**good, name: wrong})
            with pytest.raises(msgspec.ValidationError):
                msgspec.msgpack.decode(bad, type=kind)


@given(made(control.Register))
@settings(max_examples=1)
def test_a_worker_with_more_gpus_than_a_machine_may_have_is_refused(
    register: msgspec.Struct,
) -> None:
    bad = msgspec.to_builtins(register, builtin_types=(bytes,))
    for wrong, says in (({"gpus": MOST_GPUS + 1}, "4097 GPUs"), ({"gpus": 0.5}, "whole number")):
        bad["resources"].update(wrong)
        with pytest.raises(msgspec.ValidationError, match=says):
            msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=control.Register)
    bad["resources"].update(gpus=0, others=[(f"r{n}", 1.0) for n in range(MOST_OTHERS + 1)])
    with pytest.raises(msgspec.ValidationError, match="101 custom resources"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=control.Register)


def test_a_flight_record_larger_than_a_recorder_is_refused() -> None:
    for nbytes, is_taken in ((MOST_FLIGHT_RECORD, True), (MOST_FLIGHT_RECORD + 1, False)):
        obituary = control.Obituary(actor="a", life=0, flight_record=bytes(nbytes))
        sent = control.encode(control.Died(obituary=obituary))
        assert accepts("worker > master", sent) is is_taken


@pytest.mark.parametrize("wrong", ["", "..", "../x", "a/b", "a\0", "a\n", "é", "a" * 65])
def test_an_actors_id_must_be_a_valid_file_name(wrong: str) -> None:
    end = {"type": "End", "actor": wrong, "grace_s": 1.0}
    with pytest.raises(msgspec.ValidationError, match="actor"):
        msgspec.convert(end, control.End)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(WireError, match="empty"):
        DECODERS["client > master"].decode(b"")


@pytest.mark.parametrize("version", [0, control.VERSION + 1, 255])
def test_another_version_is_refused_with_advice_whatever_follows(version: int) -> None:
    for body in (control.encode(control.Beat())[1:], b"\xc1\xff"):
        with pytest.raises(VersionMismatch, match=f"version {version} .* install the same version"):
            DECODERS["client > master"].decode(bytes([version]) + body)


def test_a_field_of_the_wrong_type_is_named() -> None:
    sent = bytes([control.VERSION]) + msgspec.msgpack.encode(
        {"type": "End", "actor": 7, "grace_s": 1.0}
    )
    with pytest.raises(WireError, match=r"\$\.actor"):
        DECODERS["client > master"].decode(sent)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x91" * 100_000, id="lists in lists in lists"),
        pytest.param(b"\x81\xa4type" * 50_000, id="maps in maps in maps"),
        pytest.param(
            b"\x82\xa4type\xa8Register\xa3old" + b"\x91" * 100_000 + b"\xc0",
            id="nested lists in an unknown field",
        ),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a list of four billion"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="a string of four gigabytes"),
        pytest.param(b"\x82\xa4type\xa3End\xa5actor\xa1\xff", id="a string that is not UTF-8"),
        pytest.param(b"\xc7\x08\x05abcdefgh", id="an extension type"),
        pytest.param(b"\xd6\xff\xff\xff\xff\xff", id="a timestamp"),
        pytest.param(b"\xc1", id="the byte that msgpack never uses"),
        pytest.param(b"\x81\xa4type\xa5Tick\0", id="an almost valid tag"),
        pytest.param(b"\x81\xa4type\xa4Beat" + b"\0", id="a trailing byte"),
    ],
)
@pytest.mark.parametrize("way", DECODERS)
def test_hostile_bytes_are_a_wire_error(way: str, body: bytes) -> None:
    with pytest.raises(WireError):
        DECODERS[way].decode(bytes([control.VERSION]) + body)


@given(st.sampled_from(list(DECODERS)), st.binary(max_size=64))
def test_any_bytes_decode_to_a_message_or_a_wire_error(way: str, data: bytes) -> None:
    for sent in (data, bytes([control.VERSION]) + data):
        try:
            assert type(DECODERS[way].decode(sent)) in members(way)
        except (WireError, VersionMismatch):
            pass


@given(messages, st.data())
def test_a_damaged_control_message_decodes_or_raises_a_wire_error(
    message: msgspec.Struct, data: st.DataObject
) -> None:
    sent = bytearray(control.encode(message))
    for _ in range(data.draw(st.integers(1, 4), "damages")):
        place = data.draw(st.integers(0, len(sent)), "place")
        match data.draw(st.sampled_from(["cut", "grow", "change"]), "damage"):
            case "cut":
                del sent[place:]
            case "grow":
                sent[place:place] = data.draw(st.binary(min_size=1, max_size=9), "grown by")
            case _ if place < len(sent):
                sent[place] = data.draw(st.integers(0, 255), "changed to")
    for way, reader in DECODERS.items():
        try:
            assert type(reader.decode(bytes(sent))) in members(way)
        except RemotelyError:
            pass

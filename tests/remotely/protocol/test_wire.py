"""Messages between a client and an actor: encoding, limits, and hostile input."""

import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely.errors import TooLarge, WireError
from remotely.protocol import wire
from remotely.protocol.wire import SHAPES, Kind, Message, Shape

SENDERS = ("client", "actor")
ROWS = list(SHAPES.items())

call_ids = st.integers(0, 2**64 - 1)
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50
)


def frames_of(
    kind: int = Kind.CALL,
    name: bytes = b"add",
    payload: bytes = b"",
    buffers: int = 0,
    version: int = wire.VERSION,
    name_length: int | None = None,
) -> list[bytes]:
    """Return frames that `encode` would not produce."""
    length = len(name) if name_length is None else name_length
    head = struct.pack(">BBHIQ", version, kind, length, 0, 1)
    return [head + name + payload, *[b"b"] * buffers]


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, Message]:
    kind, shape = draw(st.sampled_from(ROWS))
    buffers = draw(
        st.lists(
            st.binary(max_size=20),
            min_size=shape.min_buffers,
            max_size=min(shape.max_buffers, shape.min_buffers + 3),
        )
    )
    name = draw(names) if shape.named else ""
    payload = draw(st.binary(max_size=100))
    loan = b""
    if shape.max_buffers and draw(st.booleans()):
        buffers, loan = [], draw(st.binary(min_size=1, max_size=20))
    return shape.sender, Message(kind, draw(call_ids), name, payload, buffers, loan)


def encoded(message: Message) -> list[bytes | memoryview]:
    return wire.encode(*message[:3], [message.payload], *message[4:6])


def outcome(frames: list[bytes], sender: str) -> Message | None:
    """Return what `decode` makes of the frames; None for a WireError."""
    try:
        return wire.decode(frames, sender)
    except WireError:
        return None


def accepts(frames: list[bytes], sender: str) -> bool:
    return outcome(frames, sender) is not None


# --- encoding -------------------------------------------------------------------------------------


@given(messages())
def test_a_message_is_decoded_as_it_was_encoded(sent: tuple[str, Message]) -> None:
    sender, message = sent
    for frames in (encoded(message), [memoryview(frame) for frame in encoded(message)]):
        decoded = wire.decode(frames, sender)
        buffers = [bytes(buffer) for buffer in decoded.buffers]
        assert decoded._replace(payload=bytes(decoded.payload), buffers=buffers) == message


def test_large_payloads_and_buffers_are_decoded_without_a_copy() -> None:
    frames = wire.encode(Kind.CALL, 1, "add", [b"p" * 100], [b"b" * 100])
    decoded = wire.decode(frames, "client")
    assert isinstance(decoded.payload, memoryview)
    assert decoded.payload.obj is frames[0]
    assert decoded.buffers[0] is frames[1]


# --- every row of the table -----------------------------------------------------------------------


def test_every_kind_has_a_row() -> None:
    assert set(SHAPES) == set(Kind)


@pytest.mark.parametrize(("kind", "shape"), ROWS)
def test_a_kind_is_accepted_only_from_its_sender(kind: Kind, shape: Shape) -> None:
    frames = frames_of(kind, b"n" if shape.named else b"", buffers=shape.min_buffers)
    assert {sender for sender in SENDERS if accepts(frames, sender)} == {shape.sender}


@pytest.mark.parametrize(("kind", "shape"), ROWS)
def test_a_kind_has_a_name_only_if_the_table_says_so(kind: Kind, shape: Shape) -> None:
    taken = {
        bool(name)
        for name in (b"", b"n")
        if accepts(frames_of(kind, name, buffers=shape.min_buffers), shape.sender)
    }
    assert taken == {shape.named}


@pytest.mark.parametrize(("kind", "shape"), ROWS)
def test_a_kind_has_as_many_buffers_as_the_table_allows(kind: Kind, shape: Shape) -> None:
    least, most = shape.min_buffers, shape.max_buffers
    name = b"n" if shape.named else b""
    taken = {
        count
        for count in {0, least, most, most + 1}
        if accepts(frames_of(kind, name, buffers=count), shape.sender)
    }
    assert taken == {count for count in {0, least, most} if least <= count <= most}


def test_a_loan_replaces_buffers() -> None:
    lent = wire.encode(Kind.CALL, 1, "add", loan=b"loan")
    assert wire.decode(lent, "client").loan == b"loan"
    for refused in ([*lent, b"buffer"], wire.encode(Kind.GET, 1, "rate", loan=b"loan")):
        with pytest.raises(WireError, match="malformed"):
            wire.decode(refused, "client")


# --- limits ---------------------------------------------------------------------------------------


def test_a_name_that_is_too_long_cannot_be_encoded() -> None:
    longest = "n" * wire.MAX_NAME_BYTES
    assert wire.decode(wire.encode(Kind.GET, 1, longest), "client").name == longest
    with pytest.raises(WireError, match="65536 bytes"):
        wire.encode(Kind.GET, 1, longest + "n")
    with pytest.raises(WireError, match="80000 bytes"):
        wire.encode(Kind.GET, 1, "é" * 40_000)


def test_too_many_buffers_cannot_be_encoded() -> None:
    wire.encode(Kind.RESULT, 1, buffers=[b""] * wire.MAX_FRAMES)
    with pytest.raises(WireError, match="4097 buffers"):
        wire.encode(Kind.RESULT, 1, buffers=[b""] * (wire.MAX_FRAMES + 1))


def test_too_many_bytes_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1000)
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 2500)
    wire.encode(Kind.RESULT, 1, buffers=[b"x" * 1000] * 2)
    with pytest.raises(TooLarge, match="send it in parts"):
        wire.encode(Kind.RESULT, 1, buffers=[b"x" * 1001])
    with pytest.raises(TooLarge):
        wire.encode(Kind.RESULT, 1, buffers=[b"x" * 1000] * 3)
    with pytest.raises(TooLarge):
        wire.encode(Kind.RESULT, 1, payload=[b"x" * 600, b"x" * 600])


# --- invalid messages -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "without a head"),
        ([b""], "without a head"),
        ([b"\1\2\0\0" + b"\0" * 11], "without a head"),
        (frames_of(version=wire.VERSION + 1), f"version {wire.VERSION + 1}"),
        (frames_of(0), "kind 0"),
        (frames_of(255), "kind 255"),
        (frames_of(name_length=4), "malformed CALL"),
        (frames_of(name=b"\xff\xfe"), "not text"),
    ],
)
def test_a_malformed_message_is_described(frames: list[bytes], words: str) -> None:
    with pytest.raises(WireError, match=words):
        wire.decode(frames, "client")


@given(st.lists(st.binary(max_size=64), max_size=4), st.sampled_from(SENDERS))
def test_any_frames_decode_to_a_message_or_a_wire_error(frames: list[bytes], sender: str) -> None:
    outcome(frames, sender)


@given(messages(), st.sampled_from(SENDERS), st.data())
def test_a_damaged_message_decodes_or_raises_a_wire_error(
    sent: tuple[str, Message], sender: str, data: st.DataObject
) -> None:
    frames = [bytearray(frame) for frame in encoded(sent[1])]
    for _ in range(data.draw(st.integers(1, 4), "damages")):
        frame = frames[data.draw(st.integers(0, len(frames) - 1), "frame")]
        place = data.draw(st.integers(0, len(frame)), "place")
        match data.draw(st.sampled_from(["cut", "grow", "change"]), "damage"):
            case "cut":
                del frame[place:]
            case "grow":
                frame[place:place] = data.draw(st.binary(min_size=1, max_size=9), "grown by")
            case _ if place < len(frame):
                frame[place] = data.draw(st.integers(0, 255), "changed to")
    decoded = outcome([bytes(frame) for frame in frames], sender)
    if decoded is not None:  # then it conforms to the table
        shape = SHAPES[decoded.kind]
        assert shape.sender == sender
        assert bool(decoded.name) == shape.named
        assert decoded.loan or len(decoded.buffers) >= shape.min_buffers
        assert len(decoded.buffers) <= shape.max_buffers


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("carrier", "carried", "sender"),
    [(Kind.CALLS, Kind.CALL, "client"), (Kind.RESULTS, Kind.RESULT, "actor")],
)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_batch_is_decoded_like_single_messages(
    carrier: Kind, carried: Kind, sender: str, count: int
) -> None:
    name = "add" if carried is Kind.CALL else ""
    alone = [wire.encode(carried, i, name, [b"p" * i])[0] for i in range(count)]
    (frame,) = wire.batch(carrier, alone)
    assert count == 1 or wire.call_id_of(frame) == 0
    arrived = wire.unbatch(wire.decode([frame], sender))
    assert [(m.kind, m.call_id, m.name, bytes(m.payload)) for m in arrived] == [
        (carried, i, name, b"p" * i) for i in range(count)
    ]


@given(st.binary(max_size=80), st.sampled_from([Kind.CALLS, Kind.RESULTS]))
def test_any_batch_payload_decodes_or_raises_a_wire_error(payload: bytes, kind: Kind) -> None:
    message = wire.decode(wire.encode(kind, 0, payload=[payload]), SHAPES[kind].sender)
    try:
        assert all(one.kind in (Kind.CALL, Kind.RESULT) for one in wire.unbatch(message))
    except WireError:
        pass


def test_a_batch_of_calls_has_only_calls() -> None:
    end = wire.encode(Kind.END, 1)[0]
    call = wire.encode(Kind.CALL, 1, "add")[0]
    lent = wire.encode(Kind.CALL, 1, "add", loan=b"loan")[0]
    for other in (end, lent):
        message = wire.decode(wire.batch(Kind.CALLS, [call, other]), "client")
        with pytest.raises(WireError, match="among them"):
            wire.unbatch(message)


def test_one_byte_over_the_limit_is_refused_with_size_and_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = len(wire.encode(Kind.RESULT, 1)[0])
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 2 << 30)
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 3 << 30)
    gibibyte = memoryview(mmap.mmap(-1, 1 << 30))  # pages that are never touched
    rest = gibibyte[: (1 << 30) - head]
    wire.encode(Kind.RESULT, 1, buffers=[gibibyte, gibibyte, rest])
    with pytest.raises(TooLarge) as raised:
        wire.encode(Kind.RESULT, 1, buffers=[gibibyte, gibibyte, rest, b"1"])
    assert str(raised.value) == (
        "a value of 3 GiB or more: one array may have 2 GiB, a whole call 3 GiB; send it in parts"
    )


def test_a_truncated_batch_is_described() -> None:
    one = wire.encode(Kind.RESULT, 7)[0]
    whole = wire.decode(wire.batch(Kind.RESULTS, [one, one]), "actor")
    payload = bytes(whole.payload)
    cut = whole._replace(payload=payload[: -len(one) - 1])
    with pytest.raises(WireError, match="RESULTS that end within a length"):
        wire.unbatch(cut)
    with pytest.raises(WireError, match="a message without a head"):
        wire.unbatch(whole._replace(payload=payload[: -len(one) - 4] + bytes(4)))
    with pytest.raises(WireError, match="RESULTS that end within one of them"):
        wire.unbatch(whole._replace(payload=payload[:-1]))

"""The control messages: of clients and workers with the master, of a worker with its processes.

    records.py    records in several messages
    store.py      clients, workers and actors <-> the store of a machine
    client.py     client <-> master
    worker.py     worker <-> master; also a guest, which registers as a worker
    message.py    clients and workers <-> master
    process.py    worker <-> zygote, actor

Every message is a struct, encoded as one version byte and msgpack.  The unions below define who may
send what: decoding fails for a message that is not in its sender's union.  Pickle is not used, on
purpose: a pickle is code, and the master runs none.
"""

import msgspec

from remotely.errors import VersionMismatch, WireError
from remotely.protocol.control.client import (
    AskArrival,
    AskStatus,
    Blocked,
    Cancel,
    End,
    Farewell,
    Goodbye,
    Held,
    Hello,
    Hold,
    LetGo,
    LetGoHeard,
    Locate,
    Located,
    Logged,
    LogPiece,
    NoArrival,
    Notice,
    NotPlaced,
    Place,
    Placed,
    Printed,
    Queued,
    ReadLog,
    RoomWanted,
    Status,
    Unanswered,
    Unblocked,
    Welcome,
)
from remotely.protocol.control.message import Beat, Refused, Tick, WhoAreYou
from remotely.protocol.control.process import (
    Admit,
    Birth,
    Bound,
    Count,
    Ending,
    Exited,
    Exiting,
    FlightRecorder,
    Fork,
    Forked,
    MakerState,
    NotBound,
    NotForked,
    Prepare,
    WarningFilter,
)
from remotely.protocol.control.records import (
    ActorStatus,
    BulkAddress,
    ClientStatus,
    EndStatus,
    Figures,
    Location,
    Obituary,
    Request,
    StoreAddress,
    WaitStatus,
    WorkerStatus,
)
from remotely.protocol.control.store import (
    AreYouThere,
    Borrow,
    Broken,
    Claim,
    Expect,
    Full,
    Gone,
    Lent,
    Meet,
    Offer,
    Offered,
    Reach,
    Reached,
    Ready,
    Release,
    Share,
    Shared,
    StoreBirth,
    Stored,
    Unrelayed,
    Withdraw,
)
from remotely.protocol.control.worker import (
    AskFigures,
    AskRelay,
    Caller,
    Delegate,
    Delegated,
    Died,
    Leave,
    Left,
    MayCall,
    Preload,
    Register,
    Registered,
    Relay,
    Report,
    Spawn,
    Spawned,
)
from remotely.protocol.numbers import LONGEST_S, MOST

VERSION = 8
MAX_MESSAGE = 1 << 18  # between the processes of one worker: more than a socket holds by default
# Modules worth importing before a fork; a client names those that it has loaded.
HEAVY = ("numpy", "torch", "gymnasium", "ale_py", "cv2")

ToMaster = {
    "client": Hello
    | Place
    | End
    | Hold
    | LetGo
    | Cancel
    | Locate
    | AskArrival
    | NoArrival
    | AskStatus
    | Unanswered
    | ReadLog
    | Blocked
    | Unblocked
    | Goodbye
    | Beat,
    "worker": (
        Register
        | Spawned
        | Died
        | Report
        | Printed
        | Logged
        | LogPiece
        | Delegate
        | MayCall
        | Left
        | AskRelay
        | Beat
    ),
    # A dashboard: read-only.
    "viewer": Hello | AskStatus | ReadLog | Goodbye | Beat,
}
FromMaster = {
    "client": (
        Welcome
        | Placed
        | NotPlaced
        | Queued
        | RoomWanted
        | Located
        | Held
        | LetGoHeard
        | Died
        | Status
        | LogPiece
        | Printed
        | Logged
        | AskFigures
        | Farewell
        | Notice
        | Tick
        | WhoAreYou
        | Refused
    ),
    "worker": (
        Registered
        | Spawn
        | End
        | Cancel
        | Preload
        | ReadLog
        | AskFigures
        | Delegated
        | Caller
        | Leave
        | Relay
        | Tick
        | WhoAreYou
        | Refused
    ),
    "viewer": Welcome | Status | LogPiece | Farewell | Tick | WhoAreYou | Refused,
}
ToActor = Birth | Admit | Delegated | Caller | Cancel | Leave | Meet
FromClient = Prepare
FromActor = (
    Bound
    | NotBound
    | Count
    | Logged
    | Delegate
    | MayCall
    | Meet
    | FlightRecorder
    | Ending
    | Exiting
)
ToZygote = Preload | Fork
FromZygote = Forked | NotForked | Exited
ToStore = {
    "client": Reach | Claim | Expect | Release,
    "worker": StoreBirth | Admit | Caller | Meet,
    "actor": Share | Offer | Withdraw | Borrow,
}
FromStore = {
    "client": Reached | Ready | Full | Stored | Broken | Unrelayed | AreYouThere,
    "worker": MayCall,
    "actor": Shared | Offered | Lent | Gone,
}


class Decoder:
    """Decodes the messages of one union; raises WireError for anything else."""

    def __init__(self, union: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(union)

    def decode(self, data: bytes | memoryview) -> object:
        if not data:
            raise WireError("an empty message")
        if data[0] != VERSION:
            raise VersionMismatch(
                f"the peer uses version {data[0]} of remotely's protocol, this side "
                f"{VERSION}: install the same version of remotely on both"
            )
        try:
            return self._decoder.decode(memoryview(data)[1:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WireError(f"not a message of this sender: {error}") from None


_encode = msgspec.msgpack.Encoder().encode
_VERSION_BYTE = bytes([VERSION])


def encode(message: msgspec.Struct) -> bytes:
    """Return the bytes of one message."""
    return _VERSION_BYTE + _encode(message)


__all__ = [
    "ActorStatus",
    "Admit",
    "AreYouThere",
    "AskArrival",
    "AskFigures",
    "AskRelay",
    "AskStatus",
    "Beat",
    "Birth",
    "Blocked",
    "Borrow",
    "Bound",
    "Broken",
    "BulkAddress",
    "Caller",
    "Cancel",
    "Claim",
    "ClientStatus",
    "Count",
    "Decoder",
    "Delegate",
    "Delegated",
    "Died",
    "End",
    "EndStatus",
    "Ending",
    "Exited",
    "Exiting",
    "Expect",
    "Farewell",
    "Figures",
    "FlightRecorder",
    "Fork",
    "Forked",
    "FromActor",
    "FromClient",
    "FromMaster",
    "FromStore",
    "FromZygote",
    "Full",
    "Gone",
    "Goodbye",
    "HEAVY",
    "Held",
    "Hello",
    "Hold",
    "LONGEST_S",
    "Leave",
    "Left",
    "Lent",
    "LetGo",
    "LetGoHeard",
    "Locate",
    "Located",
    "Location",
    "LogPiece",
    "Logged",
    "MAX_MESSAGE",
    "MOST",
    "MakerState",
    "MayCall",
    "Meet",
    "NoArrival",
    "NotBound",
    "NotForked",
    "NotPlaced",
    "Notice",
    "Obituary",
    "Offer",
    "Offered",
    "Place",
    "Placed",
    "Preload",
    "Prepare",
    "Printed",
    "Queued",
    "Reach",
    "Reached",
    "ReadLog",
    "Ready",
    "Refused",
    "Register",
    "Registered",
    "Relay",
    "Release",
    "Report",
    "Request",
    "RoomWanted",
    "Share",
    "Shared",
    "Spawn",
    "Spawned",
    "Status",
    "StoreAddress",
    "StoreBirth",
    "Stored",
    "Tick",
    "ToActor",
    "ToMaster",
    "ToStore",
    "ToZygote",
    "Unanswered",
    "Unblocked",
    "Unrelayed",
    "VERSION",
    "WaitStatus",
    "WarningFilter",
    "Welcome",
    "WhoAreYou",
    "Withdraw",
    "WorkerStatus",
    "encode",
]

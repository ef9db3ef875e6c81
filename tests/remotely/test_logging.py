"""Log records of actors: each reaches the handlers of the script once, and its actor's file."""

import logging
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from http import HTTPStatus
from pathlib import Path

import msgspec
import numpy as np
import pytest

import remotely
from remotely.actor.preparation import Sender
from remotely.client import printing
from remotely.client.printing import LogListener
from remotely.protocol import control
from remotely.reporting import log_records
from remotely.worker import output
from remotely.worker.output import LogRelay, Output
from tests.clusters import DEADLINE_S, Here, Started, printed, wait_until

log = logging.getLogger(__name__)


class Kept(logging.Handler):
    """A handler of the script that keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, logger: str) -> list[str]:
        return [record.getMessage() for record in list(self.records) if record.name == logger]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, root = Kept(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


class Unpicklable:
    def __str__(self) -> str:
        return "as text"

    def __reduce__(self) -> str:
        raise TypeError("it is not pickled")


@remotely.remote_class
class Talker:
    def says(self, level: int, message: str, logger: str = "talker") -> int:
        logging.getLogger(logger).log(level, message)
        return os.getpid()

    def says_much(self, count: int) -> None:
        for number in range(count):
            logging.getLogger("talker").warning("%d %s", number, "." * 1000)
        logging.getLogger("talker").error("the end")

    def says_objects(self) -> None:
        log.warning("it is %s", Unpicklable(), extra={"episode": 7, "what": Unpicklable()})

    def says_of_another(self, actor: str) -> None:
        log.warning("of another", extra={"actor": actor})

    def fails(self) -> None:
        try:
            raise KeyError(Unpicklable())
        except KeyError:
            log.exception("it failed")

    def dies(self) -> None:
        logging.getLogger("talker").warning("last words")
        os._exit(3)

    def configures(self, level: int) -> None:
        logging.basicConfig(level=level, format="here: %(actor)s %(message)s")

    def writes_to(self, file: str) -> None:
        logging.getLogger().addHandler(logging.FileHandler(file))

    def warns(self) -> None:
        logging.captureWarnings(True)
        warnings.warn("beware", stacklevel=1)

    def has_another_say(self, message: str) -> None:
        Talker().says(logging.INFO, message)


@pytest.mark.promise("output")
def test_a_record_has_the_actor_the_location_and_the_process(any_cluster: None, kept: Kept) -> None:
    talker = Talker()
    pid = talker.says(logging.WARNING, "careful")
    wait_until(lambda: kept.of("talker"), "the record")
    (record,) = [r for r in kept.records if r.name == "talker"]
    assert record.__dict__["actor"] == remotely.status().actors[0].name
    assert (record.levelname, record.process, record.threadName) == ("WARNING", pid, "MainThread")
    assert (record.module, record.funcName) == ("test_logging", "says")
    text = logging.Formatter("[%(actor)s] %(levelname)s %(message)s").format(record)
    assert text == "[Talker-1] WARNING careful"


def test_an_actor_in_extra_overrides_the_actor_of_the_record(here: None, kept: Kept) -> None:
    talker = Talker()
    talker.says_of_another("the critic")
    wait_until(lambda: kept.of(__name__), "the record")
    assert [r.__dict__["actor"] for r in kept.records if r.name == __name__] == ["the critic"]


def test_the_log_levels_of_the_script_decide_what_is_sent(here: None, kept: Kept) -> None:
    logging.getLogger("detailed").setLevel(logging.DEBUG)
    try:
        talker = Talker()
        logging.getLogger("noisy").setLevel(logging.ERROR)  # applies to existing actors too
        talker.says(logging.DEBUG, "no", "talker")
        talker.says(logging.INFO, "no", "noisy")
        talker.says(logging.DEBUG, "yes", "detailed")
        talker.says(logging.INFO, "yes", "talker")
        wait_until(lambda: kept.of("talker"), "the last")
        assert [kept.of(name) for name in ("talker", "noisy", "detailed")] == [["yes"], [], ["yes"]]
    finally:
        logging.getLogger("noisy").setLevel(logging.NOTSET)
        logging.getLogger("detailed").setLevel(logging.NOTSET)


def test_arguments_and_exceptions_travel_as_text(here: None, kept: Kept) -> None:
    talker = Talker()
    talker.says_objects()
    talker.fails()
    wait_until(lambda: len(kept.of(__name__)) == 2, "both")
    told, failed = (record for record in kept.records if record.name == __name__)
    assert told.getMessage() == "it is as text"
    assert told.__dict__["episode"] == 7
    assert "what" not in told.__dict__
    text = logging.Formatter().format(failed)
    assert text.startswith("it failed\nTraceback")
    assert "in fails" in text


def test_warnings_that_an_actor_captures_are_records(here: None, kept: Kept) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # the actor takes over the filters of the script
        talker = Talker()
    talker.warns()
    wait_until(lambda: kept.of("py.warnings"), "the warning")
    assert "UserWarning: beware" in kept.of("py.warnings")[0]


def test_records_logged_just_before_a_death_arrive(here: None, kept: Kept) -> None:
    talker = Talker()
    with pytest.raises(remotely.ActorDied) as died:
        talker.dies()
    assert "last words" in str(died.value)
    wait_until(lambda: kept.of("talker"), "the last words")


def test_an_actor_of_an_actor_logs_to_the_script(here: None, kept: Kept) -> None:
    maker = Talker()
    maker.has_another_say("from below")
    wait_until(lambda: kept.of("talker"), "the record")
    assert kept.of("talker") == ["from below"]


def test_records_of_an_actor_that_configures_logging_are_shown_once(
    here: None, kept: Kept, capfd: pytest.CaptureFixture[str]
) -> None:
    talker = Talker()
    talker.configures(logging.DEBUG)
    talker.says(logging.DEBUG, "in detail", "detail")
    wait_until(lambda: "here: Talker-1 in detail" in printed(), "the line")
    assert not kept.of("detail")


def test_an_actor_with_its_own_log_file_still_logs_to_the_script(
    here: None, kept: Kept, tmp_path: Path
) -> None:
    talker = Talker()
    talker.writes_to(str(tmp_path / "own.log"))
    talker.says(logging.INFO, "both")
    wait_until(lambda: kept.of("talker"), "the record")
    assert (tmp_path / "own.log").read_text() == "both\n"


def test_each_script_gets_the_records_of_its_own_actors(
    started: Started, nothing_left: None, kept: Kept
) -> None:
    environment = {
        **os.environ,
        "REMOTELY_ADDRESS": started.address,
        "REMOTELY_KEY": str(started.key),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    other = subprocess.run(
        [sys.executable, "-c", OTHER_SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert other.stderr == "of the other: Talker-1 a detail\n"
    remotely.connect(started.address, key=started.key)
    talker = Talker()
    talker.says(logging.INFO, "mine")
    wait_until(lambda: kept.of("talker"), "the record")
    assert kept.of("talker") == ["mine"]


OTHER_SCRIPT = """
import logging
from tests.remotely.test_logging import Talker
form = logging.Formatter("of the other: %(actor)s %(message)s")
handler = logging.StreamHandler()
handler.setFormatter(form)
logging.getLogger().addHandler(handler)
logging.getLogger().setLevel(logging.DEBUG)
talker = Talker()
talker.says(logging.DEBUG, "a detail")
"""

SCRIPT = """
import logging
import remotely
{setup}
@remotely.remote_class
class Talker:
    def says(self):
        logging.getLogger("x").info("a detail")
        logging.getLogger("x").warning("careful")
if __name__ == "__main__":
    {connect}
    talker = Talker()
    talker.says()
"""


@pytest.mark.parametrize(
    ("is_alone", "setup", "connect", "expected"),
    [
        (True, "", "", "[Talker-1] careful\n"),
        (
            False,
            "logging.basicConfig(level='INFO', format='%(levelname)s %(message)s')",
            "remotely.connect(show_output=False)",
            "INFO a detail\nWARNING careful\n",
        ),
        (
            False,
            "logging.getLogger().addHandler(logging.StreamHandler())",
            "",
            "careful\n",
        ),
    ],
    ids=["no handlers", "configured at the top", "a handler added at the top"],
)
def test_a_script_sees_each_record_once(
    started_here: Here, tmp_path: Path, is_alone: bool, setup: str, connect: str, expected: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(setup=setup, connect=connect))
    where = {"REMOTELY_ADDRESS": started_here.address, "REMOTELY_KEY": str(started_here.key)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={
            **os.environ,
            **({} if is_alone else where),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stderr == expected
    assert done.stdout == ""


MODULE = """
import logging
import remotely
for name in ("x", "y"):
    logging.getLogger(name).addHandler(logging.FileHandler(f"{name}.log"))
logging.getLogger("y").propagate = False
logging.getLogger("quiet").addHandler(logging.NullHandler())
logging.getLogger("quiet").propagate = False
@remotely.remote_class
class Talker:
    def says(self):
        for name in ("x", "y", "quiet"):
            logging.getLogger(name).warning("careful")
"""


def test_a_log_file_opened_by_a_module_has_each_record_once(tmp_path: Path) -> None:
    (tmp_path / "talkers.py").write_text(MODULE)
    script = tmp_path / "script.py"
    script.write_text("import talkers\ntalker = talkers.Talker()\ntalker.says()\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert (tmp_path / "x.log").read_text() == "careful\n"
    assert (tmp_path / "y.log").read_text() == "careful\n"
    assert not done.stderr


def test_records_are_in_the_actors_file_too(started: Started, nothing_left: None) -> None:
    remotely.connect(started.address, key=started.key, show_output=False)
    remotely.options(Talker, name="store", detached=True)().says(logging.WARNING, "kept")
    remotely.shutdown()  # no script receives records any more
    remotely.connect(started.address, key=started.key, show_output=False)
    store = remotely.get_actor("store")
    try:
        store.says(logging.WARNING, "kept too")
        key = ["--address", started.address, "--key", str(started.key)]
        wait_until(lambda: "kept too" in started.run(started.home, "logs", "store", *key), "it")
        assert "WARNING talker: kept\n" in started.run(started.home, "logs", "store", *key)
    finally:
        remotely.close(store)


def test_in_one_process_records_have_the_name_of_the_running_object(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.connect()
    try:
        talker = Talker()
        talker.says(logging.INFO, "here")
        log.info("outside")
        talker.says_of_another("the critic")
        names = [record.__dict__.get("actor") for record in kept.records]
        assert names == ["Talker-1", None, "the critic"]
    finally:
        remotely.shutdown()
    log.info("after")
    assert "actor" not in kept.records[-1].__dict__


# --- too many -------------------------------------------------------------------------------------


def test_excess_records_are_dropped_and_counted(here: None, kept: Kept) -> None:
    talker = Talker()
    talker.says_much(1000)  # a megabyte, of which a quarter may pass in a second

    def accounted_for() -> int:
        told = [re.search(r"([\d,]+) records were left out", text) for text in kept.of("remotely")]
        left_out = sum(int(found[1].replace(",", "")) for found in told if found)
        return left_out and left_out + len(kept.of("talker"))

    wait_until(lambda: accounted_for() == 1001, "the number of what was left out")


def logged(message: str) -> control.Logged:
    record = logging.makeLogRecord({"name": "x", "levelno": 30, "pathname": "/x.py", "lineno": 1})
    record.msg = message
    return log_records.pack(record)


def test_dropped_records_are_in_the_file_and_counted_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    due: list[Callable[[], None]] = []
    passed: list[control.Logged] = []
    file = tmp_path / "log"
    relay = LogRelay(
        Output(file, lambda *_: None, lambda *_: None),
        passed.append,
        lambda _, action: due.append(action),
    )
    for _ in range(500):
        relay.take(logged("." * 1000))
    (tell,) = due
    tell()
    assert len(file.read_text().splitlines()) == 500
    *whole, last = passed
    assert len(whole) * 1000 <= output.BYTES_A_SECOND
    assert f" {500 - len(whole)} records were left out" in last.message
    assert last.logger == "remotely"

    relay.take(logged("." * 300_000))
    passed.clear()
    relay.end()  # its actor has died
    due.pop()()
    assert ["1 records were left out" in record.message for record in passed] == [True]


def test_a_long_record_fits_into_one_message() -> None:
    record = logging.makeLogRecord(
        {
            "name": "x",
            "levelno": 10,
            "pathname": "/x.py",
            "lineno": 1,
            "msg": "é" * 100_000,
            "exc_text": "é" * 100_000 + "KeyError: the end",
            "stack_info": "é" * 100_000,
            "created": 1.0,
            "process": 1,
            "huge": 1 << 80,
            "huger": Fraction(10**400),
            **{f"x{number}": "é" * 100_000 for number in range(100)},
            "half": "\ud800",
        }
    )
    packed = control.encode(log_records.pack(record))
    assert len(packed) < control.MAX_MESSAGE
    found = control.Decoder("actor > worker").decode(packed)
    assert isinstance(found, control.Logged)
    assert found.exc_text.endswith("KeyError: the end")
    assert "bytes were cut" in found.message
    assert not {"huge", "huger"} & set(found.extra)


def as_the_worker_reads_it(**attributes: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "x", "levelno": 30, "msg": "hi", **attributes})
    found = control.Decoder("actor > worker").decode(control.encode(log_records.pack(record)))
    assert isinstance(found, control.Logged)
    return log_records.unpack(found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (HTTPStatus.OK, 200),
        (Fraction(1, 2), 0.5),
        (np.str_("text"), "text"),
        (True, True),
        (np.float32("inf"), float("inf")),
        (None, None),
    ],
    ids=repr,
)
def test_an_extra_of_a_number_or_text_subclass_is_sent_as_the_base_type(
    value: object, expected: object
) -> None:
    found = as_the_worker_reads_it(loss=value).__dict__["loss"]
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("lineno", None, 0),
        ("levelno", 20.5, 20),
        ("levelno", -1, 0),
        ("levelname", None, ""),
        ("created", -1.0, 0.0),
        ("created", float("nan"), 0.0),
        ("created", None, 0.0),
        ("pathname", None, ""),
        ("process", 1 << 40, (1 << 31) - 1),
        ("thread", None, 0),
        ("stack_info", None, None),
    ],
)
def test_records_with_odd_fields_are_sent(attribute: str, value: object, expected: object) -> None:
    found = as_the_worker_reads_it(**{attribute: value})
    assert found.getMessage() == "hi"
    assert found.__dict__[attribute] == expected


def test_an_extra_does_not_override_fields_of_the_record() -> None:
    names = ("exc_info", "getMessage", "taskName", "message", "relativeCreated", "__class__")
    packed = msgspec.structs.replace(
        logged("hi"), extra={"loss": 1, **dict.fromkeys(names, "a lie")}
    )
    record = log_records.unpack(packed)
    assert logging.Formatter("%(message)s %(loss)s").format(record) == "hi 1"
    assert "a lie" not in vars(record).values()


def test_terminal_control_characters_are_made_visible() -> None:
    record = log_records.unpack(logged("\x1b[2J gone"))
    assert record.getMessage() == "\\x1b[2J gone"


def test_a_handler_that_raises_or_waits_harms_nothing(
    kept: Kept, capfd: pytest.CaptureFixture[str]
) -> None:
    class Bad(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("a filter of the user's")

    bad = Bad()
    logging.getLogger("x").addFilter(bad)
    listener = LogListener(lambda shown: None)
    listener.hear(logged("one"))
    wait_until(lambda: "a filter of the user's" in printed(), "the traceback")
    logging.getLogger("x").removeFilter(bad)
    listener.hear(logged("two"))
    listener.close()
    assert kept.of("x") == ["two"]


def test_records_left_by_slow_handlers_at_the_end_are_counted_and_reported(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "CLOSE_S", 0.0)
    monkeypatch.setattr(printing, "MOST_RECORDS", 2)
    busy, go_on = threading.Event(), threading.Event()

    def is_slow(record: logging.LogRecord) -> bool:
        busy.set()
        return go_on.wait(DEADLINE_S)

    logging.getLogger("x").addFilter(is_slow)
    try:
        listener = LogListener(lambda shown: None)
        listener.hear(logged("one"))
        assert busy.wait(DEADLINE_S)
        for message in ("two", "three", "one too many"):
            listener.hear(logged(message))
        listener.close()
        go_on.set()
        wait_until(lambda: kept.of("remotely"), "the warning")
    finally:
        logging.getLogger("x").removeFilter(is_slow)
    assert kept.of("x") == ["one"]
    assert kept.of("remotely") == ["3 log records of actors were dropped: slow handlers"]


def test_a_record_that_cannot_be_formatted_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's
    sent: list[control.Logged] = []
    record = logging.LogRecord("my", logging.WARNING, "/a/b.py", 7, "bad %d", ("x",), None)
    Sender(sent.append).handle(record)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("logging error: TypeError(")
    assert "the message is 'bad %d' and its arguments are ('x',), in /a/b.py, line 7" in line
    assert not sent

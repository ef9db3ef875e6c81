"""The output of actors: the log file, the lines for the client, and the files of ended actors."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from remotely.machine import this_machine
from remotely.protocol import control
from remotely.worker import output
from remotely.worker.output import LogFiles, Output, read_piece


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Stream:
    """An Output and the pipes to which an actor prints."""

    def __init__(self, file: Path, stays: bool = True) -> None:
        self.told: list[tuple[bool, str]] = []
        self.due: list[Callable[[], None]] = []
        self.output = Output(
            file,
            lambda is_error, text: self.told.append((is_error, text)),
            lambda _, action: self.due.append(action),
            stays,
        )
        self.pipes = {False: os.pipe2(os.O_NONBLOCK), True: os.pipe2(os.O_NONBLOCK)}

    def prints(self, data: bytes, is_error: bool = False) -> None:
        os.write(self.pipes[is_error][1], data)
        assert self.output.read(self.pipes[is_error][0], is_error)

    def ends(self, is_error: bool = False) -> None:
        reading, writing = self.pipes[is_error]
        os.close(writing)
        self.pipes[is_error] = (reading, -1)
        assert not self.output.read(reading, is_error)

    def pass_time(self) -> None:
        """Let the time pass after which an unfinished line is passed on."""
        due, self.due = self.due, []
        for action in due:
            action()

    def close(self) -> None:
        for end in [end for ends in self.pipes.values() for end in ends if end >= 0]:
            os.close(end)

    def text(self, is_error: bool = False) -> str:
        return "".join(text for error, text in self.told if error == is_error)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(output, "time", made)
    return made


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[Path], Stream]]:
    made: list[Stream] = []

    def make(file: Path) -> Stream:
        made.append(Stream(file))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "Actor-1-abcd.log"


@pytest.fixture
def stream(clock: Clock, file: Path, opened: Callable[[Path], Stream]) -> Stream:
    return opened(file)


# --- lines ----------------------------------------------------------------------------------------


def test_the_client_gets_whole_lines(stream: Stream) -> None:
    stream.prints(b"one\ntw")
    assert stream.told == [(False, "one\n")]
    stream.prints(b"o\n")
    assert stream.told == [(False, "one\n"), (False, "two\n")]


def test_an_unfinished_line_is_passed_on_after_a_while(stream: Stream) -> None:
    stream.prints(b"working")
    stream.prints(b" ...")
    assert not stream.told
    stream.pass_time()
    stream.prints(b" done\n")
    assert stream.told == [(False, "working ..."), (False, " done\n")]


def test_of_a_progress_bar_the_last_state_is_passed_on(stream: Stream, file: Path) -> None:
    for percent in range(101):
        stream.prints(f"\r{percent} %".encode())
    assert not stream.told
    stream.pass_time()
    stream.prints(b"\n")
    assert stream.told == [(False, "\r100 %"), (False, "\n")]
    assert file.read_bytes().count(b"\r") == 101


def test_a_progress_bar_may_end_its_states_with_a_carriage_return(stream: Stream) -> None:
    stream.prints(b"1 %\r2 %\r")
    stream.prints(b"3 %\r")
    stream.pass_time()
    assert stream.told == [(False, "\r3 %\r")]


def test_an_incomplete_character_waits_for_the_rest(stream: Stream) -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    stream.prints(b"caf" + first)
    stream.pass_time()
    stream.prints(second)
    stream.pass_time()
    assert stream.told == [(False, "caf"), (False, "é")]


def test_the_two_streams_do_not_mix_within_a_line(stream: Stream) -> None:
    stream.prints(b"to std")
    stream.prints(b"error\n", is_error=True)
    stream.prints(b"out\n")
    assert stream.told == [(True, "error\n"), (False, "to stdout\n")]


def test_the_pipe_of_a_dead_process_is_drained_although_another_process_holds_it(
    stream: Stream,
) -> None:
    left = b"x" * 9 + b"\n"
    os.write(stream.pipes[True][1], left * 5000 + b"the end")
    stream.output.drain(stream.pipes[True][0], True)
    assert stream.text(is_error=True) == (left * 5000).decode() + "the end"


def test_a_line_that_never_ends_is_passed_on_in_pieces(stream: Stream) -> None:
    for _ in range(40):
        stream.prints(b"." * 4096)
    assert len(stream.text()) >= 40 * 4096 - 2 * output.READ_BYTES
    stream.ends()
    assert stream.text() == "." * 40 * 4096


def test_an_empty_pipe_has_not_ended_and_does_not_block(stream: Stream) -> None:
    assert stream.output.read(stream.pipes[False][0], False)
    stream.output.drain(stream.pipes[False][0], False)
    assert not stream.told


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.binary(max_size=12).map(lambda piece: piece.replace(b"\r", b""))))
@example([b"caf\xc3", b"\xa9\ncaf\xe9\n"])
def test_output_in_any_pieces_is_neither_lost_nor_repeated(
    opened: Callable[[Path], Stream], tmp_path: Path, pieces: list[bytes]
) -> None:
    file = tmp_path / "cut.log"
    file.unlink(missing_ok=True)
    stream = opened(file)
    for piece in filter(None, pieces):
        stream.prints(piece)
    stream.ends()
    assert file.read_bytes() == b"".join(pieces)
    whole = b"".join(pieces).decode(errors="replace")
    assert stream.text() == whole
    assert all(text.endswith("\n") for _, text in stream.told[:-1])


# --- the rate -------------------------------------------------------------------------------------


def flood(stream: Stream, count: int) -> None:
    for _ in range(count):
        stream.prints(b"." * 4095 + b"\n")


def test_a_flood_is_cut_with_one_note_that_names_the_file(
    stream: Stream, file: Path, clock: Clock
) -> None:
    clock.now += 3600.0  # a quiet hour gives no credit
    flood(stream, 100)
    assert len(stream.text()) <= output.BYTES_A_SECOND
    (note,) = [text for is_error, text in stream.told if is_error]
    assert str(file) in note
    assert file.stat().st_size == 100 * 4096
    clock.now += 1.0
    stream.prints(b"calm again\n")
    assert stream.told[-1] == (False, "calm again\n")


def test_a_note_once_a_minute_says_how_much_was_left_out(stream: Stream, clock: Clock) -> None:
    for _ in range(65):
        flood(stream, 100)
        clock.now += 1.0
    notes = [text for is_error, text in stream.told if is_error]
    assert len(notes) == 2
    left_out_a_second = 100 * 4096 - output.BYTES_A_SECOND
    assert f"too fast: {60 * left_out_a_second:,} bytes" in notes[1]


def test_a_file_that_does_not_outlive_the_script_is_not_named(clock: Clock, file: Path) -> None:
    stream = Stream(file, stays=False)
    flood(stream, 100)
    stream.close()
    (note,) = [text for is_error, text in stream.told if is_error]
    assert str(file) not in note


# --- the file -------------------------------------------------------------------------------------


def test_the_file_gets_both_streams_in_the_order_of_their_arrival(
    stream: Stream, file: Path
) -> None:
    stream.prints(b"one\n")
    stream.prints(b"two\n", is_error=True)
    stream.prints(b"thr")
    stream.prints(b"ee\n")
    assert file.read_bytes() == b"one\ntwo\nthree\n"


def test_a_full_file_is_renamed_and_replaces_the_one_before(
    stream: Stream, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "KEEP_BYTES", 1000)
    for number in range(100):
        stream.prints(f"line {number:03} {'.' * 40}\n".encode())
    older = file.with_name(file.name + ".1")
    assert {path.name for path in file.parent.iterdir()} == {file.name, older.name}
    kept = older.read_bytes() + file.read_bytes()
    assert len(kept) <= 2 * (1000 + 60)
    lines = kept.decode().splitlines()
    assert lines[-1].startswith("line 099")
    assert [line[5:8] for line in lines] == [f"{n:03}" for n in range(100 - len(lines), 100)]


def test_a_full_file_whose_name_has_dots_keeps_them(
    opened: Callable[[Path], Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "KEEP_BYTES", 10)
    stream = opened(tmp_path / "lr-0.001-seed.7-abcd.log")
    stream.prints(b"a line that is too long\n")
    assert [path.name for path in tmp_path.iterdir()] == ["lr-0.001-seed.7-abcd.log.1"]


@pytest.mark.parametrize(
    ("file", "why"),
    [("/dev/full", "No space left on device"), ("/gone/C.log", "No such file or directory")],
)
def test_output_that_cannot_be_written_is_reported_once_and_still_passed_on(
    opened: Callable[[Path], Stream], clock: Clock, file: str, why: str
) -> None:
    stream = opened(Path(file))
    stream.prints(b"a line\n")
    stream.prints(b"last words", is_error=True)
    stream.ends(is_error=True)
    assert stream.told == [
        (True, f"(its output is not saved: {file}: {why})\n"),
        (False, "a line\n"),
        (True, "last words"),
    ]
    assert stream.output.last_words(by_signal=False) == "last words"


def test_a_full_disk_is_told_once_to_each_script_until_it_has_room(tmp_path: Path) -> None:
    disk, told = output.Disk(), list[str]()
    full, kept = Path("/dev/full"), tmp_path / "C.log"

    def prints(file: Path, job: str) -> None:
        made = output.Output(
            file, lambda _, text: told.append(job), lambda *_: None, disk=disk, job=job
        )
        made.keep(b"a line\n", is_error=False)

    for job in ("one", "one", "another", "one"):
        prints(full, job)
    assert told == ["one", "another"]
    prints(kept, "one")
    prints(full, "one")
    assert told == ["one", "another", "one"]


# --- last words -----------------------------------------------------------------------------------


def test_the_end_of_stderr_is_kept_for_the_obituary(stream: Stream) -> None:
    stream.prints(b"out\n")
    for number in range(3):
        stream.prints(b"%d" % number * 2000, is_error=True)
    last = ("0" * 2000 + "1" * 2000 + "2" * 2000)[-output.LAST_WORDS_BYTES :]
    for by_signal in (True, False):
        assert stream.output.last_words(by_signal) == last


def test_the_reason_of_a_crash_is_kept_with_the_output_before_it(stream: Stream) -> None:
    """Python prints the reason first, and then many stacks and modules."""
    for text in ("0" * 9000, "loading the model\n", "Fatal Python error: Aborted\n", "1" * 9000):
        stream.prints(text.encode(), is_error=True)
    words = stream.output.last_words(by_signal=True)
    assert len(words) == output.LAST_WORDS_BYTES
    assert "0loading the model\nFatal Python error: Aborted\n1" in words
    assert stream.output.last_words(by_signal=False) == "1" * output.LAST_WORDS_BYTES


# --- reading a log --------------------------------------------------------------------------------


def test_a_log_is_read_piece_by_piece_to_its_end(file: Path) -> None:
    written = "".join(f"line {number}\n" for number in range(20_000))
    file.write_text(written)
    text, offset = "", 0
    while True:
        piece, offset = read_piece(file, offset)
        if not piece:
            break
        assert len(piece) <= output.READ_BYTES
        text += piece
    assert text == written
    assert offset == len(written)


def test_without_an_offset_the_last_16_kib_of_a_log_are_read(file: Path) -> None:
    file.write_text("." * 50_000 + "the end\n")
    text, offset = read_piece(file, -1)
    assert len(text) == 16_384
    assert text.endswith("the end\n")
    assert offset == 50_008


def test_a_log_is_followed_while_it_grows_and_after_its_rotation(file: Path) -> None:
    assert read_piece(file, -1) == ("", 0)  # not there yet
    file.write_text("one\n")
    assert read_piece(file, -1) == ("one\n", 4)
    assert read_piece(file, 4) == ("", 4)
    with file.open("a") as growing:
        growing.write("two\n")
    assert read_piece(file, 4) == ("two\n", 8)
    file.write_text("new\n")
    assert read_piece(file, 8) == ("new\n", 4)


def test_a_character_on_the_edge_of_a_piece_is_whole(file: Path) -> None:
    written = "." * (output.READ_BYTES - 1) + "é and more\n"
    file.write_text(written, encoding="utf-8")
    first, offset = read_piece(file, 0)
    second, _ = read_piece(file, offset)
    assert first + second == written


def request(number: int, name: str = "") -> control.Request:
    return control.Request(
        actor=f"{number}" * 32,
        name=name or f"C-{number}",
        class_name="C",
        owner="o",
        job="j",
        python=this_machine.PYTHON,
    )


def test_only_the_logs_of_the_actors_that_ended_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "KEEP_ENDED", 2)
    logs = LogFiles(tmp_path)
    files = [logs.begin(request(number)) for number in range(4)]
    for file in files:
        file.write_text("said")
    files[1].with_suffix(".log.1").write_text("said before")

    for number in (1, 3, 2):
        logs.end(request(number).actor)
    logs.end("never started")

    assert {file.name for file in tmp_path.iterdir()} == {files[i].name for i in (0, 2, 3)}
    assert logs.find("C-1") == ("C-1", None)
    assert logs.find("C-3") == (request(3).actor, files[3])


def test_a_restarted_actor_keeps_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = LogFiles(tmp_path)
    logs.begin(request(1, "same"))
    monkeypatch.setattr(output, "KEEP_ENDED", 1)
    logs.end(request(1).actor)
    file = logs.begin(request(1, "same"))
    logs.begin(request(2, "same"))
    for number in (2, 3):
        logs.begin(request(number))
        logs.end(request(number).actor)
    assert logs.find(request(1).actor) == (request(1).actor, file)

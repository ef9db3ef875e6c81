"""Output of actors on a terminal that does not take it: nobody waits, and nothing is reordered."""

import contextlib
import io
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remotely.client import printing
from remotely.client.printing import Display
from remotely.protocol.control import Printed


def printed(text: str, error: bool = False) -> Printed:
    return Printed(actor="", name="A", job="", error=error, text=text)


@contextlib.contextmanager
def pipe_as_stdout() -> Iterator[io.TextIOWrapper]:
    """Yield the other end of a pipe that is `sys.stdout`."""
    theirs, ours = os.pipe()
    with open(theirs) as reader, open(ours, "w") as writer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", writer)  # in the test: pytest sets it before each
        yield reader


LINES = [f"{number} {'x' * 100}\n" for number in range(3_000)]  # more than a pipe holds


def test_output_waits_for_a_reader_and_arrives_in_order() -> None:
    with pipe_as_stdout() as reader:
        display = Display(shows_output=True)
        for line in LINES:
            display.show(printed(line))
        assert [reader.readline() for _ in LINES] == [f"[A] {line}" for line in LINES]
        display.show(printed("open"))
        display.close()
        assert reader.readline() == "[A] open\n"


def test_what_a_stuck_pipe_did_not_take_is_counted_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "CLOSE_S", 0.2)
    with pipe_as_stdout():
        display = Display(shows_output=True)
        for line in LINES:
            display.show(printed(line))
        display.warn("here", "a warning")
        display.close()
        said = capsys.readouterr().err
    assert "a warning" in said
    assert "lines were not printed" in said


def test_without_a_thread_output_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with pipe_as_stdout() as reader:
        display = Display(shows_output=True)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            display.show(printed("first\n"))
            assert reader.readline() == "[A] first\n"
        display.show(printed("second\n"))
        display.close()
        assert reader.readline() == "[A] second\n"


def test_beyond_the_limit_output_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "MOST_CHARACTERS", 100_000)
    with pipe_as_stdout() as reader, ThreadPoolExecutor() as threads:
        display = Display(shows_output=True)
        for line in LINES:
            display.show(printed(line))
        reading = threads.submit(reader.readlines)
        display.close()
        sys.stdout.close()
        got = reading.result(40)
        said = capsys.readouterr().err
    numbers = [int(line.split()[1]) for line in got]
    assert numbers == sorted({*numbers})
    assert numbers[0] == 0
    assert f"remotely: {len(LINES) - len(got)} lines were not printed" in said


def test_calls_go_on_while_nobody_reads_the_output_of_a_script(tmp_path: Path) -> None:
    script = """
        import sys
        import remotely

        @remotely.remote_class
        class Loud:
            def speak(self):
                print(("x" * 100 + "\\n") * 200, flush=True)

        loud = Loud()
        loud.speak()
        futures = [loud.speak.submit() for _ in range(10)]
        done = [future.result(20) for future in futures]
        sys.stderr.write(f"{len(done)} are done\\n")
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    with subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "REMOTELY_HOME": str(tmp_path)},
    ) as running:
        assert running.stderr is not None
        said = running.stderr.read()
        assert "10 are done" in said
        assert "lines were not printed" in said

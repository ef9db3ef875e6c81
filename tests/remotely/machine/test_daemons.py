"""The log of a daemon: bounded, with one old file."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, os, sys
from remotely.machine import daemons
daemons.LOG_BYTES = 1000
daemons.log_to(sys.argv[1], "worker", stays=True)
for number in range(int(sys.argv[2])):
    logging.getLogger("remotely.worker").warning("line %d", number)
os.write(2, b"from elsewhere\\n")
"""


def logs(file: Path, lines: int) -> "subprocess.Popen[bytes]":
    with file.open("ab") as log:
        return subprocess.Popen([sys.executable, "-c", SCRIPT, str(file), str(lines)], stderr=log)


def test_a_log_does_not_grow_without_bounds_and_its_end_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    with logs(file, 200) as process:
        assert process.wait(60) == 0
    assert {each.name for each in tmp_path.iterdir()} == {"worker.log", "worker.log.1"}
    old, new = (tmp_path / "worker.log.1").read_text(), file.read_text()
    assert max(len(old), len(new)) < 1200
    numbers = [int(line.split()[-1]) for line in (old + new).splitlines() if "line" in line]
    assert numbers == list(range(numbers[0], 200))
    assert new.endswith("from elsewhere\n")


def test_several_workers_may_have_one_log(tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    with logs(file, 300) as one, logs(file, 300) as other:
        assert (one.wait(60), other.wait(60)) == (0, 0)
    assert {each.name for each in tmp_path.iterdir()} == {"worker.log", "worker.log.1"}
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 3000

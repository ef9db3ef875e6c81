"""`remotely run`: the same line on every machine of a job.

The ranks are processes of one machine, started as srun would start them (tests/jobs.py).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from remotely.ops.rendezvous import Rendezvous
from tests.clusters import DEADLINE_S, SCRIPTS, ignores, processes, wait_until
from tests.command import Machine
from tests.jobs import COMMAND, Job


@pytest.fixture
def job(machine: Machine, tmp_path: Path) -> Iterator[Callable[[int], Job]]:
    """Make jobs by number; assert at the end that they leave nothing in their shared folder."""
    made: list[Job] = []

    def make(number: int) -> Job:
        made.append(Job(machine.environment, tmp_path / "shared", number))
        return made[-1]

    yield make
    for each in made:
        each.kill()
    wait_until(lambda: not list((tmp_path / "shared").glob("*")), "the folder is empty")


def test_a_command_runs_once_on_a_cluster_of_all_ranks_and_no_process_shows_a_secret(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    one.script(2, code=7)
    assert one.line() == "machines 2"
    assert one.line() == "ranks 0 1"
    secrets = {
        line.split('"')[3]
        for file in (tmp_path / "shared").glob("*/*.key")
        for line in file.read_text().splitlines()
        if '"secret"' in line
    }
    assert len(secrets) == 4
    for process in processes(str(tmp_path)):
        with contextlib.suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            assert not [word for word in words if any(secret in word for secret in secrets)]
    assert one.ends() == [7, 0]  # rank 0 exits with the code of the command
    assert one.errors() == ["", ""]


def test_background_processes_of_a_killed_command_end_with_it(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    background = f"setsid sleep 600 {tmp_path} & (trap '' TERM; sleep 601) &"
    one.start(1, "sh", "-c", f"{background} kill -KILL $$")
    assert one.ends() == [128 + signal.SIGKILL]  # as of a shell
    assert not processes(str(tmp_path))


def test_an_unknown_command_is_reported(job: Callable[[int], Job]) -> None:
    one = job(1)
    one.start(1, "no-such-command")
    assert one.ends() == [127]
    assert "no-such-command: No such file or directory" in one.errors()[0]


def test_two_jobs_on_one_machine_are_independent_and_a_third_needs_another_name(
    job: Callable[[int], Job],
) -> None:
    one, two, third = job(1), job(2), job(1)
    one.script(1)
    two.script(1)
    assert (one.line(), two.line()) == ("machines 1", "machines 1")
    third.script(1)
    assert third.ranks[0].wait(DEADLINE_S) == 1
    assert "a job of this name runs already" in third.errors()[0]
    assert list(one.folder.glob("Slurm-1.0-*/client.key"))
    assert one.ends() == [0]
    assert two.ranks[0].poll() is None
    assert two.ends() == [0]


def test_missing_ranks_are_named(job: Callable[[int], Job]) -> None:
    one = job(1)
    one.script(3, ranks=(0,), options=("--patience", 1))
    assert one.ends() == [1]
    told = one.errors()[0]
    assert "ranks 1 and 2 of 3 did not join within 1 s" in told
    assert "srun has not started them" in told
    assert "--rendezvous DIR" in told


def test_a_rank_that_cannot_join_ends_rank_0_with_the_reason(
    job: Callable[[int], Job],
) -> None:
    one = job(1)
    one.script(3, ranks=(0,), options=("--patience", 600))
    one.script(3, ranks=(1,), options=("--ports", "23000-23001"))
    assert one.ends() == [1, 1]
    why = "23000-23001 is too small a range"
    told, of_rank_1 = one.errors()
    assert why in of_rank_1
    assert "rank 1 of 3 could not join; rank 2 left no note so far" in told
    assert f", but {why}" in told


def test_a_rank_that_never_sees_rank_0_suspects_that_the_folder_is_not_shared(
    job: Callable[[int], Job],
) -> None:
    one = job(1)
    one.script(2, ranks=(1,), options=("--patience", 0.5))
    assert one.ends() == [1]
    told = one.errors()[0]
    assert "rank 0 has written nothing to" in told
    assert "is not on a disk shared by its machine and this one" in told


def test_the_end_of_rank_0_ends_the_ranks_that_wait_for_it(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    one.script(3, ranks=(0,))
    folder = tmp_path / "shared" / "Slurm-1.0"
    wait_until(folder.exists, "rank 0 has made its folder")
    one.script(3, ranks=(1,))
    wait_until((folder / "rank-1.json").exists, "rank 1 has seen it")
    one.ranks[0].kill()
    codes = [rank.wait(DEADLINE_S) for rank in one.ranks]
    assert codes[0] == -signal.SIGKILL
    assert codes[1] in (0, 1)  # it had joined, or had not
    wait_until(lambda: not processes(str(tmp_path)), "the end of everything")


def test_a_job_restarted_while_its_first_run_ends_keeps_its_keys(
    job: Callable[[int], Job],
) -> None:
    one, two = job(1), job(1)
    one.start(1, "sh", "-c", "trap '' TERM; echo there; exec sleep 600")
    assert one.line() == "there"
    one.ranks[0].send_signal(signal.SIGTERM)
    wait_until(lambda: not list(one.folder.iterdir()), "the first run has removed its folder")
    assert one.ranks[0].poll() is None  # its command only ends by SIGKILL
    two.script(1)
    assert two.line() == "machines 1"
    assert one.ranks[0].wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert list(two.folder.glob("*/client.key"))
    assert two.ends() == [0]


def test_a_disk_failure_at_the_end_of_a_job_does_not_change_its_end(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    elsewhere = tmp_path / "elsewhere"
    fail = f"mv {one.folder} {elsewhere}; ln -s {one.folder} {one.folder}"  # ELOOP from now on
    one.start(1, "sh", "-c", f"{fail}; setsid sleep 600 {tmp_path} & exit 3")
    try:
        assert one.ends() == [3]
        assert not processes(str(tmp_path))
    finally:
        one.folder.unlink()
        shutil.rmtree(elsewhere)


@pytest.mark.parametrize(
    ("victim", "number"),
    [("rank 0", signal.SIGTERM), ("rank 0", signal.SIGKILL), ("command", signal.SIGKILL)],
)
def test_a_job_whose_rank_0_ends_leaves_nothing_behind(
    job: Callable[[int], Job], tmp_path: Path, number: signal.Signals, victim: str
) -> None:
    one = job(1)
    one.script(2)
    assert one.line() == "machines 2"
    if victim == "rank 0":
        one.ranks[0].send_signal(number)
    else:
        (command,) = (p for p in processes(str(tmp_path)) if p.cmdline()[1:3] == ["-c", COMMAND])
        command.send_signal(number)
    codes = [rank.wait(DEADLINE_S) for rank in one.ranks]
    expected = -number if (victim, number) == ("rank 0", signal.SIGKILL) else 128 + number
    assert codes == [expected, 0]
    wait_until(lambda: not processes(str(tmp_path)), "the end of everything")


def test_a_killed_rank_leaves_nothing_behind_and_the_others_go_on(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    one.script(2)
    assert [one.line(), one.line()] == ["machines 2", "ranks 0 1"]
    one.ranks[1].kill()
    one.ranks[1].wait(DEADLINE_S)

    def of_rank_1() -> list[psutil.Process]:
        found = []
        for process in processes(str(tmp_path)):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RANK_OF_TEST") == "1":
                    found.append(process)
        return found

    wait_until(lambda: not of_rank_1(), "the end of rank 1")
    assert one.ends()[0] == 0


def test_ctrl_c_interrupts_the_command_and_all_ranks_end_with_it(
    job: Callable[[int], Job],
) -> None:
    one = job(1)
    save = (
        "import sys, time\n"
        "try:\n"
        "    print('there', flush=True)\n"
        "    while True: time.sleep(0.05)\n"  # a signal just before a long sleep would be lost
        "except KeyboardInterrupt: sys.exit(len(__import__('remotely').status().machines))\n"
    )
    one.start(2, sys.executable, "-c", save)
    assert one.line() == "there"
    for rank in one.ranks[::-1]:  # as a launcher passes it on
        for process in (psutil.Process(rank.pid), *psutil.Process(rank.pid).children()):
            if "remotely.worker" not in process.cmdline():
                process.send_signal(signal.SIGINT)
    for process in psutil.Process(one.ranks[0].pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:2] == ["-c"]:
                process.send_signal(signal.SIGINT)
    assert [rank.wait(DEADLINE_S) for rank in one.ranks] == [2, 0]


def test_under_nohup_a_job_survives_sighup(job: Callable[[int], Job]) -> None:
    one = job(1)
    one.start(1, "sh", "-c", "echo $$; read line; exit 5", by=("nohup",))
    command = int(one.line())
    rank = one.ranks[0]
    (guard,) = (p for p in psutil.Process(rank.pid).children() if "run" in p.cmdline())
    for pid in (command, guard.pid, rank.pid):  # in any order: all ignore it
        assert ignores(pid, signal.SIGHUP)
        assert not ignores(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGHUP)
    assert one.ends() == [5]


def test_without_a_launcher_a_command_runs_on_this_machine(machine: Machine) -> None:
    remotely = str(SCRIPTS / "remotely")
    command = [remotely, "run", "--", sys.executable, "-c", "import sys; sys.exit(5)"]
    clean = {k: v for k, v in machine.environment.items() if not k.startswith("SLURM")}
    done = subprocess.run(
        command, env=clean, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == 5
    assert "using this machine alone" in done.stderr
    assert (machine.home / "jobs").exists()


def test_without_a_launcher_several_ranks_are_refused(machine: Machine, tmp_path: Path) -> None:
    options = ("--wait-for", 4, "--rendezvous", tmp_path / "rv", "--job", "train")
    told = machine.refuses("run", *options, "--", "touch", tmp_path / "ran")
    assert "no launcher says which of the 4 ranks this is" in told
    assert {file.name for file in tmp_path.iterdir()}.isdisjoint({"rv", "ran"})


def test_a_mistyped_rendezvous_folder_is_refused(job: Callable[[int], Job], tmp_path: Path) -> None:
    one = job(1)
    one.folder = tmp_path / "mistyped" / "jobs"
    one.script(2)
    assert one.ends() == [1, 1]
    for told in one.errors():
        assert f"there is no folder {tmp_path / 'mistyped'} on this machine" in told
        assert "on a disk that all machines share" in told
    assert not (tmp_path / "mistyped").exists()


def test_the_command_ends_when_its_guard_is_killed(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    one.script(1)
    assert one.line() == "machines 1"
    (guard,) = (p for p in psutil.Process(one.ranks[0].pid).children() if "run" in p.cmdline())
    guard.kill()
    assert one.ranks[0].wait(DEADLINE_S) == 128 + signal.SIGKILL
    wait_until(lambda: not processes(str(tmp_path)), "the end of everything")


def test_the_job_ends_when_its_guard_ends_before_the_command_starts(
    job: Callable[[int], Job], tmp_path: Path
) -> None:
    one = job(1)
    one.script(2, ranks=(0,))
    rendezvous = Rendezvous(tmp_path / "shared" / "Slurm-1.0", 1)
    wait_until(rendezvous.invitation, "rank 0 waits for rank 1")
    (guard,) = (p for p in psutil.Process(one.ranks[0].pid).children() if "run" in p.cmdline())
    guard.terminate()
    assert one.ranks[0].wait(DEADLINE_S) == 1
    assert "before the command was started" in one.errors()[0]

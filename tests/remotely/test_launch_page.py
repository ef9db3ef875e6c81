"""The examples of docs/launch.md, run unchanged."""

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from remotely import cli
from remotely.machine import this_machine
from remotely.ops.host_file import parse_hosts
from tests.clusters import DEADLINE_S, SCRIPTS
from tests.command import Machine
from tests.machines import Namespaces, why_not
from tests.sshd import Hosts, why_no_sshd

PAGE = Path(__file__).parents[2] / "docs" / "launch.md"
TRAIN = "import remotely; print('machines', len(remotely.status().machines))\n"
CPUS = "print('cpus', *(int(machine.cpus) for machine in remotely.status().machines))\n"
# Starts its command once per task, on this machine, and binds each task like srun since 22.05: to
# one core, whatever SLURM_CPUS_PER_TASK is, unless --cpus-per-task is given.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
option, _, value = sys.argv[1].partition("=")
has_option = option == "--cpus-per-task"
cores = sorted(os.sched_getaffinity(0))[: int(value) if has_option else 1]
os.sched_setaffinity(0, cores)
size = int(os.environ["SLURM_NTASKS"])
step = {{"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x%d)" % size}}
tasks = [
    subprocess.Popen(
        sys.argv[1 + has_option:],
        env={{**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)}},
    )
    for rank in range(size)
]
sys.exit(max(task.wait() for task in tasks))
"""


def block(language: str) -> str:
    """Return the one block of the page in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_batch_script_runs_its_command_on_all_machines(
    machine: Machine, tmp_path: Path
) -> None:
    cores = this_machine.cores()
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "srun").write_text(SRUN)
    (binaries / "srun").chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN + CPUS)
    (tmp_path / "job.sh").write_text(block("bash"))
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env={
            **machine.environment,
            "PATH": f"{binaries}:{SCRIPTS}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "4",
            "SLURM_CPUS_PER_TASK": str(cores),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * DEADLINE_S,
    )
    told = f"machines 4\ncpus{4 * f' {cores}'}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")


def test_the_host_file_starts_a_cluster_and_ends_it(machine: Machine, tmp_path: Path) -> None:
    if why := why_no_sshd() or why_not():
        pytest.skip(why)
    file = tmp_path / "hosts.toml"
    file.write_text(block("toml"))
    names = [host.ssh for host in parse_hosts(file.read_text(), "hosts.toml").all_hosts]
    network = Namespaces(tmp_path, 1)
    inside = network.command(0)
    for last in range(10, 14):
        network.does(0, "ip", "addr", "add", f"192.168.0.{last}/24", "dev", "lo")
    addresses = {name: f"192.168.0.{11 + number}" for number, name in enumerate(names)}
    hosts = Hosts(tmp_path, addresses, machine.environment, inside)

    def does(command: str) -> str:
        done = subprocess.run(
            [*inside, str(SCRIPTS / "remotely"), command, str(file)],
            env=hosts.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * DEADLINE_S,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    try:
        assert "3 of 3 machines have joined 192.168.0.10:8010." in does("up")
        assert "3 of 3 machines have no worker of it." in does("down")
    finally:
        hosts.close()
        network.close()


def test_every_option_on_the_page_exists() -> None:
    text = PAGE.read_text()
    for command in ("run", "start", "join", "up", "down"):
        shown = CliRunner().invoke(cli.main, [command, "--help"]).stdout
        for line in re.findall(rf"remotely {command} ([^`\n]*)", text):
            for option in re.findall(r"(--[a-z-]+)", line.partition(" -- ")[0]):
                assert option in shown, (command, option)


def test_the_unit_for_systemd_runs_a_command_that_exists() -> None:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(block("ini"))
    assert parser.sections() == ["Unit", "Service", "Install"]
    program, command, *words = shlex.split(parser["Service"]["ExecStart"])
    assert Path(program).is_absolute()
    shown = subprocess.run(
        [SCRIPTS / Path(program).name, command, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [word for word in words if word.startswith("--") and word not in shown] == []
    assert parser["Service"]["KillMode"] == "mixed"

"""The batch script of docs/launch.md under a real Slurm cluster of one node, this machine.

Skipped where slurmctld, slurmd and munge are not installed.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import DEADLINE_S, SCRIPTS, free_port, processes, wait_until
from tests.remotely.test_launch_page import TRAIN, block

pytestmark = pytest.mark.slow

DAEMONS = ("munged", "slurmctld", "slurmd")
ON_ONE_NODE = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=00:05:00")
CONFIG = """
ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName={name} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={name} Default=YES MaxTime=INFINITE State=UP
"""


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for sockets; the path identifies the processes of a test."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as made:
        yield Path(made)
        wait_until(lambda: not processes(made), "nothing of the job is left")


@pytest.fixture
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons; yield the environment in which sbatch finds them."""
    if os.getuid() != 0 or not all(map(program, DAEMONS)) or (os.cpu_count() or 1) < 2:
        pytest.skip("needs root, two cores, slurmctld, slurmd and munge")
    name = socket.gethostname().partition(".")[0]
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(
        CONFIG.format(
            name=name, folder=folder, controller=free_port(), node=free_port(), cores=os.cpu_count()
        )
    )
    found = {name: str(program(name)) for name in DAEMONS}
    munge = [f"--{of}-file={folder}/munge.{of}" for of in ("key", "log", "pid", "seed")]
    commands = [
        [found["munged"], "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        [found["slurmctld"], "-D"],
        [found["slurmd"], "-D", "-N", name],
    ]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("REMOTELY_", "SLURM_"))},
        "SLURM_CONF": str(folder / "slurm.conf"),
        "REMOTELY_HOME": str(folder / "home"),
        "TMPDIR": str(folder),
        "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
    }
    clean = {k: v for k, v in environment.items() if k in ("PATH", "SLURM_CONF")}
    with (folder / "daemons.log").open("wb") as log:
        daemons = []
        for command in commands:
            daemons.append(subprocess.Popen(command, env=clean, stdout=log, stderr=log))
            if command is commands[0]:
                wait_until((folder / "munge.socket").exists, "munge listens")
    try:
        wait_until(lambda: "idle" in said("sinfo", environment, folder), "the node is there")
        yield environment
    finally:
        for daemon in daemons[::-1]:
            daemon.terminate()
            daemon.wait(DEADLINE_S)


def said(command: str, environment: dict[str, str], folder: Path, *words: str) -> str:
    """Return what a command of Slurm prints."""
    done = subprocess.run(
        [command, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * DEADLINE_S,
    )
    return done.stdout


def submit(folder: Path, environment: dict[str, str], script: str, *words: str) -> str:
    (folder / "train.py").write_text(script)
    (folder / "job.sh").write_text(block("bash"))
    options = ("--parsable", f"--output={folder}/out", *ON_ONE_NODE, *words)
    return said("sbatch", environment, folder, *options, "job.sh").strip()


def test_the_batch_script_runs_its_command_on_all_tasks(
    slurm: dict[str, str], folder: Path
) -> None:
    submit(folder, slurm, TRAIN, "--wait")
    assert (folder / "out").read_text() == "machines 2\n"


def test_a_cancelled_job_leaves_nothing_behind(slurm: dict[str, str], folder: Path) -> None:
    job = submit(folder, slurm, f"{TRAIN}import sys, time\nsys.stdout.flush()\ntime.sleep(600)\n")
    out = folder / "out"
    wait_until(lambda: out.exists() and "machines 2" in out.read_text(), "the command runs")
    said("scancel", slurm, folder, job)
    wait_until(lambda: not processes(str(folder / "home")), "everything ends")
    wait_until(lambda: not list((folder / "home" / "jobs").iterdir()), "the folder is empty")


def test_a_batch_script_without_srun_is_refused(slurm: dict[str, str], folder: Path) -> None:
    (folder / "wrong.sh").write_text("#!/bin/bash\nremotely run -- true\n")
    words = ("--wait", f"--output={folder}/out", *ON_ONE_NODE, "wrong.sh")
    said("sbatch", slurm, folder, *words)
    assert "srun remotely run" in (folder / "out").read_text()

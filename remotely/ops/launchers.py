"""The rank and job of this process, from the environment variables of its launcher.

The table has one row per launcher.  An inner launcher comes before the launchers it may run in,
because its ranks inherit their variables: under mpirun in a Slurm job both sets are present.  With
PMI-2 (MpiDefault=pmi2), srun itself sets the variables of MPI too, all but MPI_LOCALNRANKS.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables that a launcher sets; empty where it sets none."""

    name: str
    by: str  # the command that starts another on every machine
    rank: str
    size: str  # if empty, --wait-for is needed
    job: tuple[str, ...]  # the values of those that are set identify the job
    local_size: str = ""  # the number of ranks on this machine
    local_rank: str = ""
    cpus: str = ""  # the number of CPUs of this rank
    gpus: str = ""  # the number of its GPUs; if set, it sees no others


LAUNCHERS = (
    Launcher(
        name="torchrun",
        by="torchrun --no-python",
        rank="RANK",
        size="WORLD_SIZE",
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
        local_size="LOCAL_WORLD_SIZE",
        local_rank="LOCAL_RANK",
    ),
    Launcher(
        name="Open MPI",
        by="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher(
        name="MPI",
        by="mpiexec",
        rank="PMI_RANK",
        size="PMI_SIZE",
        job=("PMI_JOBID",),
        local_size="MPI_LOCALNRANKS",
        local_rank="MPI_LOCALRANKID",
    ),
    Launcher(
        name="Slurm",
        by="srun",
        rank="SLURM_PROCID",
        size="SLURM_NTASKS",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        local_size="SLURM_STEP_TASKS_PER_NODE",
        local_rank="SLURM_LOCALID",
        cpus="SLURM_CPUS_PER_TASK",
        gpus="SLURM_GPUS_PER_TASK",
    ),
    Launcher(
        name="an indexed job",
        by="an indexed Job",
        rank="JOB_COMPLETION_INDEX",
        size="",
        job=("HOSTNAME",),
    ),
)
# If the launcher has no name for the job: the job id of the batch system it runs in.
BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
ALONE = Launcher(name="no launcher", by="a launcher", rank="", size="", job=())
# The numbers of tasks and nodes that sbatch or salloc allocated to a Slurm job.
ALLOCATED = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_SPECIAL_STEPS = 0xFFFFFFF0  # step ids from here on are Slurm's own, such as the shell of salloc

_NAME = re.compile(r"[^A-Za-z0-9.=-]+")
_MAX_NAME = 120


class JobRank(NamedTuple):
    """The rank of this process in its job."""

    launcher: Launcher
    rank: int
    size: int  # the number of ranks
    job: str  # unique among jobs, and valid as the name of a folder
    local_size: int = 1  # the number of ranks on this machine
    local_rank: int = 0


def rank_of(environ: Mapping[str, str], wait_for: int | None, job: str = "") -> JobRank:
    """Return the rank of this process; 0 of 1 if no known launcher started it.

    `wait_for` is the number of ranks, for launchers that do not set it; `job` overrides the name of
    the job.  Raises ValueError, which names the missing variable or option.
    """
    launcher = next((row for row in LAUNCHERS if _started_us(row, environ)), ALONE)
    if allocated := _allocated_without_srun(launcher, environ):
        if max(allocated, wait_for or 1) > 1:
            raise ValueError(
                "this Slurm job has several tasks or nodes, but this line was not started by srun: "
                "it would run once, on this node only. Start it for each task: "
                "'srun remotely run -- COMMAND'"
            )
        wait_for = 1
    if launcher is ALONE:
        if wait_for is not None and wait_for > 1:
            raise ValueError(
                f"no launcher says which of the {wait_for} ranks this is: each machine would run "
                "its own COMMAND. Have srun, mpirun, torchrun or an indexed Job start this line "
                "on every machine, or leave out --wait-for to use this machine alone"
            )
        return JobRank(ALONE, 0, 1, folder_name(job))
    size = _number(environ, launcher.size) if environ.get(launcher.size) else wait_for
    if size is None:
        raise ValueError(
            f"{launcher.name} does not set the number of ranks: give it with --wait-for N"
        )
    rank = _number(environ, launcher.rank)
    if rank >= size:
        raise ValueError(f"{launcher.rank} is {rank}, but the {size} ranks are numbered from 0")
    name = job or _job_of(environ, launcher, rank)
    if not name:
        raise ValueError(
            f"{launcher.name} does not identify the job: give it a unique name with --job"
        )
    local_size = _local_size(environ, launcher)
    local_rank = _number(environ, launcher.local_rank) if environ.get(launcher.local_rank) else 0
    folder = folder_name(f"{launcher.name}-{name}")
    return JobRank(launcher, rank, size, folder, local_size, local_rank % local_size)


def cpus_of(rank: JobRank, cores: int, environ: Mapping[str, str]) -> int:
    """Return how many of the usable cores the worker of a rank offers."""
    own = rank.launcher.cpus
    if environ.get(own):
        return min(cores, _number(environ, own))
    return max(1, cores // rank.local_size)


def core_warning(rank: JobRank, cores: int, environ: Mapping[str, str]) -> str:
    """Return a warning if a rank may use fewer cores than Slurm was asked for; else ""."""
    own = rank.launcher.cpus
    if not environ.get(own) or cores >= _number(environ, own):
        return ""
    return (
        f"rank {rank.rank} may use {cores} of the {environ[own]} CPUs of {own}: since Slurm 22.05, "
        "srun does not inherit --cpus-per-task from sbatch; use "
        f"'srun --cpus-per-task=${own} remotely run -- COMMAND'"
    )


def gpus_of(rank: JobRank, visible: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return which of the visible GPUs the worker of a rank offers.

    A task of Slurm that sees more than it was given (`--gpu-bind=none`) offers its part of them.
    """
    if given := re.search(r"\d+$", environ.get(rank.launcher.gpus, "")):
        count = int(given[0])
        return visible if len(visible) <= count else visible[rank.local_rank * count :][:count]
    return visible[rank.local_rank :: rank.local_size]


def names_of(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 3, 5 and 6"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def folder_name(name: str) -> str:
    """Return a job's name as a valid name of a folder."""
    return _NAME.sub("_", name)[:_MAX_NAME].strip(".")


def _started_us(row: Launcher, environ: Mapping[str, str]) -> bool:
    """Return whether the launcher's variables are set, other than by srun for MPI."""
    set_by_srun = (
        row.name == "MPI"
        and bool(environ.get("SLURM_STEP_ID"))
        and environ.get("SLURM_PROCID") == environ.get(row.rank)
        and not environ.get(row.local_size)
    )
    return bool(environ.get(row.rank)) and not set_by_srun


def _allocated_without_srun(launcher: Launcher, environ: Mapping[str, str]) -> int:
    """Return the number of tasks or nodes of a Slurm job if srun did not start this; else 0."""
    if launcher.name not in ("Slurm", ALONE.name) or not environ.get("SLURM_JOB_ID"):
        return 0
    step = environ.get("SLURM_STEP_ID", "")
    if step and not (step.isdecimal() and int(step) >= _SPECIAL_STEPS):
        return 0
    return max([1, *(_number(environ, name) for name in ALLOCATED if environ.get(name))])


def _job_of(environ: Mapping[str, str], launcher: Launcher, rank: int) -> str:
    names = [environ[name] for name in launcher.job if environ.get(name)]
    if launcher.job == ("HOSTNAME",):  # a Pod of an indexed Job is named JOB-INDEX
        return "".join(names).removesuffix(f"-{rank}")
    return ".".join(names) or next((environ[n] for n in BATCH_JOBS if environ.get(n)), "")


def _local_size(environ: Mapping[str, str], launcher: Launcher) -> int:
    """Parse "4", or Slurm's "2(x3),1": two on each of three nodes, then one."""
    text = environ.get(launcher.local_size, "")
    counts: list[int] = []
    for part in text.split(","):
        if not (found := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)):
            return 1
        counts += [int(found[1])] * int(found[2] or 1)
    node = environ.get("SLURM_NODEID", "0")
    index = int(node) if node.isdecimal() and len(counts) > 1 else 0
    return max(1, counts[min(index, len(counts) - 1)])


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}, not a number")
    return int(text)

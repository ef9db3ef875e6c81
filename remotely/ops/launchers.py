"""The rank and job of this process, from the environment variables of its launcher.

The rules are the table: one row a launcher.  An inner launcher comes before those inside which it
runs, and whose variables its ranks inherit: mpirun in a job of Slurm sets both.  With PMI-2
(MpiDefault=pmi2), srun itself sets the variables of MPI too, all but MPI_LOCALNRANKS.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables that a launcher sets; empty where it sets none."""

    name: str
    by: str  # how a command is started on every machine
    rank: str
    size: str  # if empty, --wait-for says it
    job: tuple[str, ...]  # what is set of them, together, differs from job to job
    ranks_here: str = ""  # how many ranks this machine has
    number_here: str = ""  # which of them this is
    cpus: str = ""  # that this rank has for itself
    gpus: str = ""  # the same: then it sees no others


LAUNCHERS = (
    Launcher(
        name="torchrun",
        by="torchrun --no-python",
        rank="RANK",
        size="WORLD_SIZE",
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
        ranks_here="LOCAL_WORLD_SIZE",
        number_here="LOCAL_RANK",
    ),
    Launcher(
        name="Open MPI",
        by="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        ranks_here="OMPI_COMM_WORLD_LOCAL_SIZE",
        number_here="OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher(
        name="MPI",
        by="mpiexec",
        rank="PMI_RANK",
        size="PMI_SIZE",
        job=("PMI_JOBID",),
        ranks_here="MPI_LOCALNRANKS",
        number_here="MPI_LOCALRANKID",
    ),
    Launcher(
        name="Slurm",
        by="srun",
        rank="SLURM_PROCID",
        size="SLURM_NTASKS",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ranks_here="SLURM_STEP_TASKS_PER_NODE",
        number_here="SLURM_LOCALID",
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
# Where the launcher itself has no name for the job: that of the batch system around it.
BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
ALONE = Launcher(name="no launcher", by="a launcher", rank="", size="", job=())
# In a job of Slurm, how many tasks or nodes sbatch or salloc was given; srun starts the tasks.
ALLOTTED = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_OWN_STEPS = 0xFFFFFFF0  # from here on, a step is Slurm's own, such as the shell of salloc

_NAME = re.compile(r"[^A-Za-z0-9.=-]+")
_MOST_LETTERS = 120


class Rank(NamedTuple):
    """This process among those of its job."""

    launcher: Launcher
    rank: int
    size: int  # how many ranks there are
    job: str  # a name that no other job has, fit for a folder
    ranks_here: int = 1  # on this machine
    number_here: int = 0  # which of them this is


def rank_of(environ: Mapping[str, str], wait_for: int | None, job: str = "") -> Rank:
    """Return which rank this process is; 0 of 1 where no launcher is known.

    `wait_for` is how many ranks there are, where the launcher does not say, and `job` the name of
    the job.  Raises ValueError, which names the variable or the option that is missing.
    """
    launcher = next((row for row in LAUNCHERS if _has_started_us(row, environ)), ALONE)
    if allotted := _without_srun(launcher, environ):
        if max(allotted, wait_for or 1) > 1:
            raise ValueError(
                "this is a job of several tasks or nodes of Slurm, and no srun has started this "
                "line: it would run once, on this node alone. Have srun start it for each task, as "
                "'srun remotely run -- COMMAND'"
            )
        wait_for = 1
    if launcher is ALONE:
        if wait_for is not None and wait_for > 1:
            raise ValueError(
                f"no launcher says which of the {wait_for} ranks this is: each machine would run "
                "COMMAND by itself. Have srun, mpirun, torchrun or an indexed Job start this line "
                "on every machine, or leave out --wait-for to use this machine alone"
            )
        return Rank(ALONE, 0, 1, fit(job))
    size = _number(environ, launcher.size) if environ.get(launcher.size) else wait_for
    if size is None:
        raise ValueError(
            f"{launcher.name} does not say how many ranks there are: name their number by "
            "--wait-for N"
        )
    rank = _number(environ, launcher.rank)
    if rank >= size:
        raise ValueError(
            f"{launcher.rank} is {rank}, which is no rank of {size}: they count from 0"
        )
    name = job or _job_of(environ, launcher, rank)
    if not name:
        raise ValueError(
            f"{launcher.name} does not say which job this is: give it a name of its own by --job"
        )
    here = _ranks_here(environ, launcher)
    number = _number(environ, launcher.number_here) if environ.get(launcher.number_here) else 0
    return Rank(launcher, rank, size, fit(f"{launcher.name}-{name}"), here, number % here)


def cpus_of(rank: Rank, cores: int, environ: Mapping[str, str]) -> int:
    """Return how many CPUs the worker of a rank gives away, of the cores that it may use."""
    own = rank.launcher.cpus
    if environ.get(own):
        return min(cores, _number(environ, own))
    return max(1, cores // rank.ranks_here)


def told_of_cores(rank: Rank, cores: int, environ: Mapping[str, str]) -> str:
    """Return what is wrong if a rank may use fewer cores than it was to have; else nothing."""
    own = rank.launcher.cpus
    if not environ.get(own) or cores >= _number(environ, own):
        return ""
    return (
        f"rank {rank.rank} may use {cores} of the {environ[own]} CPUs of {own}: from Slurm 22.05 "
        "on, srun does not take their number from sbatch; start it by "
        f"'srun --cpus-per-task=${own} remotely run -- COMMAND'"
    )


def gpus_of(rank: Rank, visible: list[str], environ: Mapping[str, str]) -> list[str]:
    """Return which GPUs the worker of a rank gives away, of those that it sees."""
    if environ.get(rank.launcher.gpus):
        return visible
    return visible[rank.number_here :: rank.ranks_here]


def names_of(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 3, 5 and 6"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def fit(name: str) -> str:
    """Return a name of a folder."""
    return _NAME.sub("_", name)[:_MOST_LETTERS].strip(".")


def _has_started_us(row: Launcher, environ: Mapping[str, str]) -> bool:
    """Return whether the variables are there, and are not those that srun sets for MPI."""
    is_of_srun = (
        row.name == "MPI"
        and bool(environ.get("SLURM_STEP_ID"))
        and environ.get("SLURM_PROCID") == environ.get(row.rank)
        and not environ.get(row.ranks_here)
    )
    return bool(environ.get(row.rank)) and not is_of_srun


def _without_srun(launcher: Launcher, environ: Mapping[str, str]) -> int:
    """Return how many tasks or nodes a batch script, or the shell of salloc, has; else 0."""
    if launcher.name not in ("Slurm", ALONE.name) or not environ.get("SLURM_JOB_ID"):
        return 0
    step = environ.get("SLURM_STEP_ID", "")
    if step and not (step.isdecimal() and int(step) >= _OWN_STEPS):
        return 0
    return max([1, *(_number(environ, name) for name in ALLOTTED if environ.get(name))])


def _job_of(environ: Mapping[str, str], launcher: Launcher, rank: int) -> str:
    names = [environ[name] for name in launcher.job if environ.get(name)]
    if launcher.job == ("HOSTNAME",):  # of a Pod of an indexed Job: JOB-INDEX
        return "".join(names).removesuffix(f"-{rank}")
    return ".".join(names) or next((environ[n] for n in BATCH_JOBS if environ.get(n)), "")


def _ranks_here(environ: Mapping[str, str], launcher: Launcher) -> int:
    """Read "4", or Slurm's "2(x3),1": two on each of three nodes, then one."""
    text = environ.get(launcher.ranks_here, "")
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
        raise ValueError(f"{name} is {text!r}, which is no number of ranks")
    return int(text)

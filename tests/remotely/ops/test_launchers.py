"""The rank and the job of a process, from the variables of its launcher."""

import pytest

from remotely.ops.launchers import (
    ALONE,
    core_warning,
    cpus_of,
    folder_name,
    gpus_of,
    names_of,
    rank_of,
)

SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "77@1",
}
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
INDEXED = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environ", "rank", "size", "job", "here"),
    [
        (SLURM, 3, 8, "Slurm-1234.0", 1),
        (OPEN_MPI, 1, 4, "Open_MPI-77_1", 2),
        (TORCHRUN, 0, 2, "torchrun-none.node0.29500", 1),
        (INDEXED, 2, 5, "an_indexed_job-train", 1),
        ({**MPICH, "SLURM_JOB_ID": "9"}, 1, 2, "MPI-9", 2),
        ({**MPICH, "PBS_JOBID": "9.head"}, 1, 2, "MPI-9.head", 2),
    ],
)
def test_each_launcher_sets_the_rank_and_the_job(
    environ: dict[str, str], rank: int, size: int, job: str, here: int
) -> None:
    found = rank_of(environ, 5)
    assert (found.rank, found.size, found.job, found.local_size) == (rank, size, job, here)


def test_without_a_launcher_there_is_one_rank_and_several_are_refused() -> None:
    found = rank_of({"PATH": "/bin"}, None)
    assert (found.launcher, found.rank, found.size) == (ALONE, 0, 1)
    assert rank_of({}, 1).launcher is ALONE
    with pytest.raises(ValueError, match=r"which of the 4 ranks this is.*srun, mpirun") as error:
        rank_of({}, 4, "train")
    assert "leave out --wait-for" in str(error.value)


ALLOCATION = {"SLURM_JOB_ID": "1234"}  # of salloc: its shell has no SLURM_PROCID
BATCH = {**ALLOCATION, "SLURM_PROCID": "0"}
INTERACTIVE = {**BATCH, "SLURM_STEP_ID": "4294967290"}


@pytest.mark.parametrize("job", [ALLOCATION, BATCH, INTERACTIVE])
@pytest.mark.parametrize(
    "allotted",
    [
        {"SLURM_NTASKS": "4"},
        {"SLURM_NNODES": "4"},
        {"SLURM_NNODES": "4", "SLURM_NTASKS": "1"},
        {"SLURM_JOB_NUM_NODES": "4"},
        {"SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "4"},
    ],
)
def test_without_srun_a_job_of_several_tasks_or_nodes_is_refused(
    job: dict[str, str], allotted: dict[str, str]
) -> None:
    for wait_for in (None, 4):
        with pytest.raises(ValueError, match="'srun remotely run -- COMMAND'") as error:
            rank_of({**job, **allotted}, wait_for)
        assert "--wait-for" not in str(error.value)


@pytest.mark.parametrize("job", [ALLOCATION, BATCH, INTERACTIVE])
def test_without_srun_a_job_of_one_task_on_one_node_runs_alone(job: dict[str, str]) -> None:
    one = {"SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1"}
    for more in ({}, {"SLURM_NTASKS": "1"}):
        found = rank_of({**job, **one, **more}, None)
        assert (found.rank, found.size) == (0, 1)
    with pytest.raises(ValueError, match="srun remotely run"):
        rank_of({**job, **one}, 4)


def test_mpirun_and_torchrun_need_no_srun_in_a_job_of_slurm() -> None:
    for launcher in (OPEN_MPI, TORCHRUN, MPICH):
        assert rank_of({**ALLOCATION, "SLURM_NNODES": "4", **launcher}, None).size > 1


def test_an_inner_launcher_takes_precedence() -> None:
    assert rank_of({**SLURM, **OPEN_MPI}, None).launcher.name == "Open MPI"
    assert rank_of({**SLURM, **TORCHRUN}, None).launcher.name == "torchrun"


def test_srun_is_the_launcher_even_if_it_sets_the_variables_of_mpi() -> None:
    pmi2 = {"PMI_RANK": "3", "PMI_SIZE": "8", "PMI_JOBID": "1234.0", "PMI_FD": "9"}
    shares = {
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
        "SLURM_LOCALID": "3",
        "SLURM_CPUS_PER_TASK": "8",
    }
    environ = {**SLURM, **pmi2, **shares}
    found = rank_of(environ, None)
    assert (found.launcher.by, found.job, found.local_size) == ("srun", "Slurm-1234.0", 4)
    assert cpus_of(found, 32, environ) == 8
    assert gpus_of(found, ["0", "1", "2", "3"], environ) == ["3"]


@pytest.mark.parametrize("rank", ["0", "1"])  # srun starts mpiexec, or its proxy on each machine
def test_mpiexec_is_the_launcher_even_if_srun_started_it(rank: str) -> None:
    inherited = {**SLURM, "SLURM_PROCID": rank, "PMI_JOBID": "1234.0"}
    assert rank_of({**inherited, **MPICH}, None).launcher.by == "mpiexec"


def test_the_job_option_names_the_job() -> None:
    assert rank_of(SLURM, None, "mine").job == "Slurm-mine"


def test_two_steps_of_a_job_are_two_jobs() -> None:
    assert rank_of(SLURM, None).job != rank_of({**SLURM, "SLURM_STEP_ID": "1"}, None).job


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (INDEXED, "--wait-for N"),
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({**SLURM, "SLURM_PROCID": "8"}, "SLURM_PROCID is 8, but the 8 ranks are numbered from 0"),
        ({**SLURM, "SLURM_NTASKS": "many"}, "SLURM_NTASKS is 'many'"),
        (MPICH, "--job"),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_ID": ""}, "srun remotely run"),
    ],
)
def test_a_missing_or_invalid_variable_is_named(environ: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rank_of(environ, None)


@pytest.mark.parametrize(
    ("tasks", "node", "here"),
    [("4", "0", 4), ("2(x3),1", "0", 2), ("2(x3),1", "2", 2), ("2(x3),1", "3", 1), ("?", "0", 1)],
)
def test_slurm_sets_the_number_of_ranks_of_each_machine(tasks: str, node: str, here: int) -> None:
    environ = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node}
    assert rank_of(environ, None).local_size == here


def test_ranks_of_one_machine_split_its_cores_unless_slurm_assigns_them() -> None:
    assert cpus_of(rank_of(OPEN_MPI, None), 8, OPEN_MPI) == 4
    assert cpus_of(rank_of(OPEN_MPI, None), 1, OPEN_MPI) == 1
    bound = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_PER_TASK": "6"}
    assert cpus_of(rank_of(bound, None), 6, bound) == 6
    assert cpus_of(rank_of(bound, None), 2, bound) == 2


def test_a_rank_with_fewer_cores_than_requested_from_slurm_is_warned() -> None:
    environ = {**SLURM, "SLURM_CPUS_PER_TASK": "16"}
    warning = core_warning(rank_of(environ, None), 1, environ)
    assert warning.startswith("rank 3 may use 1 of the 16 CPUs of SLURM_CPUS_PER_TASK")
    assert "srun --cpus-per-task=$SLURM_CPUS_PER_TASK remotely run" in warning
    assert core_warning(rank_of(environ, None), 16, environ) == ""
    assert core_warning(rank_of(SLURM, None), 1, SLURM) == ""
    assert core_warning(rank_of({}, None), 1, {}) == ""


def test_ranks_of_one_machine_split_its_gpus_unless_slurm_assigns_them() -> None:
    seen = ["0", "1", "2"]
    for number, own in (("0", ["0", "2"]), ("1", ["1"])):
        environ = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": number}
        assert gpus_of(rank_of(environ, None), seen, environ) == own
    assert gpus_of(rank_of(SLURM, None), seen, SLURM) == seen
    bound = {
        **SLURM,
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_LOCALID": "1",
        "SLURM_GPUS_PER_TASK": "1",
    }
    assert gpus_of(rank_of(bound, None), ["0"], bound) == ["0"]
    # With --gpu-bind=none each task sees all GPUs of its node.
    assert gpus_of(rank_of(bound, None), ["0", "1"], bound) == ["1"]
    two = {**bound, "SLURM_GPUS_PER_TASK": "a100:2"}
    assert gpus_of(rank_of(two, None), ["0", "1", "2", "3"], two) == ["2", "3"]
    assert gpus_of(rank_of({}, None), seen, {}) == seen


def test_ranks_are_listed_as_in_a_sentence() -> None:
    assert names_of([3]) == "rank 3"
    assert names_of([1, 2]) == "ranks 1 and 2"
    assert names_of([1, 2, 5]) == "ranks 1, 2 and 5"


def test_a_job_never_leaves_its_folder() -> None:
    assert "/" not in folder_name("../../etc")
    assert folder_name("..") == ""
    assert len(folder_name("x" * 1000)) <= 120

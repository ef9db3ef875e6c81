"""The limits of a container are read from its control group, version 1 or 2."""

from pathlib import Path

import pytest

from remotely.machine import cgroup, this_machine

GIB = 1 << 30


class Tree:
    """A hierarchy of control groups, made of files."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sys"
        self.own = folder / "own"
        self.own.write_text("")

    def is_in(self, *lines: str) -> None:
        self.own.write_text("".join(f"{line}\n" for line in lines))

    def has(self, file: str, text: str) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def memory(self) -> int | None:
        found = cgroup.memory_limit(self.root, self.own)
        return found and found[0]

    def limits(self) -> tuple[float | None, int | None]:
        return cgroup.cpus(self.root, self.own), self.memory()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_in_a_container_the_group_is_the_root(tree: Tree) -> None:
    tree.is_in("0::/")
    tree.has("cpu.max", "250000 100000")
    tree.has("memory.max", str(8 * GIB))
    assert tree.limits() == (2.5, 8 * GIB)


def test_the_lowest_limit_of_all_groups_above_counts(tree: Tree) -> None:
    tree.is_in("0::/user.slice/job.scope")
    tree.has("user.slice/job.scope/cpu.max", "max 100000")
    tree.has("user.slice/job.scope/memory.max", str(8 * GIB))
    tree.has("user.slice/cpu.max", "400000 100000")
    tree.has("user.slice/memory.max", str(4 * GIB))
    assert tree.limits() == (4.0, 4 * GIB)


def test_two_groups_below_one_limit_have_the_same_memory(tree: Tree) -> None:
    tree.has("job/memory.max", str(8 * GIB))
    found = []
    for task in ("0", "1"):
        tree.is_in(f"0::/job/task{task}")
        tree.has(f"job/task{task}/memory.max", "max")
        found.append(cgroup.memory_limit(tree.root, tree.own))
    assert found[0] == found[1] is not None
    tree.has("job/task1/memory.max", str(GIB))
    own = cgroup.memory_limit(tree.root, tree.own)
    assert own is not None
    assert own[0] == GIB
    assert own != found[0]


@pytest.mark.parametrize(
    ("group", "limit", "now", "cached"),
    [
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_cached_files_that_can_be_dropped_are_not_in_use(
    tree: Tree, group: str, limit: str, now: str, cached: str
) -> None:
    tree.is_in("0::/job", "7:memory:/job")
    tree.has(f"{group}job/{limit}", str(8 * GIB))
    tree.has(f"{group}job/{now}", str(3 * GIB))
    tree.has(f"{group}job/memory.stat", f"anon 5\n{cached} {GIB}")
    assert cgroup.memory_used(tree.root, tree.own) == 2 * GIB


def test_without_limits_there_are_none(tree: Tree) -> None:
    assert tree.limits() == (None, None)
    tree.is_in("0::/here")
    tree.has("here/cpu.max", "max 100000")
    tree.has("here/memory.max", "max")
    assert tree.limits() == (None, None)


def test_version_1_has_a_hierarchy_for_each_controller(tree: Tree) -> None:
    tree.is_in("9:name=systemd:/", "4:memory:/job", "2:cpu,cpuacct:/job", "0::/")
    tree.has("cpu/job/cpu.cfs_quota_us", "150000")
    tree.has("cpu/job/cpu.cfs_period_us", "100000")
    tree.has("cpu/cpu.cfs_quota_us", "-1")
    tree.has("cpu/cpu.cfs_period_us", "100000")
    tree.has("memory/job/memory.limit_in_bytes", str(2 * GIB))
    assert tree.limits() == (1.5, 2 * GIB)


def test_a_container_that_sees_group_names_of_the_host_reads_its_limits_at_the_root(
    tree: Tree,
) -> None:
    tree.is_in("4:memory:/docker/5a1b", "2:cpu,cpuacct:/docker/5a1b")
    tree.has("cpu/cpu.cfs_quota_us", "300000")
    tree.has("cpu/cpu.cfs_period_us", "100000")
    tree.has("memory/memory.limit_in_bytes", str(GIB))
    assert tree.limits() == (3.0, GIB)


@pytest.mark.parametrize(("limit", "cores"), [(None, 8), (2.5, 2), (0.5, 1), (64.0, 8)])
def test_cores_are_limited_by_the_group(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    monkeypatch.setattr(cgroup, "cpus", lambda: limit)
    assert this_machine.cores() == cores


def test_memory_is_limited_by_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "memory_limit", lambda: None)
    everything = this_machine.memory_pool()
    monkeypatch.setattr(cgroup, "memory_limit", lambda: (1 << 60, "group 1"))
    assert this_machine.memory_pool() == everything
    monkeypatch.setattr(cgroup, "memory_limit", lambda: (GIB // 4, "group 1"))
    assert this_machine.memory() == GIB // 4
    assert this_machine.memory_pool()[1] != everything[1]

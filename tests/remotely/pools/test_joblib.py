"""joblib, and so scikit-learn, on a cluster."""

import importlib.util
import os
import signal
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api.verbs import put
from remotely.errors import ActorDied
from tests.clusters import wait_until

joblib = pytest.importorskip("joblib")
joblib_backend = pytest.importorskip("remotely.pools.joblib_backend")


@pytest.fixture(autouse=True)
def registered() -> None:
    remotely.register_joblib()


def pid(_: int) -> int:
    return os.getpid()


def total(numbers: np.ndarray, power: int) -> float:
    return float((numbers**power).sum())


def fail(number: int) -> int:
    if number == 5:
        raise ValueError("five")
    return number


@remotely.idempotent(retries=1)
def die_at_first(folder: Path, number: int) -> int:
    if number == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_calls_run_in_other_processes_and_results_come_in_order(cluster: str) -> None:
    numbers = np.arange(100_000.0)
    with joblib.parallel_config(backend="remotely"):
        totals = joblib.Parallel()(joblib.delayed(total)(numbers, n) for n in range(4))
        pids = joblib.Parallel(n_jobs=2)(joblib.delayed(pid)(n) for n in range(20))
    assert totals == [total(numbers, n) for n in range(4)]
    assert os.getpid() not in pids
    assert len(set(pids)) <= 2
    wait_until(lambda: remotely.status().actors == [], "its processes have ended")


def test_an_array_is_put_once_for_all_calls_and_again_after_a_change(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[np.ndarray] = []

    def counted(array: np.ndarray) -> Any:
        puts.append(array)
        return put(array)

    monkeypatch.setattr(joblib_backend, "put", counted)
    numbers, others = np.zeros(100_001, np.float32), np.full((20, 5_000), np.nan, order="F")

    def calls() -> Iterator[Any]:
        for _ in range(10):
            yield joblib.delayed(total)(numbers, 1)
            yield joblib.delayed(total)(others, 1)
        numbers[-1] = 7
        yield joblib.delayed(total)(numbers, 1)

    with joblib.parallel_config(backend="remotely", n_jobs=2):
        totals = joblib.Parallel(batch_size=1)(calls())
    assert totals[::2] == [0.0] * 10 + [7.0]
    assert [array is others for array in puts] == [False, True, False]


def test_n_jobs_counts_the_cores_of_the_cluster(here: None) -> None:
    with joblib.parallel_config(backend="remotely"):
        assert joblib.Parallel()._effective_n_jobs() == 16
        assert joblib.Parallel(n_jobs=-2)._effective_n_jobs() == 15
        assert joblib.Parallel(n_jobs=3)._effective_n_jobs() == 3
        with pytest.raises(ValueError, match="n_jobs"):
            joblib.Parallel(n_jobs=0)(joblib.delayed(pid)(n) for n in range(2))


def test_an_error_ends_the_run_and_the_next_one_works(here: None) -> None:
    with joblib.parallel_config(backend="remotely", n_jobs=2):
        with pytest.raises(ValueError, match="five"):
            joblib.Parallel()(joblib.delayed(fail)(n) for n in range(10))
        assert joblib.Parallel()(joblib.delayed(fail)(n) for n in range(4)) == [0, 1, 2, 3]
    wait_until(lambda: remotely.status().actors == [], "its processes have ended")


def test_idempotent_functions_are_retried_if_their_process_is_lost(
    here: None, tmp_path: Path
) -> None:
    with joblib.parallel_config(backend="remotely", n_jobs=2):
        calls = (joblib.delayed(die_at_first)(tmp_path, n) for n in range(6))
        assert joblib.Parallel()(calls) == list(range(6))
        with pytest.raises(ActorDied):
            joblib.Parallel()(joblib.delayed(os._exit)(3) for _ in range(2))


def test_results_can_be_unordered(here: None) -> None:
    with joblib.parallel_config(backend="remotely", n_jobs=2):
        results = joblib.Parallel(return_as="generator_unordered")(
            joblib.delayed(fail)(n) for n in range(5)
        )
        assert sorted(results) == [0, 1, 2, 3, 4]


def test_a_grid_search_has_the_same_result_as_locally(here: None) -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_iris(return_X_y=True)
    search = GridSearchCV(SVC(), {"C": [0.1, 1.0, 10.0]}, cv=3)
    local = search.fit(x, y).best_score_
    with joblib.parallel_config(backend="remotely", n_jobs=2):
        assert search.fit(x, y).best_score_ == local


def test_arrays_that_one_batch_uses_are_freed_with_it(here: None) -> None:
    alive: list[weakref.ref[np.ndarray]] = []
    most = 0

    def calls() -> Iterator[Any]:
        nonlocal most
        for number in range(30):
            array = np.full(100_000, number)
            alive.append(weakref.ref(array))
            most = max(most, sum(one() is not None for one in alive))
            yield joblib.delayed(total)(array, 1)

    with joblib.parallel_config(backend="remotely", n_jobs=2):
        totals = joblib.Parallel(batch_size=1)(calls())
    assert totals == [100_000 * n for n in range(30)]
    assert most <= 10


level = 0


def set_level(value: int) -> None:
    global level
    level = value


def get_level(_: int) -> int:
    return level


def test_an_initializer_runs_in_each_process_before_its_calls(here: None) -> None:
    calls = [joblib.delayed(get_level)(n) for n in range(6)]
    with joblib.parallel_config("remotely", n_jobs=2, initializer=set_level, initargs=(7,)):
        assert joblib.Parallel()(calls) == [7] * 6
        assert joblib.Parallel(initializer=set_level, initargs=(8,))(calls) == [8] * 6
    with pytest.raises(TypeError, match="initialiser"):
        joblib.Parallel(2, backend="remotely", initialiser=set_level)(calls)


def nested(number: int) -> list[int]:
    with joblib.parallel_config("remotely", n_jobs=2):
        return list(joblib.Parallel()(joblib.delayed(pid)(n) for n in range(number)))


@remotely.remote_class(cpus=0)
class Host:
    def nested(self, number: int) -> int:
        import joblib

        calls = (joblib.delayed(abs)(n) for n in range(number))
        return sum(joblib.Parallel(2, backend="remotely")(calls))

    def looks_before_it_imports(self) -> list[bool]:
        facts = ["joblib" not in sys.modules, importlib.util.find_spec("joblib") is not None]
        import joblib

        return [*facts, "remotely" in joblib.parallel.BACKENDS]


def test_actors_know_the_backend_if_the_script_has_registered_it(here: None) -> None:
    with joblib.parallel_config("remotely", n_jobs=2):
        first, second = joblib.Parallel()(joblib.delayed(nested)(2) for _ in "ab")
    assert os.getpid() not in {*first, *second}
    assert Host().nested(4) == 6
    with remotely.Executor(1) as executor:
        assert len(executor.submit(nested, 3).result()) == 3


def test_an_actor_that_looks_for_joblib_before_it_imports_it_knows_the_backend(here: None) -> None:
    assert Host().looks_before_it_imports() == [True, True, True]

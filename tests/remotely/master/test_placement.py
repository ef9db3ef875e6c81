"""The choice of workers, the accounting of resources, and the reasons for refusals."""

import math
import time
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from remotely.master.ledger import Capacity, Ledger, Placement, WhyClosed
from remotely.protocol.resources import Resources, Shares
from tests.steps import steps

GIB = 1 << 30
PYTHON = "3.11"


def ledger_of(**workers: Resources) -> Ledger:
    ledger = Ledger()
    for name, total in workers.items():
        ledger.add_worker(name, total, PYTHON)
    return ledger


def placed_by(ledger: Ledger, asked: Resources) -> Placement:
    answer = ledger.place(asked, PYTHON)
    assert isinstance(answer, Placement)
    return answer


# --- choice of the worker -----------------------------------------------------------------------


def test_of_equal_workers_the_first_by_id_is_chosen() -> None:
    for names in (["b", "a", "c"], ["c", "b", "a"]):
        ledger = ledger_of(**{name: Resources(4) for name in names})
        placed = [placed_by(ledger, Resources(1)) for _ in range(4)]
        assert [p.worker for p in placed] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("names", [None, ["a", "b", "c"]], ids=["all", "some workers"])
@pytest.mark.parametrize(
    "asked",
    [
        Resources(1),
        Resources(0.001),
        Resources(0),
        Resources(0, 1),
        Resources(1, 1),
        Resources(0, 0.5),
        Resources(0, memory=GIB),
        Resources(0, others=(("license", 1.0),)),
    ],
    ids=str,
)
def test_actors_spread_whatever_they_ask_for(asked: Resources, names: list[str] | None) -> None:
    size = Resources(8, 4, 8 * GIB, (("license", 8.0),))
    ledger = ledger_of(a=size, b=size, c=size)
    placed = [ledger.place(asked, PYTHON, names) for _ in range(9)]
    assert [p.worker for p in placed if p] == ["a", "b", "c"] * 3


@pytest.mark.parametrize("names", [None, ["a", "b", "c"]], ids=["all", "some workers"])
@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        (Resources(1), 4),
        (Resources(2), 2),
        (Resources(1, 1), 2),
        (Resources(0, 0.5), 4),
        (Resources(0, memory=4 * GIB), 2),
    ],
    ids=str,
)
def test_actors_that_pack_fill_one_machine_after_the_other(
    asked: Resources, fits: int, names: list[str] | None
) -> None:
    size = Resources(4, 2, 8 * GIB)
    ledger = ledger_of(a=size, b=size, c=size)
    placed = [ledger.place(asked, PYTHON, names, packs=True) for _ in range(3 * fits)]
    assert [p.worker for p in placed if p] == [*["c"] * fits, *["b"] * fits, *["a"] * fits]
    assert ledger.place(asked, PYTHON, names, packs=True) is None


def test_actors_without_cpus_spread_by_the_number_of_actors_for_the_cpus_of_a_machine() -> None:
    ledger = ledger_of(large=Resources(16), small=Resources(8), busy=Resources(8))
    for _ in range(4):
        ledger.allocate("busy", Resources(2), ())
    counts = Counter(placed_by(ledger, Resources(0)).worker for _ in range(12))
    assert counts == {"large": 8, "small": 4}
    placed = [placed_by(ledger, Resources(0)).worker for _ in range(3)]
    assert placed == ["large", "small", "busy"]


def test_of_machines_with_the_same_free_cpus_that_with_the_fewest_actors_is_chosen() -> None:
    ledger = ledger_of(a=Resources(4), b=Resources(4))
    assert [placed_by(ledger, Resources(0)).worker for _ in range(3)] == ["a", "b", "a"]
    assert placed_by(ledger, Resources(1)).worker == "b"


def test_what_is_reserved_or_lent_is_no_actor() -> None:
    ledger = ledger_of(a=Resources(4), b=Resources(4))
    ledger.release("b", Resources(1), (), actors=0)
    ledger.allocate("b", Resources(1), (), actors=0)
    ledger.reserve(Resources(1), PYTHON, 1, ["a"], frozenset(), frozenset())
    ledger.release_reservation()
    assert [placed_by(ledger, Resources(0)).worker for _ in range(2)] == ["a", "b"]


def test_a_gpu_is_allocated_to_one_actor_until_released() -> None:
    ledger = ledger_of(a=Resources(16, 4))
    first = placed_by(ledger, Resources(1, 2))
    second = placed_by(ledger, Resources(1, 2))
    assert (first.gpu_ids, second.gpu_ids) == ((0, 1), (2, 3))
    assert ledger.place(Resources(1, 1), PYTHON) is None
    ledger.release("a", Resources(1, 2), first.gpu_ids)
    assert placed_by(ledger, Resources(1, 1)).gpu_ids == (0,)


@pytest.mark.parametrize("tenth", [Resources(0.1), Resources(0, 0.1)])
def test_ten_tenths_are_exactly_one(tenth: Resources) -> None:
    ledger = ledger_of(a=Resources(1, 1))
    placements = [placed_by(ledger, tenth) for _ in range(10)]
    assert ledger.place(tenth, PYTHON) is None
    for placement in placements:
        ledger.release("a", tenth, placement.gpu_ids)
    assert ledger.free("a") == Resources(1, 1)


# --- parts of a GPU, custom resources, named machines --------------------------------------------


def test_actors_fill_a_shared_gpu_before_the_next() -> None:
    ledger = ledger_of(a=Resources(16, 2))
    placed = [placed_by(ledger, Resources(1, part)) for part in (0.5, 0.25, 0.5, 0.25)]
    assert [p.gpu_ids for p in placed] == [(0,), (0,), (1,), (0,)]
    assert ledger.free("a").gpus == 0.5
    assert ledger.place(Resources(1, 1), PYTHON) is None
    assert ledger.place(Resources(1, 0.6), PYTHON) is None
    ledger.release("a", Resources(1, 0.5), (1,))
    assert placed_by(ledger, Resources(1, 1)).gpu_ids == (1,)


def test_a_part_of_a_gpu_is_allocated_where_it_fits_best() -> None:
    ledger = ledger_of(a=Resources(16, 3))
    ledger.allocate("a", Resources(1, 0.3), (0,))
    ledger.allocate("a", Resources(1, 0.6), (1,))
    assert placed_by(ledger, Resources(1, 0.4)).gpu_ids == (1,)
    assert placed_by(ledger, Resources(1, 0.4)).gpu_ids == (0,)
    assert placed_by(ledger, Resources(1, 0.4)).gpu_ids == (2,)


def test_the_gpus_with_the_most_room_are_reserved() -> None:
    room = Capacity.all_free(Resources(8, 4), "3.11")
    room.take(Resources(1, 0.5), (1,))
    room.take(Resources(1, 1), (0,))
    assert room.soonest_gpus(500, room.emptied()) == (2,)
    assert room.soonest_gpus(1000, room.emptied()) == (2,)
    assert room.soonest_gpus(3000, room.emptied()) == (2, 3, 1)


def test_a_part_of_a_gpu_is_placed_on_a_worker_with_gpus() -> None:
    ledger = ledger_of(cpus=Resources(64), gpu=Resources(4, 1))
    assert [placed_by(ledger, Resources(1, 0.5)).worker for _ in range(2)] == ["gpu", "gpu"]
    assert ledger.place(Resources(1, 0.5), PYTHON) is None
    assert placed_by(ledger, Resources(1)).worker == "cpus"
    assert "0.5 GPUs where the largest worker has 0" in reason(
        ledger_of(a=Resources(1)), Resources(1, 0.5)
    )


def test_an_overcommitted_gpu_is_free_when_both_holders_released_it() -> None:
    ledger = ledger_of(a=Resources(4, 1))
    ledger.allocate("a", Resources(1, 0.5), (0,))
    ledger.allocate("a", Resources(1, 1), (0,))
    assert ledger.free("a").gpus == -0.5
    ledger.release("a", Resources(1, 1), (0,))
    assert ledger.free("a").gpus == 0.5
    ledger.release("a", Resources(1, 0.5), (0,))
    assert placed_by(ledger, Resources(1, 1)).gpu_ids == (0,)


LICENSE = Resources(1, others=(("license", 1.0),))


def test_custom_resources_are_allocated_and_released() -> None:
    ledger = ledger_of(
        plain=Resources(64), licensed=Resources(4, others=(("disk", 0.5), ("license", 2.0)))
    )
    placed = [placed_by(ledger, LICENSE).worker for _ in range(2)]
    assert placed == ["licensed", "licensed"]
    assert ledger.free("licensed") == Resources(2, others=(("disk", 0.5),))
    assert not ledger.has_room("licensed", LICENSE, PYTHON)
    assert ledger.most_free(LICENSE).others == (("license", 0.0),)
    assert ledger.place(LICENSE, PYTHON) is None
    ledger.release("licensed", LICENSE, ())
    assert ledger.has_room("licensed", LICENSE, PYTHON)
    both = Resources(others=(("disk", 0.1), ("license", 0.1)))
    assert ledger.most_free(both).others == (("disk", 0.5), ("license", 1.0))
    assert ledger.most_free(Resources(1)) == Resources(64)


def test_the_most_that_is_free_is_of_workers_with_the_labels() -> None:
    licenses = [(("license", float(count)),) for count in range(4)]
    ledger = ledger_of(
        a=Resources(4, 2, 8 * GIB, licenses[1], ("ssd",)),
        b=Resources(8, 1, 4 * GIB, licenses[2], ("ssd",)),
        none=Resources(16, 4, 16 * GIB, licenses[3]),
        away=Resources(16, 4, 16 * GIB, licenses[3], ("ssd",)),
    )
    ledger.close("away", WhyClosed.AWAY)
    everything = Resources(1, 1, 1, (("license", 1.0),), ("ssd",))
    assert ledger.most_free(everything) == Resources(8, 2, 8 * GIB, licenses[2])
    assert ledger.most_free(Resources(1, labels=("ssd",))) == Resources(8)
    ledger.allocate("b", Resources(5), ())
    assert ledger.most_free(Resources(1, labels=("ssd",))) == Resources(4)
    nowhere = msgspec.structs.replace(everything, labels=("hdd",))
    assert ledger.most_free(nowhere) == Resources(0, others=(("license", 0.0),))


SSD = Resources(1, labels=("ssd",))


def test_a_label_is_found_and_not_used_up() -> None:
    ledger = ledger_of(
        large=Resources(64),
        a=Resources(2, labels=("ssd", "zone=a")),
        b=Resources(2, labels=("ssd", "zone=b")),
    )
    assert ledger.copies(SSD, PYTHON, 9) == ledger.copies_in_all(SSD, PYTHON, 9) == 4
    assert [placed_by(ledger, SSD).worker for _ in range(3)] == ["a", "b", "a"]
    assert ledger.most_free(SSD) == Resources(1)
    both = Resources(1, labels=("ssd", "zone=a"))
    assert not ledger.has_room("a", both, PYTHON)
    assert ledger.place(both, PYTHON) is None
    assert ledger.why_never(both, PYTHON) is None
    ledger.release("a", SSD, ())
    assert placed_by(ledger, both).worker == "a"
    assert ledger.most_free(both) == Resources(0)


@pytest.mark.parametrize("among", [None, ["a", "b", "large"]], ids=["all", "some workers"])
@pytest.mark.parametrize(
    "asked", [SSD, Resources(0, labels=("ssd",)), Resources(0, 0.5, labels=("ssd",))], ids=str
)
def test_actors_spread_over_the_machines_with_a_label(
    asked: Resources, among: list[str] | None
) -> None:
    size = Resources(8, 4, 8 * GIB, labels=("ssd",))
    ledger = ledger_of(a=size, b=size, large=Resources(64, 8, 64 * GIB))
    placed = [ledger.place(asked, PYTHON, among) for _ in range(6)]
    assert [p.worker for p in placed if p] == ["a", "b"] * 3


def test_the_reason_names_a_label_that_no_machine_has() -> None:
    def why(*labels: str) -> str:
        return reason(ledger, Resources(1, labels=labels))

    ledger = ledger_of(a=Resources(8, labels=("ssd", "zone=a")), b=Resources(2))
    assert why("sdd") == "no machine has the label 'sdd'; did you mean 'ssd'?"
    assert why("tape") == "no machine has the label 'tape'; there are ssd and zone=a"
    assert why("tape", "x") == "no machine has the labels 'tape' and 'x'; there are ssd and zone=a"
    ledger.add_worker("b", Resources(2, labels=("gpu",)), PYTHON)
    assert "no worker has all of it" in why("gpu", "ssd")
    ledger = ledger_of(a=Resources(8))
    assert why("ssd").endswith("a machine gets one when it joins: remotely join --label")


def test_an_overcommitted_custom_resource_is_negative() -> None:
    ledger = ledger_of(a=Resources(4))
    ledger.allocate("a", LICENSE, ())
    assert ledger.free("a") == Resources(3, others=(("license", -1.0),))
    ledger.release("a", LICENSE, ())
    assert ledger.free("a") == Resources(4)


def test_the_reason_names_a_custom_resource_that_is_too_scarce() -> None:
    ledger = ledger_of(a=Resources(8, others=(("license", 1.0),)), b=Resources(2))
    why = reason(ledger, Resources(1, others=(("license", 2.0), ("robot", 1.0))))
    assert "2 license where the largest worker has 1" in why
    assert "1 robot where the largest worker has 0" in why
    assert "CPU" not in why
    why = reason(ledger, Resources(9, others=(("license", 1.0),)))
    assert why == "it asks for 9 CPUs where the largest worker has 8"
    assert "0.001 robot" in reason(ledger, Resources(1, others=(("robot", 0.001),)))


def test_a_request_for_some_workers_ignores_the_others() -> None:
    ledger = ledger_of(a=Resources(1), b=Resources(2), c=Resources(64))
    ledger.add_worker("old", Resources(99), "3.10")
    some = ["a", "b", "old", "gone"]
    placed = [ledger.place(Resources(1), PYTHON, some) for _ in range(4)]
    assert placed == [Placement("b", ()), Placement("a", ()), Placement("b", ()), None]
    assert ledger.place(Resources(4), PYTHON, some) is None
    why = ledger.why_never(Resources(4), PYTHON, some)
    assert why == "it asks for 4 CPUs where the largest worker has 2"
    ledger.close("b", WhyClosed.AWAY)
    ledger.release("b", Resources(1), ())
    assert ledger.place(Resources(1), PYTHON, some) is None


# --- copies -------------------------------------------------------------------------------------


def test_copies_are_counted_by_the_scarcest_resource() -> None:
    ledger = ledger_of(a=Resources(4, 2, 8 * GIB), b=Resources(2, 1, GIB), c=Resources(1))
    assert ledger.copies(Resources(1), PYTHON, 100) == 7
    assert ledger.copies(Resources(1), PYTHON, 5) == 5
    assert ledger.copies(Resources(1, 1), PYTHON, 100) == 3
    assert ledger.copies(Resources(1, 2), PYTHON, 100) == 1
    assert ledger.copies(Resources(0.1, 0.3), PYTHON, 100) == 9
    assert ledger.copies(Resources(0, 0, 3 * GIB), PYTHON, 100) == 2
    assert ledger.copies(Resources(0), PYTHON, 100) == 100
    assert ledger.copies(LICENSE, PYTHON, 100) == 0
    assert ledger.copies(Resources(1), "3.10", 100) == 0
    assert ledger.copies(Resources(1), PYTHON, 100, ["b", "c", "gone"]) == 3


def test_copies_in_all_ignore_allocations_and_absence() -> None:
    ledger = ledger_of(a=Resources(4, 1), b=Resources(2))
    ledger.allocate("a", Resources(3, 0.5), (0,))
    ledger.close("b", WhyClosed.AWAY)
    assert ledger.copies(Resources(1), PYTHON, 100) == 1
    assert ledger.copies(Resources(0, 0.25), PYTHON, 100) == 2
    assert ledger.copies_in_all(Resources(1), PYTHON, 100) == 6
    assert ledger.copies_in_all(Resources(0, 0.25), PYTHON, 100) == 4
    assert ledger.copies_in_all(Resources(1), PYTHON, 5) == 5
    assert ledger.copies_in_all(Resources(1), PYTHON, 100, ["b"]) == 2
    ledger.allocate("a", Resources(9), ())
    assert ledger.copies(Resources(1), PYTHON, 100) == 0


# --- requests that never fit --------------------------------------------------------------------


def reason(ledger: Ledger, asked: Resources, python: str = PYTHON) -> str:
    assert ledger.place(asked, python) is None
    why = ledger.why_never(asked, python)
    assert why is not None
    return why


def test_the_reason_names_the_request_and_the_largest_worker() -> None:
    ledger = ledger_of(a=Resources(2, 0, 4 * GIB), b=Resources(8, 1, 2 * GIB))
    why = reason(ledger, Resources(16, 4, 8 * GIB))
    assert "16 CPUs where the largest worker has 8" in why
    assert "4 GPUs where the largest worker has 1" in why
    assert "8 GiB where the largest worker has 4 GiB" in why


def test_the_reason_omits_sufficient_resources() -> None:
    why = reason(ledger_of(a=Resources(2, 0, GIB)), Resources(1, 1))
    assert "1 GPU where the largest worker has 0" in why
    assert "CPU" not in why
    assert "GiB" not in why


def test_the_reason_says_if_no_worker_has_everything() -> None:
    ledger = ledger_of(cpus=Resources(8), gpus=Resources(1, 2))
    why = reason(ledger, Resources(8, 2))
    assert "8 CPUs and 2 GPUs" in why
    assert "no worker has all of it; the largest has 8 CPUs" in why


def test_the_reason_names_the_other_pythons() -> None:
    ledger = Ledger()
    ledger.add_worker("a", Resources(4), "3.9")
    ledger.add_worker("b", Resources(4), "3.12")
    assert "no worker runs Python 3.11: they run 3.9 and 3.12" in reason(ledger, Resources(1))


def test_the_reason_accepts_any_python_version_of_a_worker() -> None:
    ledger = ledger_of(a=Resources(cpus=8))
    ledger.add_worker("b", Resources(cpus=8), "3.²")
    assert "they run 3.² and 3.11" in reason(ledger, Resources(cpus=2), "3.12")


def test_the_reason_names_a_python_with_enough_resources() -> None:
    ledger = ledger_of(a=Resources(2))
    ledger.add_worker("big", Resources(64), "3.12")
    assert "Python 3.12 has it" in reason(ledger, Resources(16))


def test_without_workers_the_reason_says_so() -> None:
    assert "no machine has joined" in reason(Ledger(), Resources(1))


# --- adopted actors -----------------------------------------------------------------------------


def test_an_adopted_actor_is_allocated() -> None:
    ledger = ledger_of(a=Resources(4, 4, 8 * GIB))
    ledger.allocate("a", Resources(3, 2, GIB), (1, 3))
    assert ledger.free("a") == Resources(1, 2, 7 * GIB)
    assert placed_by(ledger, Resources(1, 2)).gpu_ids == (0, 2)
    ledger.allocate("a", Resources(5), ())
    assert ledger.free("a").cpus == -5
    assert ledger.place(Resources(0.1), PYTHON) is None


def test_releasing_on_a_removed_worker_is_no_error() -> None:
    ledger = ledger_of(a=Resources(2), b=Resources(2))
    placed = placed_by(ledger, Resources(1))
    ledger.remove_worker("a")
    ledger.release("a", Resources(1), placed.gpu_ids)
    ledger.remove_worker("a")
    assert placed_by(ledger, Resources(1)).worker == "b"


workers = st.lists(
    st.builds(
        Resources,
        st.sampled_from([0, 0.5, 1, 3, 8, 16.3]),
        st.integers(0, 4),
        st.integers(0, 8).map(lambda n: n * GIB),
        st.sampled_from([(), (("license", 1.0),), (("license", 2.5),)]),
        st.sampled_from([(), ("ssd",), ("ssd", "zone=a")]),
    ),
    min_size=1,
    max_size=4,
)
requests = st.builds(
    Resources,
    st.sampled_from([0, 0.1, 0.25, 1 / 3, 1, 2, 8]),
    st.sampled_from([0, 0, 0.1, 0.5, 0.7, 1, 2]),
    st.integers(0, 3).map(lambda n: n * GIB),
    st.sampled_from([(), (), (("license", 0.5),), (("license", 1.0),)]),
    st.sampled_from([(), (), (), ("ssd",), ("zone=a",)]),
)
events = st.lists(st.tuples(st.booleans(), requests, st.integers(0, 99)), max_size=50)


Held = list[tuple[Resources, tuple[int, ...]]]  # requests on one worker, with their GPUs


def left_of_gpus(total: Resources, held: Held) -> list[float]:
    """Return what is free of each GPU."""
    left = [1000] * int(total.gpus)
    for asked, gpu_ids in held:
        for gpu in gpu_ids:
            left[gpu] -= min(1000, round(1000 * asked.gpus))
    return [count / 1000 for count in left]


def has_room(asked: Resources, total: Resources, held: Held) -> bool:
    free = total - sum((each for each, _ in held), Resources())
    free = msgspec.structs.replace(free, labels=total.labels)  # which nobody uses up
    left = left_of_gpus(total, held)
    if asked.gpus < 1:
        has_gpus = not asked.gpus or max(left, default=0) >= asked.gpus
    else:
        has_gpus = left.count(1) >= asked.gpus
    return has_gpus and msgspec.structs.replace(asked, gpus=0).fits(free)


def copies_by_trying(asked: Resources, total: Resources, held: Held, at_most: int) -> int:
    """Return how many more fit, by placing one after the other."""
    held = list(held)
    for count in range(at_most):
        if not has_room(asked, total, held):
            return count
        left = left_of_gpus(total, held)
        if asked.gpus < 1:
            gpus = [gpu for gpu, free in enumerate(left) if asked.gpus and free >= asked.gpus][:1]
        else:
            gpus = [gpu for gpu, free in enumerate(left) if free == 1][: int(asked.gpus)]
        held.append((asked, tuple(gpus)))
    return at_most


@hypothesis.given(workers, events)
def test_the_ledger_never_allocates_more_than_there_is(
    totals: list[Resources], events: list[tuple[bool, Resources, int]]
) -> None:
    ledger = ledger_of(**{f"w{i}": total for i, total in enumerate(totals)})
    placed: list[tuple[Resources, Placement]] = []
    for ends, asked, which in events:
        if ends and placed:
            asked, where = placed.pop(which % len(placed))
            ledger.release(where.worker, asked, where.gpu_ids)
            continue
        held_by = [
            [(a, w.gpu_ids) for a, w in placed if w.worker == f"w{i}"] for i in range(len(totals))
        ]
        room = [has_room(asked, t, held) for t, held in zip(totals, held_by, strict=True)]
        copies = [
            copies_by_trying(asked, t, held, 9) for t, held in zip(totals, held_by, strict=True)
        ]
        assert ledger.copies(asked, PYTHON, 9) == min(9, sum(copies))
        in_all = sum(copies_by_trying(asked, total, [], 9) for total in totals)
        assert ledger.copies_in_all(asked, PYTHON, 9) == min(9, in_all)
        is_possible = any(asked.fits(total) for total in totals)
        assert (ledger.why_never(asked, PYTHON) is None) == is_possible
        if found := ledger.place(asked, PYTHON):
            assert len(found.gpu_ids) == math.ceil(asked.gpus)
            placed.append((asked, found))
        else:
            assert not any(room)
        for i, total in enumerate(totals):
            here = [(a, w) for a, w in placed if w.worker == f"w{i}"]
            held = sum((a for a, _ in here), Resources())
            assert held.fits(total)
            assert ledger.free(f"w{i}") == total - held
            assert all(left >= 0 for left in left_of_gpus(total, [(a, w.gpu_ids) for a, w in here]))
    for asked, where in placed:
        ledger.release(where.worker, asked, where.gpu_ids)
    assert [ledger.free(f"w{i}") for i in range(len(totals))] == [t + Resources() for t in totals]


joins = st.tuples(workers.map(lambda sizes: sizes[0]), st.sampled_from(["3.10", PYTHON]))
changes = st.lists(st.one_of(requests, joins, st.integers(0, 99)), max_size=60)


@hypothesis.given(changes, st.sets(st.integers(0, 59)))
def test_the_choice_equals_that_of_a_linear_search(
    changes: list[Resources | tuple[Resources, str] | int], packing: set[int]
) -> None:
    ledger = Ledger()
    there: dict[str, tuple[Resources, str]] = {}
    placed: list[tuple[Resources, Placement]] = []
    for number, change in enumerate(changes):
        if isinstance(change, tuple):  # few names, so that some workers are reset
            name = f"w{number % 7}"
            placed = [(asked, where) for asked, where in placed if where.worker != name]
            there[name] = change
            ledger.add_worker(name, *change)
        elif isinstance(change, int) and change % 3 and placed:
            asked, where = placed.pop(change % len(placed))
            ledger.release(where.worker, asked, where.gpu_ids)
        elif isinstance(change, int) and there:
            name = sorted(there)[change % len(there)]
            del there[name]
            ledger.remove_worker(name)
        elif isinstance(change, Resources):
            alike = [name for name, (_, python) in there.items() if python == PYTHON]
            frees = {name: ledger.free(name) for name in alike}
            held = {n: [(a, w.gpu_ids) for a, w in placed if w.worker == n] for n in alike}
            fitting = [name for name in alike if has_room(change, there[name][0], held[name])]
            assert fitting == [name for name in there if ledger.has_room(name, change, PYTHON)]
            answer = ledger.place(change, PYTHON, packs=number in packing)
            if fitting:
                assert isinstance(answer, Placement)
                ranks = {
                    name: (-frees[name].cpus, len(held[name]), name)
                    if change.cpus
                    else (len(held[name]) / (there[name][0].cpus or 0.001), -frees[name].cpus, name)
                    for name in fitting
                }
                chosen = (max if number in packing else min)(ranks.values())
                assert answer.worker == chosen[2]
                placed.append((change, answer))
            else:
                assert answer is None
        assert ledger.pythons == sorted({python for _, python in there.values()})
        assert ledger.cpus == sum((total for total, _ in there.values()), Resources()).cpus
        if there:
            frees_of_all = [ledger.free(name) for name in there]
            most = max(free.amount_of("license") for free in frees_of_all)
            everything = Resources(1, 1, 1, (("license", 1.0),))
            assert ledger.most_free(everything) == Resources(
                max(free.cpus for free in frees_of_all),
                max(free.gpus for free in frees_of_all),
                max(free.memory for free in frees_of_all),
                (("license", most),),
            )


# --- workers of one machine -----------------------------------------------------------------------


def machine_of(*workers: tuple[Resources, str], memory: int = 24 * GIB) -> Ledger:
    """Return a ledger of the workers a, b, ... of one machine, each with the ids of its GPUs."""
    ledger = Ledger()
    for name, (total, gpus) in zip("abc", workers, strict=False):
        ledger.add_worker(name, total, PYTHON, Shares("pool", memory, tuple(gpus)))
    return ledger


def count_placed(ledger: Ledger, asked: Resources) -> int:
    count = 0
    while ledger.place(asked, PYTHON):
        count += 1
    return count


def test_workers_of_one_machine_give_its_memory_and_its_gpus_away_once() -> None:
    size = Resources(4, 2, 24 * GIB)
    for asked, fits in (
        (Resources(1, 0, 20 * GIB), 1),
        (Resources(1, 0, 8 * GIB), 3),
        (Resources(1, 1), 2),
        (Resources(1, 0.5), 4),
        (Resources(1, 2), 1),
        (Resources(1), 8),
    ):
        ledger = machine_of((size, "01"), (size, "01"))
        assert ledger.copies(asked, PYTHON, 99) == fits
        assert ledger.copies_in_all(asked, PYTHON, 99) == fits
        assert count_placed(ledger, asked) == fits
        assert ledger.copies(asked, PYTHON, 99) == 0


def test_a_worker_that_is_told_to_offer_a_part_keeps_that_beside_others() -> None:
    part = Resources(4, 1, 4 * GIB)
    ledger = machine_of((part, "0"), (part, "1"))
    assert count_placed(ledger, Resources(1, 1, 3 * GIB)) == 2
    assert [ledger.free(name).memory for name in "ab"] == [GIB, GIB]


held_by_three = st.lists(
    st.one_of(requests, st.tuples(st.sampled_from("abc"), st.booleans())), max_size=40
)


@hypothesis.given(held_by_three)
def test_what_is_free_on_workers_of_one_machine_is_what_all_have_left(
    changes: list[Resources | tuple[str, bool]],
) -> None:
    offers = {"a": "01", "b": "12", "c": "02"}
    limit = 20 * GIB
    ledger, placed = Ledger(), list[tuple[Resources, Placement]]()
    there: dict[str, Resources] = {}
    for change in changes:
        if isinstance(change, Resources):
            if found := ledger.place(change, PYTHON):
                placed.append((change, found))
        else:
            name, joins = change
            placed = [each for each in placed if each[1].worker != name]
            if joins:
                there[name] = Resources(8, 2, 16 * GIB, (("license", 4.0),))
                ledger.add_worker(name, there[name], PYTHON, Shares("p", limit, (*offers[name],)))
            else:
                there.pop(name, None)
                ledger.remove_worker(name)
        left = limit - sum(asked.memory for asked, _ in placed)
        used: Counter[str] = Counter()
        for asked, where in placed:
            used.update({offers[where.worker][g]: min(1.0, asked.gpus) for g in where.gpu_ids})
        assert all(amount <= 1.0001 for amount in used.values())
        for name, total in there.items():
            own = sum(asked.memory for asked, where in placed if where.worker == name)
            free = ledger.free(name)
            assert free.memory == min(total.memory - own, left)
            assert free.gpus == pytest.approx(sum(1 - used[gpu] for gpu in offers[name]))
    for asked, where in placed:
        ledger.release(where.worker, asked, where.gpu_ids)
    assert [ledger.free(name) for name in there] == list(there.values())


def test_workers_that_share_something_and_others_are_counted_together() -> None:
    """One machine: two workers offer the same GPUs, and the third one without an id."""
    ledger = Ledger()
    ledger.add_worker("a", Resources(8, 2, 24 * GIB), PYTHON, Shares("m", 24 * GIB, ("0", "1")))
    ledger.add_worker("b", Resources(8, 2, 24 * GIB), PYTHON, Shares("m", 24 * GIB, ("0", "1")))
    ledger.add_worker("c", Resources(8, 1, 24 * GIB), PYTHON, Shares("m", 24 * GIB))
    for asked, fits in (
        (Resources(1, 1), 3),
        (Resources(1, 0.5), 6),
        (Resources(1, 2), 1),
        (Resources(1, 0, 5 * GIB), 4),
        (Resources(0, 0, 1), 99),
    ):
        assert ledger.copies(asked, PYTHON, 99) == fits
    ledger.allocate("a", Resources(0, 0.4), (1,))
    assert ledger.copies(Resources(0, 0.5), PYTHON, 99) == 5
    ledger.allocate("c", Resources(0, 0, 24 * GIB), ())
    assert ledger.copies(Resources(0, 0, 1), PYTHON, 99) == 0


def test_memory_that_several_workers_share_is_as_much_as_the_largest_of_them_says() -> None:
    ledger = Ledger()
    for name, memory in (("a", 24 * GIB), ("b", 62 * GIB)):
        ledger.add_worker(name, Resources(8, 0, memory), PYTHON, Shares("pool", memory))
    asked = Resources(1, 0, 20 * GIB)
    assert ledger.copies(asked, PYTHON, 9) == 3
    assert ledger.copies_in_all(asked, PYTHON, 9) == 3
    ledger.allocate("b", asked, ())
    ledger.close("b", WhyClosed.DRAINING)  # its actors still hold what they hold
    assert ledger.copies(asked, PYTHON, 9) == 1
    ledger.allocate("b", asked, ())
    ledger.allocate("b", asked, ())
    assert ledger.copies(asked, PYTHON, 9) == 0


def test_room_for_a_gang_is_reserved_on_as_many_machines_as_it_needs() -> None:
    ledger = Ledger()
    for name, machine in (("a", "m"), ("b", "m"), ("c", "n"), ("d", "n")):
        ledger.add_worker(name, Resources(8, 0, 62 * GIB), PYTHON, Shares(machine, 62 * GIB))
    asked = Resources(1, 0, 40 * GIB)
    ledger.reserve(asked, PYTHON, 2, None, set(), set())
    assert ledger.reserved_on == {"a", "c"}
    assert not any(ledger.shortfall)
    ledger.release_reservation()
    ledger.reserve(asked, PYTHON, 3, None, set(), set())
    assert not ledger.reserved


@hypothesis.given(held_by_three, requests, st.integers(1, 4))
def test_what_is_reserved_fits_if_all_else_ends(
    changes: list[Resources | tuple[str, bool]], asked: Resources, count: int
) -> None:
    offers, limit = {"a": "01", "b": "12", "c": "02", "d": "3"}, 20 * GIB
    ledger, there = Ledger(), dict[str, Resources]()
    for change in changes:
        if isinstance(change, Resources):
            ledger.place(change, PYTHON)
        elif change[0] not in there:
            name = change[0] if change[1] else "d"
            there[name] = Resources(2, len(offers[name]), 16 * GIB, (("license", 1.0),))
            pool = "q" if name == "d" else "p"
            ledger.add_worker(name, there[name], PYTHON, Shares(pool, limit, (*offers[name],)))
    before = {name: ledger.free(name) for name in there}
    ledger.reserve(asked, PYTHON, count, None, set(), set())
    fits = ledger.copies_in_all(asked, PYTHON, count) == count
    assert len(ledger.reserved) == (count if fits else 0)
    used: Counter[str] = Counter()
    for where, _ in ledger.reserved:
        used.update({offers[where.worker][gpu]: min(1.0, asked.gpus) for gpu in where.gpu_ids})
        assert len(where.gpu_ids) == math.ceil(asked.gpus)
    assert all(amount <= 1.0001 for amount in used.values())
    for names in ("abc", "d"):
        here = sum(where.worker in names for where, _ in ledger.reserved)
        assert here * asked.memory <= limit
    for name, total in there.items():
        here = sum(where.worker == name for where, _ in ledger.reserved)
        whole = msgspec.structs.replace(asked, gpus=0)
        assert sum([whole] * here, Resources()).fits(total)
    ledger.release_reservation()
    assert {name: ledger.free(name) for name in there} == before


def test_placing_stays_fast_on_a_thousand_workers() -> None:
    ledger = ledger_of(**{f"{i:016x}": Resources(32, 8, 256 * GIB) for i in range(1000)})
    for i in range(1000):
        ledger.allocate(f"{i:016x}", Resources(10, 0, 100 * GIB), ())  # twenty actors each
    started = time.process_time()
    for _ in range(200):
        assert isinstance(ledger.place(Resources(0.5, 0, GIB), PYTHON), Placement)
    assert (time.process_time() - started) / 200 < 0.0003, "5 us here; sixty times that is a bug"


def test_reserving_for_a_gang_costs_the_same_per_member_on_a_large_cluster() -> None:
    def steps_to_keep(workers: int) -> int:
        ledger = ledger_of(**{f"{n:04}": Resources(2) for n in range(workers)})
        names = frozenset[str]()
        count = 2 * workers
        found = steps(lambda: ledger.reserve(Resources(1), PYTHON, count, None, names, names))
        assert len(ledger.reserved) == count
        return found

    assert steps_to_keep(200) < 11 * steps_to_keep(20)


def test_a_worker_on_trial_is_chosen_although_others_have_as_much_room() -> None:
    """Otherwise one that is well again would stay unused where the others suffice."""
    ledger = Ledger()
    for name in ("a", "b"):
        ledger.add_worker(name, Resources(4), PYTHON)
    ledger.close("b", WhyClosed.SICK)
    ledger.try_again("b")
    for among in (None, {"a", "b"}):
        placed = ledger.place(Resources(1), PYTHON, among)
        assert placed is not None
        assert placed.worker == ("b" if among is None else "a")  # one actor is the trial

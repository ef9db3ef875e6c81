"""Messages about a lack of room: the request, what is free, the holders, and advice."""

from remotely.master.shortage import Holder, advice, why_never_together, why_waiting
from remotely.protocol.resources import Resources

ONE = Resources(1)
NONE = Resources(0)


def test_a_wait_names_the_request_the_free_resources_and_their_holders() -> None:
    holders = [Holder("Counter-1", ONE, ""), Holder("Big-1", Resources(0.5, 1), "of pid 7 on m1")]
    why = why_waiting("Counter", ONE, NONE, holders, False, Resources(2))
    assert why.startswith(
        "Counter asks for 1 CPU; the most free on one machine is 0 CPUs. Counter-1 (1 CPU) and "
        "Big-1 (0.5 CPUs and 1 GPU, of pid 7 on m1) have the rest. Close an actor"
    )


def test_only_a_few_of_many_holders_are_named() -> None:
    holders = [Holder(f"A-{n}", ONE, "") for n in (1, 2, 3)]
    why = why_waiting("A", ONE, NONE, holders, True, None)
    assert "A-1 (1 CPU), A-2 (1 CPU), A-3 (1 CPU) and others have the rest" in why
    assert "A-1 (1 CPU) has the rest" in why_waiting("A", ONE, NONE, holders[:1], False, None)


def test_the_advice_fits_the_kind_of_cluster() -> None:
    """An embedded cluster may have more CPUs than cores; a machine can join a started one."""
    own = why_waiting("A", ONE, NONE, [], False, Resources(2))
    assert "remotely.connect(cpus=3)" in own
    assert "remotely join" not in own
    started = why_waiting("A", ONE, NONE, [], False, None)
    assert "remotely join" in started
    assert "connect(" not in started


def test_the_advised_cpus_include_actors_that_were_not_counted() -> None:
    """Actors that name no CPUs hold none, until `connect` names a number."""
    waits = why_waiting("A", ONE, NONE, [], False, Resources(2), uncounted=8)
    assert "remotely.connect(cpus=11)" in waits
    assert "connect(cpus=11)" in why_never_together("A", 3, ONE, 2, Resources(2), uncounted=8)
    assert "connect(cpus=13)" in advice(Resources(4.5), Resources(4), uncounted=8)


def test_the_advice_names_rebound_names_and_notebook_outputs() -> None:
    why = why_waiting("A", ONE, NONE, [], False, None)
    assert "`a = A()` makes the new actor before it drops the old one" in why
    assert "Out[n]" in why


def test_gpus_and_memory_are_shown_if_requested() -> None:
    asked = Resources(1, 1, 1 << 30)
    why = why_waiting("A", asked, Resources(4, 0, 1 << 29), [], False, Resources(4, 1, 1 << 30))
    assert "asks for 1 CPU, 1 GPU and 1 GiB; the most free on one machine is" in why
    assert "4 CPUs and 512 MiB" in why
    assert "connect(" not in why  # more CPUs would not help


def test_a_gang_too_large_for_an_embedded_cluster_gets_the_needed_cpus() -> None:
    why = why_never_together("Counter", 8, ONE, 2, Resources(2, 0, 1 << 30))
    assert why.startswith("8 actors of Counter ask for 8 CPUs; this cluster has 2 CPUs in all. ")
    assert "remotely.connect(cpus=8)" in why
    licensed = Resources(1, 0.5, others=(("license", 1.0),))
    why = why_never_together("Counter", 3, licensed, 1, Resources(8, 1, 5, (("license", 1.0),)))
    assert "ask for 3 CPUs, 1.5 GPUs and 3 license; this cluster has 8 CPUs, 1 GPU and 1 lic" in why
    assert "connect(cpus=" not in why


def test_a_wait_for_a_label_names_what_is_free_with_it() -> None:
    asked = Resources(1, labels=("ssd",))
    why = why_waiting("Counter", asked, Resources(0.5), [], False, None)
    assert why.startswith(
        "Counter asks for 1 CPU and label ssd; the most free on one machine with that label is "
        "0.5 CPUs"
    )


def test_a_label_that_an_embedded_cluster_lacks_is_given_by_connect() -> None:
    text = advice(Resources(1, labels=("ssd", "zone=a")), Resources(2, labels=("ssd",)))
    assert text.startswith("remotely.connect(labels=['zone=a']), before the first actor")


def test_a_gang_too_large_for_a_started_cluster_gets_the_number_that_fits() -> None:
    why = why_never_together("Counter", 8, ONE, 6, None)
    assert why.startswith(
        "8 actors of Counter live at once, each with 1 CPU; all machines together have room for 6"
    )
    assert "join more machines first" in why


def test_a_started_cluster_short_of_cpus_is_advised_to_share_cores() -> None:
    """On an embedded cluster they share cores by default; the same script may run here."""
    group = why_never_together("Counter", 8, ONE, 2, None)
    assert "@remotely.remote_class(cpus=0)" in group
    assert "remotely start --cpus 8" in group
    assert "remote_class(cpus=0)" in why_waiting("Counter", ONE, NONE, [], False, None)


def test_more_cpus_are_not_advised_if_something_else_is_short() -> None:
    asked = Resources(1, 1)
    assert "cpus=0" not in why_never_together("Counter", 8, asked, 2, None)
    assert "cpus=0" not in why_waiting("Counter", asked, Resources(1), [], False, None)


def test_a_waiting_gang_is_described_as_a_whole() -> None:
    why = why_waiting("A", ONE, Resources(1), [], False, Resources(4), 4)
    assert why.startswith("4 actors of A, placed together, ask for 1 CPU each; the most")
    assert "connect(cpus=7)" in why


def test_overcommitted_resources_are_shown_as_zero() -> None:
    asked = Resources(1, 1, 5, (("license", 2.0),))
    free = Resources(-1, -1, -5, (("license", -1.0),))
    assert "is 0 CPUs and 0 license." in why_waiting("A", asked, free, [], False, None)


def test_missing_gpus_do_not_advise_more_cpus() -> None:
    assert "connect(cpus=" not in advice(Resources(1, 2), Resources(4))
    assert "connect(cpus=5)" in advice(Resources(4.5), Resources(4))

import pytest

from remotely_rl import sync
from tests.remotely_rl.sync.quadratic import number, play, round_robin, start


def test_a_step_is_of_the_first_and_the_late_are_dropped_and_go_on() -> None:
    rule = sync.make("backup_workers:backups=1", start(), 3, sync.sgd(0.1))
    rule.push(2, start() * 4, 0)
    reply = rule.push(0, start() * 2, 0)

    assert [one.client for one in reply.released] == [2]
    assert float(rule.parameters) == pytest.approx(0.7)

    late = rule.push(1, start() * 100, 0)

    assert (late.accepted.value, late.staleness, late.waits) == ("dropped", 1, False)
    assert number(late.parameters) == pytest.approx(0.7)
    assert late.version == rule.version == 1


def test_without_backups_it_is_synchronous() -> None:
    order = round_robin(3, 30)

    assert play("backup_workers:backups=0", 3, order).w == play("synchronous", 3, order).w


def test_with_too_few_alive_the_step_is_of_all_who_live() -> None:
    rule = sync.make("backup_workers:backups=1", start(), 3, sync.sgd(0.1))
    rule.push(0, start(), 0)
    rule.leave(1)

    assert [one.client for one in rule.leave(2)] == [0]
    assert rule.version == 1

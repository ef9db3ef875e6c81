"""Tests of the specs of rules."""

import pytest

from remotely_rl import sync
from remotely_rl.errors import SyncError
from tests.remotely_rl.sync.quadratic import start


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("semiasync", "no rule is called 'semiasync', did you mean 'semi_async'"),
        ("zzz", "no rule is called 'zzz'; there is synchronous, "),
        ("semi_async:m=4", "there is no setting 'm'"),
        ("semi_async:counte=4", "there is no setting 'counte', did you mean 'counted'"),
        ("semi_async:n", "a rule is NAME:SETTING=VALUE,..., not 'semi_async:n'"),
        ("semi_async:n=four", "n must be of type int, not 'four'"),
        ("delay_compensated:adaptive=perhaps", "adaptive must be of type bool, not 'perhaps'"),
        ("soft_sync:at_zero=never", "at_zero must be max1 or plus1 or none, not 'never'"),
        ("backup_workers:backups=2", "the clients, 2, not 2: no gradient would count"),
    ],
)
def test_a_bad_spec_is_refused_with_a_hint(spec: str, message: str) -> None:
    with pytest.raises(SyncError, match=message):
        sync.make(spec, start(), 2)

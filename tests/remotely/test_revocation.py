"""A revoked key: no new connections, and no more calls on existing ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import remotely
from remotely.errors import NotAllowed
from remotely.transport import key_files
from tests.clusters import Started, wait_until
from tests.remotely.counter import Counter

SCRIPT = """
import sys, time
import remotely
from tests.remotely.counter import Counter
remotely.connect(sys.argv[1], key=sys.argv[2])
shared, own = remotely.get_actor("shared"), Counter()
print("ready", flush=True)
def end_of(counter):
    while True:
        try:
            counter.add()
            time.sleep(0.01)
        except remotely.RemotelyError as error:
            if not getattr(error, "may_have_run", False):  # else it was already running
                return type(error).__name__
print(end_of(shared), end_of(own), flush=True)
try:
    Counter()
except remotely.RemotelyError as error:
    print(type(error).__name__, flush=True)
"""


def test_the_holder_of_a_revoked_key_is_refused_everywhere_and_no_other_peer(
    started: Started, nothing_left: None, tmp_path: Path
) -> None:
    remotely.connect(started.address, key=started.key)
    shared = remotely.options(Counter, name="shared")()
    ada = tmp_path / "ada.key"
    started.run(started.home, "keys", "add", "client", str(ada))
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, started.address, str(ada)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "ready\n"
    wait_until(lambda: shared.count > 1, "ada's calls")
    public = key_files.load_member(ada).pair.public.decode()
    assert public in started.run(started.home, "keys", "list")

    said = started.run(started.home, "keys", "revoke", str(ada))

    assert public in said
    assert public not in started.run(started.home, "keys", "list")
    out, _ = script.communicate(timeout=40)
    assert out.split() == ["NotAllowed"] * 3  # shared, own, a new one
    before = shared.count
    assert shared.add() == before + 1
    remotely.shutdown()
    with pytest.raises(
        NotAllowed, match=rf"this key \({ada}\): it was revoked, .* keys add client"
    ):
        remotely.connect(started.address, key=ada)

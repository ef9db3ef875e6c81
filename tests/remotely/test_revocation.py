"""A revoked key: no new connections, and no more calls on existing ones."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import remotely
from remotely.api.verbs import found_handle
from remotely.calling.engine import CallEngine
from remotely.client.carrier import client_of
from remotely.errors import NotAllowed
from remotely.transport import key_files, keys
from tests.clusters import SCRIPTS, Started, free_port, wait_until
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
    assert started.address in said  # who confirms it
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


def test_of_thousands_of_keys_each_is_refused_once_its_revocation_is_confirmed(
    started: Started, nothing_left: None, tmp_path: Path
) -> None:
    """They are more than one message to an actor can list."""
    folder = started.home / "keys"
    master = key_files.load_master(folder / "master.key")
    others = tuple(keys.fresh_pair().public for _ in range(8_000))
    listed = master.listing("client", (*others, *master.client_keys))
    # Written as by a tool that knows nothing of remotely: the master sees it.
    (folder / "master.key").write_bytes(msgspec.json.encode(listed.to_dict()))
    remotely.connect(started.address, key=started.key)
    shared = remotely.options(Counter, name="shared")()
    files = [tmp_path / f"{name}.key" for name in ("ada", "bob")]
    for file in files:
        started.run(started.home, "keys", "add", "client", str(file))
    holders = [CallEngine(client_of(started.address, file)) for file in files]
    theirs = [found_handle(holder.find("shared")) for holder in holders]
    for number, handle in enumerate(theirs):
        assert handle.add() == number + 1

    for file, handle in zip(files, theirs, strict=True):
        started.run(started.home, "keys", "revoke", str(file))
        with pytest.raises(NotAllowed):
            handle.add()

    assert shared.add() == 3
    del theirs, handle
    for holder in holders:
        holder.shutdown()


def test_a_revocation_that_nobody_confirms_fails_but_the_key_is_off_the_list(
    started: Started, tmp_path: Path
) -> None:
    ada = tmp_path / "ada.key"
    started.run(started.home, "keys", "add", "client", str(ada))
    revoke = [str(SCRIPTS / "remotely"), "keys", "revoke", str(ada)]
    home = {**os.environ, "REMOTELY_HOME": str(started.home)}
    nowhere = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [*revoke, "--master", nowhere], env=home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is not on the list any more, but" in done.stderr
    assert nowhere in done.stderr
    assert started.address in started.run(started.home, "keys", "revoke", str(ada))  # once more

"""The command `remotely dashboard`, on a cluster: from its link to Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

import remotely
from remotely.dashboard.server import Where, serve
from remotely.errors import RemotelyError
from tests.clusters import SCRIPTS, Here, wait_until

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")


@remotely.remote_class(cpus=0.1)
class Talker:
    def say(self, text: str) -> None:
        print(text, flush=True)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start(home: Path, *words: str) -> "subprocess.Popen[str]":
        command = [str(SCRIPTS / "remotely"), "dashboard", *words, "--listen", "127.0.0.1:0"]
        environment = {**os.environ, "REMOTELY_HOME": str(home)}
        environment.pop("REMOTELY_KEY", None)
        pipe = subprocess.PIPE
        processes.append(
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_link_shows_the_cluster_and_ctrl_c_ends_only_the_dashboard(
    started_here: Here, here: None, start: Start
) -> None:
    talker = remotely.options(Talker, name="talker")()
    talker.say("<b>what it says</b>")
    process = start(started_here.home, started_here.address)
    assert process.stdout is not None
    found = re.search(r"http://(\S+)/open\?link=\S+", process.stdout.readline())
    assert found is not None
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        browser.open(f"http://{found[1]}/api/actors")
    refused.value.close()
    assert browser.open(found[0]).status == 200

    def get(path: str) -> dict[str, object]:
        answer: dict[str, object] = json.load(browser.open(f"http://{found[1]}{path}"))
        return answer

    page = json.load(browser.open(f"http://{found[1]}/api/actors"))
    (row,) = page["rows"]
    assert (row["name"], row["class"]) == ("talker", "Talker")
    log = f"/api/actors/{row['actor']}/log"
    wait_until(lambda: get(log)["text"] == "<b>what it says</b>\n", "what it said is in the log")
    assert [client.actors for client in remotely.status().clients] == [1]  # no dashboard there

    stream = browser.open(f"http://{found[1]}/api/events")
    assert json.loads(stream.readline().removeprefix(b"data: "))["actors"] == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    stream.close()
    talker.say("still here")


def test_the_key_of_a_client_is_refused(started_here: Here, start: Start) -> None:
    process = start(started_here.home, started_here.address, "--key", str(started_here.key))
    _, error = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "is a client's key; a viewer needs viewer.key" in error


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (Where("0.0.0.0:0"), "other machines can reach 0.0.0.0, so the dashboard needs TLS"),
        (Where("127.0.0.1:0", certificate=Path("a")), "belong together"),
        (
            Where("127.0.0.1:0", certificate=Path("/no/a"), private_key=Path("/no/b")),
            "there is no file /no/a",
        ),
        (Where("127.0.0.1:0", metrics_token=Path("/no/token")), "cannot read the token"),
        (Where("203.0.113.7:0", (), None, None), "needs TLS"),
    ],
)
def test_an_unsafe_address_is_refused_before_anything_listens(where: Where, why: str) -> None:
    with pytest.raises(RemotelyError, match=why):
        serve(where, say=lambda text: pytest.fail("it listens"))


@pytest.mark.parametrize("token", ["", "short", "a token with a \x01 in its middle"])
def test_an_invalid_token_is_refused_with_a_command_that_makes_one(
    tmp_path: Path, token: str
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    with pytest.raises(RemotelyError, match="openssl rand"):
        serve(Where("127.0.0.1:0", metrics_token=file))

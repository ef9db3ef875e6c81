"""Starting and stopping a cluster on the machines of a host file, with OpenSSH.

It runs OpenSSH itself, so that the user's configuration, agent and known hosts apply: host keys are
checked, and there are no password prompts.  A machine joins by running `remotely join`; it receives
the key on standard input, not as an argument.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from remotely.errors import RemotelyError
from remotely.machine import folders, pid_file
from remotely.machine.gpus import OfferedResources
from remotely.machine.pid_file import Running
from remotely.ops import cluster
from remotely.ops.cluster import Network
from remotely.ops.host_file import HostFile, JoiningHost
from remotely.protocol.address import join_address

MAX_SESSIONS = 32  # of ssh, at the same time
SSH_CONNECT_S = 5  # for a machine to answer
SESSION_S = 60.0  # for the command there
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_CONNECT_S}")

OF_SSH = (255,)  # the exit code of ssh if ssh itself fails (man 1 ssh)
OF_SHELL = (126, 127)  # of the shell there, if it cannot run the command

# Hints for failures, by exit code and message.  Messages of remotely have hints of their own.
HINTS = (
    (
        OF_SSH,
        r"Host key verification failed|host key is known|IDENTIFICATION HAS CHANGED",
        "connect once by hand, 'ssh {host}', and check the fingerprint of the machine",
    ),
    (
        OF_SSH,
        r"Permission denied",
        "it needs a key without a passphrase, or one in ssh-agent: 'ssh-copy-id {host}'",
    ),
    (
        OF_SSH,
        r"timed out|No route to host|Connection refused|Could not resolve",
        "'ssh {host}' has to work from here",
    ),
    (
        OF_SHELL,
        r"",
        'set the path of remotely there, command = "/path/to/remotely", in the host file',
    ),
)


class JoinOutcome(NamedTuple):
    """The outcome of one machine."""

    host: str
    is_done: bool
    message: str  # one sentence


def up(file: HostFile) -> Iterator[JoinOutcome]:
    """Start the cluster here, unless it runs, and have all machines join; yield each outcome.

    Raises RemotelyError if the cluster cannot be started, or another one runs at its port.
    """
    masters = _masters(file)
    if masters and masters[0].listens != (here := _listening_at(file)):
        raise RemotelyError(
            f"another cluster runs on this machine (its master has pid {masters[0].pid}): it "
            f"listens at {masters[0].listens}, not at {here}. 'remotely stop --port {file.port}' "
            'ends it, or set another port in the host file: address = "HOST:PORT"'
        )
    if not masters:
        announced = (file.master,) if file.listen else ()
        network = Network(file.listen or file.master, announced, file.port_range)
        cluster.start(network, file.port, OfferedResources(file.cpus, file.gpu_choice))
    key = (folders.key_folder() / "worker.key").read_bytes()
    yield from _on_each(file, lambda host: join_line(file, host), key)


def is_up(file: HostFile) -> bool:
    """Return whether the cluster that `up` starts is running here."""
    here = _listening_at(file)
    return any(master.listens == here for master in _masters(file))


def end_here(file: HostFile) -> bool:
    """End the cluster that `up` starts here, and no other one; return whether it was running."""
    ended = cluster.stop(file.port, started=_listening_at(file))
    if alive := [daemon.pid for daemon in ended if daemon.alive]:
        raise RemotelyError(f"pid {', '.join(map(str, alive))} did not end")
    return bool(ended)


def leave(file: HostFile) -> Iterator[JoinOutcome]:
    """Have all machines leave the cluster; yield each outcome."""
    yield from _on_each(file, lambda host: leave_line(file, host), b"")


def join_line(file: HostFile, host: JoiningHost) -> str:
    """Return the shell command by which a machine joins."""
    words = ["join", join_address(file.master, file.port), "--key", "-", "--once"]
    for option, value in (
        ("--cpus", host.cpus),
        ("--gpus", host.gpus),
        ("--host", host.address),
        ("--ports", host.ports or file.ports),
        *(("--announce", name) for name in host.announce),
    ):
        if value is not None:
            words += [option, str(value)]
    return _line(file, host, words)


def leave_line(file: HostFile, host: JoiningHost) -> str:
    """Return the shell command by which a machine leaves this cluster, and no other."""
    return _line(file, host, ["stop", "--joined", join_address(file.master, file.port)])


def _line(file: HostFile, host: JoiningHost, words: list[str]) -> str:
    """Join the user's command, unquoted since it may have a `~` or several words, and `words`."""
    return f"{host.command or file.command} {shlex.join(words)}"


def _listening_at(file: HostFile) -> str:
    return cluster.listening_at(file.listen or file.master, file.port)


def _masters(file: HostFile) -> list[Running]:
    return [daemon for daemon in pid_file.running(file.port) if daemon.role == "master"]


def _on_each(
    file: HostFile, line_for: Callable[[JoiningHost], str], send: bytes
) -> Iterator[JoinOutcome]:
    hosts = file.all_hosts
    with ThreadPoolExecutor(min(MAX_SESSIONS, len(hosts)), thread_name_prefix="ssh") as pool:
        futures = [pool.submit(_at, host.ssh, line_for(host), send) for host in hosts]
        try:
            for future in as_completed(futures):
                yield future.result()
        except KeyboardInterrupt:  # running ssh processes get the signal too; start no others
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _at(host: str, line: str, send: bytes) -> JoinOutcome:
    try:
        done = subprocess.run(
            [*SSH, "--", host, line],
            input=send,
            capture_output=True,
            timeout=SESSION_S,
            check=False,
        )
    except FileNotFoundError:
        raise RemotelyError("there is no ssh on this machine: install OpenSSH") from None
    except subprocess.TimeoutExpired:
        return JoinOutcome(host, False, f"ssh did not finish within {SESSION_S:.0f} s")
    out, err = (_text(stream) for stream in (done.stdout, done.stderr))
    if not done.returncode:
        return JoinOutcome(host, True, out.partition("\n")[0])
    message = err or out or f"exit code {done.returncode}"
    return JoinOutcome(host, False, with_hint(host, message, done.returncode))


def with_hint(host: str, message: str, code: int) -> str:
    """Return an error message of ssh, the shell or remotely there, with a hint on what to do."""
    line = " ".join(message.split())
    for codes, pattern, hint in HINTS:
        if code in codes and re.search(pattern, message):
            return f"{line.rstrip('.')}; {hint.format(host=host)}"
    return line


def _text(stream: bytes) -> str:
    text = stream.decode(errors="replace").strip()
    return text.removeprefix("Error: ")

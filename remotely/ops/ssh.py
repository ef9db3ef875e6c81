"""The start and stop of a cluster on the machines of hosts.toml, by OpenSSH.

OpenSSH itself is run, so that the user's own configuration, agent and known hosts hold: host keys
are checked, and nothing asks for a password.  A machine joins by `remotely join` there; its key
goes over standard input, and is in no argument.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from remotely.errors import RemotelyError
from remotely.machine import folders, pid_file
from remotely.machine.gpus import Offer
from remotely.machine.pid_file import Running
from remotely.ops import cluster
from remotely.ops.cluster import Network
from remotely.ops.host_file import Host, HostFile
from remotely.protocol.address import join_address

AT_ONCE = 32  # sessions of ssh
CONNECT_S = 5  # for a machine to answer
SESSION_S = 60.0  # for what is done there
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")

OF_SSH = (255,)  # its exit code if it fails itself (man 1 ssh)
OF_SHELL = (126, 127)  # of the shell there, if it cannot run the command

# What to do about a failure, by its exit code and its words.  Those of remotely say it themselves.
HINTS = (
    (
        OF_SSH,
        r"Host key verification failed|host key is known|IDENTIFICATION HAS CHANGED",
        "connect once by hand, 'ssh {host}', and compare the fingerprint with that of the machine",
    ),
    (
        OF_SSH,
        r"Permission denied",
        "it needs a key without a password, or one in ssh-agent: 'ssh-copy-id {host}'",
    ),
    (
        OF_SSH,
        r"timed out|No route to host|Connection refused|Could not resolve",
        "'ssh {host}' has to work from here",
    ),
    (
        OF_SHELL,
        r"",
        'say where remotely is there, by command = "/path/to/remotely" in the host file',
    ),
)


class Outcome(NamedTuple):
    """The outcome of one machine."""

    host: str
    is_done: bool
    said: str  # a sentence


def up(file: HostFile) -> Iterator[Outcome]:
    """Start the cluster here, unless it runs, and have all machines join; yield each as it ends.

    Raises RemotelyError if the cluster cannot be started, or another one runs at its port.
    """
    masters = _masters(file)
    if masters and masters[0].listens != (here := _listening_at(file)):
        raise RemotelyError(
            f"another cluster runs on this machine (its master has pid {masters[0].pid}): it "
            f"listens at {masters[0].listens}, and not at {here}. 'remotely stop --port "
            f'{file.port}\' ends it, or name another port in the host file: address = "HOST:PORT"'
        )
    if not masters:
        announced = (file.master,) if file.listen else ()
        network = Network(file.listen or file.master, announced, file.port_range)
        cluster.start(network, file.port, Offer(file.cpus, file.gpu_choice))
    key = (folders.key_folder() / "worker.key").read_bytes()
    yield from _on_each(file, lambda host: join_line(file, host), key)


def is_up(file: HostFile) -> bool:
    """Return whether the cluster that `up` starts here runs."""
    here = _listening_at(file)
    return any(master.listens == here for master in _masters(file))


def end_here(file: HostFile) -> bool:
    """End the cluster that `up` starts here, and no other one; return whether it ran."""
    ended = cluster.stop(file.port, started=_listening_at(file))
    if stayed := [daemon.pid for daemon in ended if daemon.alive]:
        raise RemotelyError(f"pid {', '.join(map(str, stayed))} did not end")
    return bool(ended)


def leave(file: HostFile) -> Iterator[Outcome]:
    """End what is left of the cluster on each machine; yield each as it ends."""
    yield from _on_each(file, lambda host: leave_line(file, host), b"")


def join_line(file: HostFile, host: Host) -> str:
    """Return the line of a shell by which a machine joins."""
    words = ["join", join_address(file.master, file.port), "--key", "-", "--once"]
    for option, value in (
        ("--cpus", host.cpus),
        ("--gpus", host.gpus),
        ("--host", host.address or None),
        ("--ports", host.ports or file.ports or None),
        *(("--announce", name) for name in host.announce),
    ):
        if value is not None:
            words += [option, str(value)]
    return _line(file, host, words)


def leave_line(file: HostFile, host: Host) -> str:
    """Return the line by which a machine leaves this cluster, and no other."""
    return _line(file, host, ["stop", "--joined", join_address(file.master, file.port)])


def _line(file: HostFile, host: Host, words: list[str]) -> str:
    """The user's command is for the shell to read: it may have a `~`, and several words."""
    return f"{host.command or file.command} {shlex.join(words)}"


def _listening_at(file: HostFile) -> str:
    return cluster.listening_at(file.listen or file.master, file.port)


def _masters(file: HostFile) -> list[Running]:
    return [daemon for daemon in pid_file.running(file.port) if daemon.role == "master"]


def _on_each(file: HostFile, line_for: Callable[[Host], str], send: bytes) -> Iterator[Outcome]:
    hosts = file.all_hosts
    with ThreadPoolExecutor(min(AT_ONCE, len(hosts)), thread_name_prefix="ssh") as pool:
        futures = [pool.submit(_at, host.ssh, line_for(host), send) for host in hosts]
        try:
            for future in as_completed(futures):
                yield future.result()
        except KeyboardInterrupt:  # ssh gets it too; what has not begun must not
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _at(host: str, line: str, send: bytes) -> Outcome:
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
        return Outcome(host, False, f"nothing came of it within {SESSION_S:.0f} s")
    out, err = (_text(stream) for stream in (done.stdout, done.stderr))
    if not done.returncode:
        return Outcome(host, True, out.partition("\n")[0])
    told = err or out or f"exit code {done.returncode}"
    return Outcome(host, False, explained(host, told, done.returncode))


def explained(host: str, words: str, code: int) -> str:
    """Return the words of ssh, or of the shell or remotely there, with what to do about them."""
    hints = (todo for codes, pattern, todo in HINTS if code in codes and re.search(pattern, words))
    hint = next(hints, "")
    told = " ".join(words.split())
    return f"{told.rstrip('.')}; {hint.format(host=host)}" if hint else told


def _text(stream: bytes) -> str:
    text = stream.decode(errors="replace").strip()
    return text.removeprefix("Error: ")

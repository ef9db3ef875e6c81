"""Hosts for ssh: an OpenSSH server for each, on loopback addresses of this machine.

Each has its own home, and so counts as a separate machine.  Needs root and openssh-server.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.clusters import SCRIPTS, free_port, wait_until

_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def why_no_sshd() -> str:
    """Return why this machine cannot run ssh servers; "" if it can."""
    if os.getuid() != 0 or not Path(_SSHD).exists() or not shutil.which("ssh-keygen"):
        return "needs root and openssh-server"
    return ""


class Hosts:
    """Hosts by name, each with an address; in `self.environment`, `ssh NAME` reaches them.

    `inside` is a command prefix that runs the servers elsewhere, such as in a network namespace.
    """

    def __init__(
        self,
        folder: Path,
        addresses: dict[str, str],
        environment: dict[str, str],
        inside: Sequence[str] = (),
    ) -> None:
        self.names = list(addresses)
        self.homes = [folder / name for name in self.names]
        self.addresses = list(addresses.values())
        self.port = free_port()
        self._folder = folder
        self._inside = inside
        self._daemons: list[subprocess.Popen[bytes]] = []
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            self._keygen(folder / key)
        shutil.copy(folder / "user.pub", folder / "authorized")
        for name, home, address in zip(self.names, self.homes, self.addresses, strict=True):
            home.mkdir()
            self._serve(name, home, address, environment)
        self._trust(self.names)
        binaries = folder / "bin"
        binaries.mkdir()
        wrapper = binaries / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        wrapper.chmod(0o755)
        self.environment = {**environment, "PATH": f"{binaries}:{os.environ['PATH']}"}

    def _keygen(self, file: Path) -> None:
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
        subprocess.run(words, check=True)

    def _serve(self, name: str, home: Path, address: str, environment: dict[str, str]) -> None:
        passed = {
            "REMOTELY_HOME": str(home),
            "REMOTELY_HOST": name,
            "TMPDIR": environment["TMPDIR"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
        }
        config = home / "sshd_config"
        settings = {
            "ListenAddress": f"{address}:{self.port}",
            "HostKey": self._folder / "host",
            "AuthorizedKeysFile": self._folder / "authorized",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "MaxStartups": "100",
            "SetEnv": " ".join(f"{key}={value}" for key, value in passed.items()),
        }
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        log = (home / "sshd.log").open("wb")
        self._daemons.append(
            subprocess.Popen(
                [*self._inside, _SSHD, "-D", "-e", "-f", str(config)], stderr=log, env=environment
            )
        )
        log.close()
        wait_until(lambda: "listening" in (home / "sshd.log").read_text(), f"sshd of {name}")

    def _trust(self, known: list[str]) -> None:
        key = (self._folder / "host.pub").read_text()
        lines = [
            f"[{address}]:{self.port} {key}"
            for name, address in zip(self.names, self.addresses, strict=True)
            if name in known
        ]
        (self._folder / "known").write_text("".join(lines))
        config = f"IdentityFile {self._folder}/user\nUserKnownHostsFile {self._folder}/known\n"
        for name, address in zip(self.names, self.addresses, strict=True):
            config += f"Host {name}\n  HostName {address}\n  Port {self.port}\n  User root\n"
        (self._folder / "config").write_text(config)

    def forget_key_of(self, name: str) -> None:
        """Remove the host key of one from the known hosts."""
        self._trust([known for known in self.names if known != name])

    def file(self, master: str, **more: str) -> Path:
        """Write hosts.toml for a master of this machine; return its path."""
        lines = [f'address = "{master}"', "cpus = 0", f'command = "{SCRIPTS / "remotely"}"']
        for name, address in zip(self.names, self.addresses, strict=True):
            lines += ["[[host]]", f'ssh = "{name}"', f'address = "{address}"', "cpus = 1"]
            lines += [more[name]] if name in more else []
        file = self._folder / "hosts.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    @staticmethod
    def on_loopback(count: int) -> dict[str, str]:
        """Return the addresses of h1, h2 and so on."""
        return {f"h{number}": f"127.0.0.{10 + number}" for number in range(1, count + 1)}

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait()

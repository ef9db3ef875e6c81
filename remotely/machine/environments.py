"""Python environments for actors: interpreters of this machine, and packages installed for them.

    python="/opt/sim/bin/python"     this interpreter, which must have what remotely needs
    python="3.12"                    that version: from uv, if it is installed, or python3.12
    packages=["gymnasium==0.29.1"]   a virtual environment of these, made once and kept

A made environment is a folder in CACHE whose name is a digest of what it was made of.  The package
`remotely` itself is not installed: every interpreter imports the files of this process's own, so
versions always agree.

    KEY.lock       locked by who makes or removes the environment
    KEY/made.json  written last and removed first, so a folder without it is unfinished, and is made
                   anew.  Locked, shared, by each process that runs in the environment, which is not
                   removed then.  It is a file, because machines that share a home folder by NFS do
                   not see each other's locks of folders

At most MOST_KEPT are kept that no process uses; those that have not been used for longest go first.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from remotely.errors import RemotelyError
from remotely.machine import file_lock

DISTRIBUTION = "remotely-actors"
OLDEST = 3, 11  # the oldest Python that remotely runs on
MOST_KEPT = 20
MADE = "made.json"
ASKED = "REMOTELY_ENVIRONMENT"  # the variable in which an actor's process gets what is asked for
KEY = r"[0-9a-f]{16}"
LOOK_S = 0.2  # how often the lock of another maker, and the installer, are looked at
HOLD_AGAIN_S = 0.01  # a look at whether an environment is used locks it for microseconds
LAST_LINES = 12  # of an installer that failed
OF_INTERPRETER = ("PYTHONPATH", "PYTHONHOME")  # set for one interpreter, and wrong for another

# "NAME[EXTRAS] @ PLACE; MARKER", of which each but the place may be missing; "PLACE[EXTRAS]".
REQUIREMENT = re.compile(
    r"\s*(?:[\w.-]+\s*(?:\[[^]]*\])?\s*@\s*)?(?P<place>.*?)(?:\[[^]]*\])?(?:\s*;.*)?\s*", re.DOTALL
)
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")  # as for pip and uv
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")  # in an address
FILE_URL = "file:"
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

# Run by an interpreter of any age: its version, and which of these distributions it lacks.
PROBE = """
import sys, json
try:
    from importlib import metadata
except ImportError:
    metadata = None
def lacks(name):
    try:
        metadata.distribution(name)
    except Exception:
        return True
    return False
missing = [name for name in sys.argv[1:] if lacks(name)]
print(json.dumps([list(sys.version_info[:3]), missing, sys.executable]))
"""


class NoEnvironment(RemotelyError):
    """No such interpreter, or the packages cannot be installed.

    Whose fault: that of the options `python` and `packages`, or of the machine's network.
    What to do: the message has the last lines of the installer, or the command to run.
    """


class Made(NamedTuple):
    """An environment that was made."""

    key: str
    python: str  # its version
    packages: tuple[str, ...]
    used_at: float  # seconds since 1970: the last start of a process in it
    is_used: bool  # a process runs in it

    @property
    def nbytes(self) -> int:
        """The size of its files."""
        entries = (folder() / self.key).rglob("*")
        return sum(each.lstat().st_size for each in entries if each.is_file())


def folder() -> Path:
    """Return the folder of all environments that this user has made."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "remotely" / "environments"


def command(
    python: str,
    packages: Sequence[str],
    given: Mapping[str, str],
    arguments: Sequence[str],
    busy: Callable[[str], object],
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs Python with these arguments there, and its variables.

    They are those of this process, but of OF_INTERPRETER those that are `given` for that one.
    Makes the environment if there is none; this process then uses it, and so does each that it
    becomes by exec.  Meanwhile `busy` is called every LOOK_S, with a sentence if there is something
    to say.  Raises NoEnvironment.
    """
    interpreter = located(python) or _fetched(python, busy)
    needs = requirements()
    version = _checked(interpreter, packages, needs, given)
    if packages:
        interpreter = _kept(interpreter, version, packages, needs, busy)
    paths = [str(_own_code()), *filter(None, [given.get("PYTHONPATH")])]
    variables = {**_own_variables(), **given, "PYTHONPATH": os.pathsep.join(paths)}
    return [interpreter, "-P", *arguments], variables


def check(python: str, packages: Sequence[str]) -> None:
    """Raise NoEnvironment if this machine cannot have it.  Makes and fetches nothing."""
    if (interpreter := located(python)) is not None:
        _checked(interpreter, packages, requirements(), {})


def _checked(
    interpreter: str, packages: Sequence[str], needs: Sequence[str], given: Mapping[str, str]
) -> tuple[int, ...]:
    """Return the version of an interpreter.  Raises NoEnvironment if it is of no use."""
    version, missing = probed(interpreter, needs, given)
    if missing and not packages:
        wanted = " ".join(f"'{each}'" for each in needs if _name(each) in missing)
        raise NoEnvironment(
            f"{interpreter} has no {', no '.join(missing)}, which remotely needs: run"
            f" {interpreter} -m pip install {wanted}, or name packages=[...], for which an"
            " environment is made"
        )
    return version


def located(python: str) -> str | None:
    """Return the path of an interpreter, from a path, a name or a version; "" is this one.

    Returns None for a version that is not here, and that uv may fetch.
    """
    if not python:
        return sys.executable
    if not _is_version(python):
        named = os.path.expanduser(python)
        if (path := shutil.which(named)) is None:
            if os.sep in named and os.path.exists(named):
                what = "a folder" if os.path.isdir(named) else "a file that may not be executed"
                raise NoEnvironment(f"{python!r} on {platform.node()} is {what}, no interpreter")
            raise NoEnvironment(f"there is no interpreter {python!r} on {platform.node()}")
        return os.path.abspath(path)
    if (uv := shutil.which("uv")) is not None and (path := _known_to(uv, python)) is not None:
        return path
    if (path := shutil.which(f"python{python}")) is None and uv is None:
        raise NoEnvironment(
            f"there is no Python {python} on {platform.node()}: install it, or uv, which fetches it"
        )
    return path


def _fetched(python: str, busy: Callable[[str], object]) -> str:
    """Have uv fetch a version; return its path."""
    uv = shutil.which("uv") or "uv"
    busy(f"uv fetches Python {python}")
    _, said = _ran([uv, "python", "install", python], busy)
    if (path := _known_to(uv, python)) is None:
        raise NoEnvironment(
            f"there is no Python {python} on {platform.node()}: install it; uv cannot:\n{said}"
        )
    return path


def _known_to(uv: str, python: str) -> str | None:
    asked = subprocess.run([uv, "python", "find", python], capture_output=True, text=True)
    return None if asked.returncode else asked.stdout.strip()


def requirements() -> tuple[str, ...]:
    """Return what remotely itself needs, without extras."""
    try:
        listed = importlib.metadata.requires(DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:
        raise NoEnvironment(
            f"{DISTRIBUTION} is imported from a folder on {platform.node()}, and not installed, so"
            " what it needs is not known: install it for the worker"
        ) from None
    return tuple(sorted(each for each in listed if "extra ==" not in each))


def probed(
    interpreter: str, needs: Iterable[str], given: Mapping[str, str]
) -> tuple[tuple[int, ...], list[str]]:
    """Return an interpreter's version, and the names of those distributions that it lacks.

    It runs with the variables that are `given` for it, as the actor will.
    """
    names = [_name(each) for each in needs]
    said = ""
    try:
        asked = subprocess.run(
            [interpreter, "-c", PROBE, *names],
            env={**_own_variables(), **given},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=os.sep,  # not where packages may lie about
        )
        said = _last_lines(asked.stderr)
        # A wrapper may print something of its own first.
        version, missing, _ = json.loads(asked.stdout.strip().rpartition("\n")[2])
    except OSError as error:
        raise NoEnvironment(f"{interpreter} is no Python that runs here: {error}") from None
    except (ValueError, TypeError):
        said = said or f"it does not tell its version, but {_last_lines(asked.stdout) or 'nothing'}"
        raise NoEnvironment(f"{interpreter} is no Python that runs here: {said}") from None
    if tuple(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NoEnvironment(
            f"{interpreter} is Python {'.'.join(map(str, version))}, and remotely runs on {oldest}"
            " or newer; what exists for older ones alone must be installed for a newer one, or be"
            " called by a program of its own"
        )
    return tuple(version), missing


def made() -> list[Made]:
    """Return all environments of this user, those used last first."""
    known = [one for place in sorted(folder().glob("*/")) if (one := _read(place)) is not None]
    return sorted(known, key=lambda one: -one.used_at)


def remove(key: str) -> bool:
    """Remove an environment; return false if a process uses it, or another makes it."""
    place = folder() / key
    try:
        with file_lock.locked(_lock_of(key), wait=False):
            with contextlib.suppress(FileNotFoundError):
                os.close(file_lock.hold(place / MADE))
                (place / MADE).unlink()
            shutil.rmtree(place)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def _kept(
    interpreter: str,
    version: tuple[int, ...],
    packages: Sequence[str],
    needs: Sequence[str],
    busy: Callable[[str], object],
) -> str:
    """Return the interpreter of an environment, which is made if it is new, and used from now."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    key = _key(interpreter, version, (*needs, *packages))
    place = folder() / key
    with _locked(key, busy):
        if is_new := not (place / MADE).exists():
            shutil.rmtree(place, ignore_errors=True)
            try:
                _make(place, interpreter, packages, needs, busy)
                facts = {"python": ".".join(map(str, version)), "packages": list(packages)}
                unfinished = place / f"{MADE}.tmp"
                unfinished.write_text(json.dumps(facts))
                unfinished.replace(place / MADE)
            except BaseException:  # the disk may be full of it
                shutil.rmtree(place, ignore_errors=True)
                raise
        _use(place / MADE, busy)
    if is_new:
        with contextlib.suppress(OSError):  # another's trouble
            _keep_most()
    return str(place / "bin" / "python")


def _use(made: Path, busy: Callable[[str], object]) -> None:
    """Lock an environment as used, for as long as this process lives, also after exec."""
    while True:
        try:
            fd = file_lock.hold(made, shared=True)
        except BlockingIOError:
            busy("")
            time.sleep(HOLD_AGAIN_S)
        else:
            os.set_inheritable(fd, True)
            os.utime(made)
            return


def _make(
    place: Path,
    interpreter: str,
    packages: Sequence[str],
    needs: Sequence[str],
    busy: Callable[[str], object],
) -> None:
    names = ", ".join(packages)
    busy(f"making an environment for {interpreter} with {names}")
    start = time.monotonic()
    # In a file: the address of an index may have a password, and everybody sees arguments.
    listed = str(place.with_suffix(".txt"))
    with open(os.open(listed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(f"{' '.join(resolved(each).split())}\n" for each in (*needs, *packages))
    if (uv := shutil.which("uv")) is not None:
        steps = [
            [uv, "venv", "--quiet", "--python", interpreter, str(place)],
            [uv, "pip", "install", "--quiet", "--python", f"{place}/bin/python", "-r", listed],
        ]
    else:
        steps = [
            [interpreter, "-m", "venv", str(place)],
            [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "-r", listed],
        ]
    try:
        for step in steps:
            code, said = _ran(step, busy)
            if code:
                raise NoEnvironment(f"no environment with {names} could be made:\n{said}")
    finally:
        os.unlink(listed)
    busy(f"the environment with {names} is made, in {time.monotonic() - start:.0f} s")


def resolved(package: str) -> str:
    """Return a requirement as the installer gets it, and as it is looked at here.

    Each ${VARIABLE} is replaced by that of this process, and a path is made absolute, with ~ as the
    home folder: uv and pip differ on others.  Raises NoEnvironment for a variable that is unset or
    empty.
    """
    if missing := [name for name in VARIABLE.findall(package) if not os.environ.get(name)]:
        raise NoEnvironment(
            f"packages has {package!r}, but {missing[0]} is unset or empty, both in env= and for"
            f" the worker on {platform.node()}"
        )
    package = VARIABLE.sub(lambda found: os.environ[found[1]], package)
    begin, end = _where(package).span("place")
    place = package[begin:end]
    if _path_in(package) is None or place.startswith(FILE_URL):
        return package
    return f"{package[:begin]}{os.path.abspath(os.path.expanduser(place))}{package[end:]}"


def stamps(python: str, packages: Iterable[str]) -> tuple[tuple[int, int, int], ...]:
    """Return what changes when a file is replaced that these options name on this machine."""
    interpreter = None if _is_version(python) else shutil.which(os.path.expanduser(python))
    found = []
    with contextlib.suppress(OSError):
        if interpreter is not None:
            found.append(_stamp(interpreter))
    for package in packages:
        # It is not there, or cannot be.
        with contextlib.suppress(OSError, ValueError, NoEnvironment):
            if (path := _path_in(resolved(package))) is not None:
                found.append(_stamp(path))
    return tuple(found)


def _stamp(path: str | Path) -> tuple[int, int, int]:
    facts = os.stat(path)
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _is_version(python: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+){0,2}", python) is not None


def _path_in(package: str) -> Path | None:
    """Return the path that a resolved requirement names, in any of pip's ways.

    Without a slash it is a name, as for pip, whatever folder has it too, unless it is an archive's.
    """
    place = _where(package)["place"]
    if place.startswith(FILE_URL):
        try:
            return Path(urllib.parse.unquote(urllib.parse.urlsplit(place).path))
        except ValueError:  # no URL: the installer says so
            return None
    is_path = "://" not in place and (os.sep in place or place.endswith(ARCHIVES))
    return Path(place) if is_path else None


def _where(package: str) -> re.Match[str]:
    found = REQUIREMENT.fullmatch(package)
    assert found is not None  # any text matches
    return found


def _ran(step: Sequence[str], busy: Callable[[str], object]) -> tuple[int, str]:
    """Run a program; return its exit code, and the last lines that it printed."""
    asks = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    with subprocess.Popen(
        step,
        env={**_own_variables(), **asks},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            while True:
                try:
                    said, _ = process.communicate(timeout=LOOK_S)
                    return process.returncode, _last_lines(said)
                except subprocess.TimeoutExpired:
                    busy("")
        except BaseException:  # the worker is gone: nobody waits for it
            process.kill()
            raise


def _own_variables() -> dict[str, str]:
    """Return the variables of this process, without those that belong to its interpreter."""
    return {name: value for name, value in os.environ.items() if name not in OF_INTERPRETER}


def _last_lines(said: str) -> str:
    return "\n".join(said.strip().splitlines()[-LAST_LINES:])


@contextlib.contextmanager
def _locked(key: str, busy: Callable[[str], object]) -> Iterator[None]:
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock.locked(_lock_of(key), wait=False))
            except BlockingIOError:  # another process makes it
                busy("")
                time.sleep(LOOK_S)
                continue
            except RemotelyError as error:
                raise NoEnvironment(
                    f"{folder()} is on a file system without locks: set XDG_CACHE_HOME of the"
                    " worker to a folder on a local disk"
                ) from error
            yield
            return


def _lock_of(key: str) -> Path:
    return folder() / f"{key}.lock"


def _key(interpreter: str, version: tuple[int, ...], packages: Iterable[str]) -> str:
    """Return a digest of what an environment is made of; of files, such as wheels, the content.

    Who fetches a package is no part of it: tokens in addresses expire.
    """
    parts = [platform.machine(), os.path.realpath(interpreter), *map(str, version)]
    for package in sorted(packages):
        needed = resolved(package)
        parts.append(CREDENTIALS.sub("", needed))
        if (path := _path_in(needed)) is None:
            continue
        if path.is_dir():
            raise NoEnvironment(
                f"packages has the folder {package!r}, whose content may change: build a wheel of"
                " it, and name that"
            )
        if path.is_file():
            parts.append(hashlib.sha256(path.read_bytes()).hexdigest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _keep_most() -> None:
    """Remove what has not been used for longest, and what was not finished."""
    for place in folder().glob("*/"):
        if re.fullmatch(KEY, place.name) and not (place / MADE).exists():
            remove(place.name)
    unused = [one for one in made() if not one.is_used]
    for one in unused[MOST_KEPT:]:
        remove(one.key)


def _read(place: Path) -> Made | None:
    try:
        facts = json.loads((place / MADE).read_text())
        python, packages = str(facts["python"]), tuple(map(str, facts["packages"]))
        used_at = (place / MADE).stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return None  # unfinished, or being removed
    try:
        os.close(file_lock.hold(place / MADE))
        is_used = False
    except BlockingIOError:
        is_used = True
    except FileNotFoundError:
        return None
    return Made(place.name, python, packages, used_at, is_used)


def _own_code() -> Path:
    """Return a folder with the package of this process, and nothing else.

    The folder that has it may hold all packages of this interpreter.
    """
    root = Path(__file__).parents[2]
    place = folder() / "code" / hashlib.sha256(str(root).encode()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    for name in ("remotely", "remotely_rl"):
        with contextlib.suppress(FileExistsError):
            (place / name).symlink_to(root / name)
    return place


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")

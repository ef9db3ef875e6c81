"""The state of a process that actors take over from their maker: `take` there, `apply` here.

It is taken when the actor is asked for, as `multiprocessing` does, and each life of the actor has
the same.  It goes with PREPARE, straight to the actor, encrypted (and into the restart file of a
detached actor, which only its user can read): the master and the worker never see it.

    state                      in an actor on the same host         on another host
    environment variables      what the maker's process has         the same, except FOLDERS,
                               changed since it started             which mean nothing there
    working directory          the maker's                          that of the worker
    sys.path                   added to the actor's                 the worker's
    sys.argv, levels of loggers, warning filters,
    authkey of multiprocessing, backends registered with joblib     the same

Of the environment, changes alone: what a process was started with describes its machine and its
shell, and the worker has its own.  A change is part of the program, like the value of a global.  A
variable that the maker has deleted is deleted in the actor.  It costs little, too: mostly nothing
has changed.  Stronger than the maker's changes are `env=`, and what remotely sets itself (OWN).

The working directory stays here: a folder of that name on another host may contain anything.

Filters of warnings name their category, because to import its module may take long, or fail.
While that module is not loaded, a class stands in for the category that only compares names.

Seeds of random generators are not taken: each actor has its own (actor/generators.py).
"""

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from remotely.machine import gpus
from remotely.protocol.control import MakerState, WarningFilter
from remotely.reporting import log_records

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Variables that each process gets from remotely, or from Ray, and never from its maker.
OWN = frozenset((*THREAD_VARIABLES, gpus.VARIABLE))
OWN_PREFIXES = ("REMOTELY_", "RAY_")
# Variables that name folders of one machine.
FOLDERS = frozenset(
    (
        *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("HOME", "PWD", "OLDPWD", "TMPDIR"),
    )
)

Pattern = tuple[str, int] | str | None

# How an actor registers with another library what its maker has; and what this process has.
registrations: dict[str, Callable[[], object]] = {}
registered: set[str] = set()


def take() -> MakerState:
    """Return the state of this process."""
    from multiprocessing import process  # noqa: PLC0415 - slow to import

    folder = ""
    with contextlib.suppress(FileNotFoundError):
        folder = os.getcwd()
    return MakerState(
        path=[os.path.join(folder, entry) for entry in map(str, sys.path)],
        argv=[str(word).encode(errors="replace").decode() for word in sys.argv],
        folder=folder,
        environment=_changes(),
        log_levels=log_records.levels(),
        warning_filters=list(_filters()),
        warning_options=list(sys.warnoptions),
        authkey=bytes(process.current_process().authkey),
        registered=sorted(registered),
    )


def apply(state: MakerState, is_same_host: bool, given: Collection[str]) -> None:
    """Give this process the state of its maker.  `given` are the variables set by `env=`."""
    for name in given:
        _at_start.pop(name, None)  # so that actors which this one makes have them, too
    for key, value in state.environment.items():
        name = os.fsdecode(key)
        if _is_own(name) or name in given or (name in FOLDERS and not is_same_host):
            continue
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = os.fsdecode(value)
    if is_same_host:
        sys.path.extend(entry for entry in state.path if entry not in sys.path)
        if state.folder:
            _enter(state.folder)
    sys.argv = state.argv or [""]  # modules may read it
    log_records.set_levels(state.log_levels)
    _set_filters(state.warning_filters)
    sys.warnoptions[:] = state.warning_options
    for each in state.registered:
        registered.add(each)
        registrations[each]()
    if state.authkey:
        from multiprocessing import process  # noqa: PLC0415 - slow to import

        process.current_process().authkey = state.authkey


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        print(
            f"remotely: this actor cannot enter {folder}, the working directory of its script "
            f"({error.strerror}), and runs in {os.getcwd()}",
            file=sys.stderr,
        )


# --- environment variables ------------------------------------------------------------------------


def _environment_at_start() -> dict[str, str]:
    """Return the environment with which this process was started, as far as it is known.

    /proc shows the memory in which the kernel put it, and setproctitle writes over that.
    """
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:  # not Linux
        return dict(os.environ)
    pairs = (line.partition(b"=") for line in block.split(b"\0") if b"=" in line)
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    is_whole = any(os.environ.get(name) == value for name, value in found.items())
    return found if is_whole else dict(os.environ)


_at_start = _environment_at_start()


def _changes() -> dict[bytes, bytes | None]:
    now = dict(os.environ)
    if now == _at_start:
        return {}
    changed: dict[bytes, bytes | None] = {
        os.fsencode(name): os.fsencode(value)
        for name, value in now.items()
        if _at_start.get(name) != value and not _is_own(name)
    }
    gone = (os.fsencode(name) for name in _at_start.keys() - now.keys() if not _is_own(name))
    return changed | dict.fromkeys(gone)


def _is_own(name: str) -> bool:
    return name in OWN or name.startswith(OWN_PREFIXES)


# --- warning filters ------------------------------------------------------------------------------


class _ByName(type):
    """The metaclass of a stand-in for a category of warnings whose module is not loaded."""

    def __subclasscheck__(cls, category: type) -> bool:
        wanted = cls.__module__, cls.__qualname__
        return any((base.__module__, base.__qualname__) == wanted for base in category.__mro__)


def _filters() -> Iterable[WarningFilter]:
    filters: list[Any] = list(warnings.filters)
    for action, message, category, module, line in filters:
        if _can_travel(message) and _can_travel(module):
            yield WarningFilter(
                action=action,
                message=_packed(message),
                category=(category.__module__, category.__qualname__),
                module=_packed(module),
                line=line,
            )


def _set_filters(filters: Iterable[WarningFilter]) -> None:
    found = [
        (f.action, _unpacked(f.message), _category(*f.category), _unpacked(f.module), f.line)
        for f in filters
    ]
    warnings.resetwarnings()  # also forgets which warnings were shown
    warnings.filters[:] = found  # type: ignore[index]


def _can_travel(pattern: Any) -> bool:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    return text is None or isinstance(text, str)


def _packed(pattern: Any) -> Pattern:
    return (pattern.pattern, pattern.flags) if isinstance(pattern, re.Pattern) else pattern


def _unpacked(pattern: Pattern) -> Any:
    return re.compile(*pattern) if isinstance(pattern, tuple) else pattern


def _category(module: str, name: str) -> type:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, Warning):
        return found
    return _ByName(name, (Warning,), {"__module__": module, "__qualname__": name})

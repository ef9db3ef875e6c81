"""User additions to an environment: its keyword arguments, and wrappers around it.

A run folder stores both as text, in the syntax of the command line:

    --env-arg max_steps=50                                   a Python literal, or else text
    --wrapper gymnasium.wrappers:TimeAwareObservation        module:NAME or FILE.py:NAME
    --wrapper "gymnasium.wrappers:TimeLimit(max_episode_steps=50)"

A wrapper is a callable, environment -> environment: a class, a function, or a functools.partial of
one.  A lambda or an array has no such text and is not stored: pass it again to resume.
"""

import ast
import copy
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from remotely.arguments import signature_of
from remotely_rl import settings
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.user_code import is_in_file, located, named_in

Env = gymnasium.Env[Any, Any]
Wrapper = Callable[[Env], Env]

REFERENCE = re.compile(r"(?P<where>[^()]+):(?P<name>[\w.]+)(\((?P<arguments>.*)\))?", re.DOTALL)


# --- arguments ------------------------------------------------------------------------------------


def checked_arguments(given: Any, field: str = "env_kwargs") -> dict[str, Any]:
    """Return a copy of arguments.  Raises TrainingError unless they map names to values."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TrainingError(f"{field} must be a dict of arguments by name, not {given!r}")
    try:
        return copy.deepcopy(dict(given))
    except Exception as error:
        raise TrainingError(
            f"{field} cannot be copied, which each environment needs: {error}"
        ) from error


def check_taken(
    by: str, given: Iterable[str], make: Callable[..., Any], more: Sequence[str] = ()
) -> None:
    """Raise TrainingError for an argument that `make` does not take, and name what it takes."""
    try:
        parameters = signature_of(make).parameters.values()
    except ValueError:  # some built-ins have no signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    check_known(by, given, [*(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL), *more])


def check_known(by: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise TrainingError for an argument that is not in `known`, and name those that are."""
    for name in given:
        if name not in known:
            takes = ", ".join(known) or "none"
            raise TrainingError(
                f"{by} takes no argument {name!r}; it takes {takes}{nearest(name, known)}"
            )


# --- wrappers -------------------------------------------------------------------------------------


def checked_wrappers(given: Any) -> tuple[Wrapper, ...]:
    """Return wrappers, given as callables or references.  Raises TrainingError for others."""
    if isinstance(given, str) or callable(given) or not isinstance(given, Iterable):
        raise TrainingError(f"wrappers must be a list of wrappers, not {given!r}")
    return tuple(checked_wrapper(each) for each in given)


def checked_wrapper(given: Any) -> Wrapper:
    """Return a wrapper, given as a callable or a reference.

    Raises TrainingError if it cannot be found, or cannot be called with only an environment.
    """
    wrapper = resolve(given) if isinstance(given, str) else given
    if not callable(wrapper):
        raise TrainingError(
            f"a wrapper is a class or a function of an environment, not a {type(wrapper).__name__}"
        )
    try:
        signature_of(wrapper).bind(None)
    except ValueError:  # some built-ins have no signature
        pass
    except TypeError as error:
        name = display_name(wrapper)
        raise TrainingError(
            f"the wrapper {name} is called with only an environment: {error}; pass"
            f" functools.partial({name}, ...), or MODULE:{name}(NAME=VALUE)"
        ) from None
    return wrapper  # type: ignore[no-any-return]


def wrapped(env: Env, wrappers: Sequence[Wrapper]) -> Env:
    """Return the environment in its wrappers, the first one innermost.

    Raises TrainingError if a wrapper does not return an environment.
    """
    for wrapper in wrappers:
        env = wrapper(env)
        if not isinstance(env, gymnasium.Env):
            raise TrainingError(
                f"the wrapper {display_name(wrapper)} returned a {type(env).__name__}; expected a"
                " gymnasium.Env"
            )
    return env


def display_name(wrapper: Any) -> str:
    """Return the name of a wrapper for messages."""
    if isinstance(wrapper, functools.partial):
        return display_name(wrapper.func)
    return getattr(wrapper, "__qualname__", type(wrapper).__qualname__)


def resolve(reference: str, what: str = "wrapper") -> Any:
    """Import module:NAME or FILE.py:NAME, with arguments bound if there are any.

    Raises TrainingError, which mentions `what`, if it cannot be imported.
    """
    if (match := REFERENCE.fullmatch(reference)) is None:
        raise TrainingError(
            f"{what}s are named by module:NAME or FILE.py:NAME, not by {reference!r}"
        )
    where, name = match["where"], match["name"]
    if is_in_file(where):
        found = named_in(f"the {what}", f"{where}:{name}")
    else:
        try:
            module = importlib.import_module(where)
        except Exception as error:
            raise TrainingError(
                f"the {what} {reference} cannot be imported: {located(error)}"
            ) from error
        try:
            found = functools.reduce(getattr, name.split("."), module)
        except AttributeError:
            hint = nearest(name, vars(module))
            raise TrainingError(f"{where} has nothing called {name!r}{hint}") from None
    arguments = _arguments(reference, match["arguments"])
    return functools.partial(found, **arguments) if arguments else found


def check_is_outside(
    references: Iterable[str],
    run: str | Path,
    what: str = "wrapper",
    again: str = "wrappers= or --wrapper FILE.py:NAME",
) -> None:
    """Raise TrainingError for a file inside the run folder: loading a run never executes code from
    its folder."""
    for reference in references:
        file = reference.partition(".py:")[0] + ".py"
        if is_in_file(reference) and Path(run).resolve() in Path(file).resolve().parents:
            raise TrainingError(
                f"{run} was trained with the {what} {reference}; code in the folder of a run"
                f" is not executed: pass it with {again}"
            )


def reference_to(wrapper: Any) -> str | None:
    """Return the text from which any process of this machine can load a wrapper, or None."""
    if isinstance(wrapper, functools.partial):
        func, texts = (
            reference_to(wrapper.func),
            [
                (name, repr(value), settings.text_of(value))
                for name, value in wrapper.keywords.items()
            ],
        )
        if func is None or ")" in func or wrapper.args or None in (text for *_, text in texts):
            return None
        return f"{func}({', '.join(f'{name}={value}' for name, value, _ in texts)})"
    module, name = getattr(wrapper, "__module__", None), getattr(wrapper, "__qualname__", "<")
    if module is None or "<" in name or module == "__main__":  # importing a script may train
        return None
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_of_file = "." not in module and file.endswith(".py") and Path(file).stem == module
    if is_of_file and "." not in name:  # elsewhere it may not be on sys.path
        return f"{Path(file).resolve()}:{name}"
    return f"{module}:{name}"


def _arguments(reference: str, text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, SyntaxError, AssertionError):
        raise TrainingError(
            f"the arguments of a wrapper are NAME=VALUE, with Python literals: not {reference!r}"
        ) from None

"""What users add to an environment: arguments with which it is made, and wrappers around it.

A run folder keeps both as text, which is also what the command line takes:

    --env-arg max_steps=50                                   a Python literal, or else text
    --wrapper gymnasium.wrappers:TimeAwareObservation        module:NAME or FILE.py:NAME
    --wrapper "gymnasium.wrappers:TimeLimit(max_episode_steps=50)"

A wrapper is a callable, environment -> environment: a class, a function, or a functools.partial of
one.  What has no such text, a lambda or an array, is kept by nobody: it is to be passed again.
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
from remotely_rl.user_code import is_in_file, named_in

Env = gymnasium.Env[Any, Any]
Wrapper = Callable[[Env], Env]

WORD = re.compile(r"(?P<where>[^()]+):(?P<name>[\w.]+)(\((?P<arguments>.*)\))?", re.DOTALL)


# --- arguments ------------------------------------------------------------------------------------


def checked_arguments(given: Any) -> dict[str, Any]:
    """A copy of arguments.  Raises TrainingError for what is no mapping from names."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TrainingError(f"env_kwargs must be a dict of arguments by their names, not {given!r}")
    try:
        return copy.deepcopy(dict(given))
    except Exception as error:
        raise TrainingError(
            f"env_kwargs cannot be copied, as they must be for each environment: {error}"
        ) from error


def check_taken(
    by: str, given: Iterable[str], make: Callable[..., Any], more: Sequence[str] = ()
) -> None:
    """Raises TrainingError for an argument that `make` does not take, and says what it takes."""
    try:
        parameters = signature_of(make).parameters.values()
    except ValueError:  # some built-ins have no signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    check_known(by, given, [*(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL), *more])


def check_known(by: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises TrainingError for an argument that is not one of these, and says which there are."""
    for name in given:
        if name not in known:
            takes = ", ".join(known) or "none"
            raise TrainingError(
                f"{by} takes no argument {name!r}; it takes {takes}{nearest(name, known)}"
            )


# --- wrappers -------------------------------------------------------------------------------------


def checked_wrappers(given: Any) -> tuple[Wrapper, ...]:
    """The wrappers, those that are named by a text too.  Raises TrainingError for other things."""
    if isinstance(given, str) or callable(given) or not isinstance(given, Iterable):
        raise TrainingError(f"wrappers must be a list of wrappers, not {given!r}")
    return tuple(checked_wrapper(one) for one in given)


def checked_wrapper(given: Any) -> Wrapper:
    """A wrapper, or the one that a text names.

    Raises TrainingError for what cannot be found, or not be called with an environment alone.
    """
    wrapper = named(given) if isinstance(given, str) else given
    if not callable(wrapper):
        raise TrainingError(
            f"a wrapper is a class or a function of an environment, not a {type(wrapper).__name__}"
        )
    try:
        signature_of(wrapper).bind(None)
    except ValueError:  # some built-ins have no signature
        pass
    except TypeError as error:
        name = called(wrapper)
        raise TrainingError(
            f"the wrapper {name} is called with an environment alone, and is {error}: pass"
            f" functools.partial({name}, ...), or MODULE:{name}(NAME=VALUE)"
        ) from None
    return wrapper  # type: ignore[no-any-return]


def wrapped(env: Env, wrappers: Sequence[Wrapper]) -> Env:
    """The environment in its wrappers, the first one innermost.

    Raises TrainingError for a wrapper that returns no environment.
    """
    for wrapper in wrappers:
        env = wrapper(env)
        if not isinstance(env, gymnasium.Env):
            raise TrainingError(
                f"the wrapper {called(wrapper)} returned a {type(env).__name__}; expected a"
                " gymnasium.Env"
            )
    return env


def called(wrapper: Any) -> str:
    """What messages call a wrapper."""
    if isinstance(wrapper, functools.partial):
        return called(wrapper.func)
    return getattr(wrapper, "__qualname__", type(wrapper).__qualname__)


def named(word: str, what: str = "wrapper") -> Any:
    """What module:NAME, FILE.py:NAME, or one of these with arguments, is the text of.

    Raises TrainingError if there is no such thing; it says `what` was to be named.
    """
    if (match := WORD.fullmatch(word)) is None:
        raise TrainingError(f"{what}s are named by module:NAME or FILE.py:NAME, not by {word!r}")
    where, name = match["where"], match["name"]
    if is_in_file(where):
        found = named_in(f"the {what}", f"{where}:{name}")
    else:
        try:
            found = functools.reduce(getattr, name.split("."), importlib.import_module(where))
        except ImportError as error:
            raise TrainingError(f"the {what} {word} cannot be imported: {error}") from error
        except AttributeError:
            hint = nearest(name, vars(sys.modules[where]))
            raise TrainingError(f"{where} has nothing called {name!r}{hint}") from None
    arguments = _arguments(word, match["arguments"])
    return functools.partial(found, **arguments) if arguments else found


def check_is_elsewhere(
    words: Iterable[str],
    run: str | Path,
    what: str = "wrapper",
    again: str = "wrappers= or --wrapper FILE.py:NAME",
) -> None:
    """Raises TrainingError for a wrapper, or `what` else, of a file in the folder of a run: loading
    a run executes nothing of the folder's own."""
    for word in words:
        file = word.partition(".py:")[0] + ".py"
        if is_in_file(word) and Path(run).resolve() in Path(file).resolve().parents:
            raise TrainingError(
                f"{run} was trained with the {what} {word}; code in the folder of a run is not"
                f" executed: pass it, {again}"
            )


def word_of(wrapper: Any) -> str | None:
    """The text that names a wrapper in any process of this machine; None if there is none."""
    if isinstance(wrapper, functools.partial):
        func, texts = word_of(wrapper.func), [
            (name, repr(value), settings.text_of(value)) for name, value in wrapper.keywords.items()
        ]  # fmt: skip
        if func is None or ")" in func or wrapper.args or None in (text for *_, text in texts):
            return None
        return f"{func}({', '.join(f'{name}={value}' for name, value, _ in texts)})"
    module, name = getattr(wrapper, "__module__", None), getattr(wrapper, "__qualname__", "<")
    if module is None or "<" in name or module == "__main__":  # a script may train when it is run
        return None
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_of_file = "." not in module and file.endswith(".py") and Path(file).stem == module
    if is_of_file and "." not in name:  # it may be on no path where it is wanted
        return f"{Path(file).resolve()}:{name}"
    return f"{module}:{name}"


def _arguments(word: str, text: str | None) -> dict[str, Any]:
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
            f"the arguments of a wrapper are NAME=VALUE, with Python literals: not {word!r}"
        ) from None

"""Sources of environments: an id of Gymnasium or EnvPool, or the user's own callable."""

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from remotely.arguments import signature_of
from remotely_rl.environments import additions, elsewhere, env_pool
from remotely_rl.environments.additions import Wrapper
from remotely_rl.environments.atari import (
    VECTOR_ARGUMENTS,
    Atari,
    is_atari_id,
    make_vector,
    observes_ram,
)
from remotely_rl.environments.contract import Environments
from remotely_rl.environments.elsewhere import ACTORS_OWN, Elsewhere, Interpreter
from remotely_rl.environments.images import Images, preprocessed
from remotely_rl.environments.multi_agent import MultiAgent
from remotely_rl.environments.names import name_of
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.supervision import env_ranks, made
from remotely_rl.supervision.statistics import check_keeps_no_statistics
from remotely_rl.supervision.vector import SupervisedVectorEnv, is_registered, spec_of
from remotely_rl.supervision.watchdog import Watch
from remotely_rl.supervision.whole import WatchedVectorEnv

# An id, or a callable that makes the user's own environments: see `plan`.
Source = str | Callable[..., Any]


# Arguments of gymnasium.make itself.
MAKE_ARGUMENTS = ("render_mode", "max_episode_steps", "disable_env_checker")
CANNOT_WAIT = "step as one and cannot wait for the pause: set resets=at_once"


class Plan(NamedTuple):
    """How to make the environments of a source, and what is known about them beforehand.

    `make(count, watch, first)` numbers them from `first` on (supervision/env_ranks.py).
    """

    make: Callable[[int, Watch | None, int], VectorEnv[Any, Any, Any]]
    lives: bool = False  # see `Environments`
    channels_first: bool = False
    waits: bool = False
    agents: int = 1  # rows of each environment


def make(
    source: Source,
    count: int,
    atari: Atari | None = None,
    images: Images | None = None,
    watch: Watch | None = None,
    waits: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    first_rank: int = 0,
    interpreter: Interpreter = ACTORS_OWN,
) -> Environments:
    """Make `count` environments; see `plan`."""
    make_vector, lives, channels_first, waits, agents = plan(
        source, atari, images, waits, kwargs, wrappers, interpreter
    )
    vector = make_vector(count * agents, watch, first_rank)
    return Environments(
        vector, lives=lives, channels_first=channels_first, waits=waits, agents=agents
    )


def plan(
    source: Source,
    atari: Atari | None = None,
    images: Images | None = None,
    waits: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    interpreter: Interpreter = ACTORS_OWN,
) -> Plan:
    """Return how to make environments from an id or from the user's own callable.

    An id is Gymnasium's, or EnvPool's after `envpool:`.  A callable with a parameter `num_envs`,
    such as a VectorEnv class, is called once with it and returns a Gymnasium VectorEnv; for a
    `MultiAgent`, `num_envs` is the total number of agents.  Any other callable is called for each
    environment without positional arguments, and returns a Gymnasium Env each time.  All calls
    have `kwargs`, in which `{rank}` is replaced by the environment's number.

    `wrappers` are applied to each environment, the first one innermost.  `atari` applies only to
    Atari games, `images` to all other environments, around the wrappers; those that step as one
    have no `frame_stack`.  With `waits` an environment whose episode is over waits until it is told
    to reset.  With another `interpreter`, environments are made there (elsewhere.py), one by one.

    Raises TrainingError for an unknown id or argument, for wrappers of environments that step as
    one, and for environments that cannot wait.  `Plan.make` also raises it for unsupported
    spaces, for a callable that returns something else, for wrappers that keep statistics, and
    for observations that are not one image if `images` needs that.
    """
    images, atari = images or Images(), atari or Atari()
    kwargs = dict(kwargs or {})
    check_is_known(source, kwargs, interpreter)
    if interpreter.is_another:
        elsewhere.check(source, interpreter, steps_as_one(source), waits, images.frame_stack)
        there = functools.partial(_elsewhere, images, source, interpreter, kwargs, wrappers)
        return Plan(there)
    if env_pool.is_id(source):
        source = env_pool.maker(str(source))
    side_by_side = functools.partial(_side_by_side, images, waits, tuple(wrappers), kwargs)
    channels_first = images.frame_stack > 1
    if isinstance(source, str):
        spec = spec_of(source)
        if is_atari_id(source) and not observes_ram(spec):
            if waits:
                raise TrainingError(f"the games of {source} {CANNOT_WAIT}")
            if wrappers:
                raise TrainingError(
                    f"the games of {source} step as one and cannot be wrapped: pass a function that"
                    " makes and wraps a game as env="
                )
            native = functools.partial(_native, spec, atari, kwargs)
            return Plan(native, lives=atari.life_loss_is_terminal)
        registered = functools.partial(_registered, side_by_side, spec)
        return Plan(registered, channels_first=channels_first, waits=waits)
    if _takes_num_envs(source):
        if images.frame_stack > 1:
            raise TrainingError(
                f"{name_of(source)} makes a vector environment, whose frames frame_stack cannot"
                " reach: stack them there, or use lstm, a memory in their place"
            )
        if wrappers:
            raise TrainingError(
                f"{name_of(source)} makes a vector environment, whose environments wrappers cannot"
                " reach: wrap them there"
            )
        if waits:
            raise TrainingError(f"the environments of {name_of(source)} {CANNOT_WAIT}")
        return Plan(functools.partial(_whole, source, kwargs, images), agents=agents_of(source))
    made_one_by_one = functools.partial(side_by_side, source)
    return Plan(made_one_by_one, channels_first=channels_first, waits=waits)


def agents_of(source: Source) -> int:
    """Return the number of agents, and so of rows, of each environment of a source."""
    return len(source.agents) if isinstance(source, MultiAgent) else 1


def is_atari(source: Source) -> bool:
    """Whether a source is the id of an Atari game."""
    return isinstance(source, str) and is_atari_id(source)


def check_is_known(
    source: Source,
    kwargs: Mapping[str, Any] | None = None,
    interpreter: Interpreter = ACTORS_OWN,
) -> None:
    """Raise TrainingError for an unknown id, and for a source that does not accept these arguments.

    For an id `module:id` the module is imported, so that it and its imports are sent to actors.  An
    id that another interpreter may know is not checked.
    """
    kwargs = kwargs or {}
    if interpreter.is_another and isinstance(source, str) and not is_registered(source):
        return
    if env_pool.is_id(source):
        env_pool.check_is_known(str(source), kwargs)
        return
    if isinstance(source, str):
        if ":" not in source and not is_registered(source):
            raise TrainingError(f"no environment is called {source!r}{_closest_id(source)}")
        try:
            spec = spec_of(source)
            if kwargs:
                _check_arguments(source, spec, kwargs)
        except (gymnasium.error.Error, ImportError) as error:
            why = _is_no_id(source) or error
            raise TrainingError(f"Gymnasium cannot make {source!r}: {why}") from error
        return
    if not callable(source):
        raise TrainingError(
            f"env is of type {type(source).__name__}: pass an id, or a class or function that makes"
            " a new environment in each call"
        )
    try:
        given = {"num_envs": 1} if _takes_num_envs(source) else {}
        if env_ranks.takes_rank(source) and env_ranks.NAME not in kwargs:
            given[env_ranks.NAME] = 0
        additions.check_taken(name_of(source), kwargs, source)
        signature_of(source).bind(**given, **kwargs)
    except ValueError:  # some built-ins have no signature
        return
    except TypeError as error:
        name = name_of(source)
        raise TrainingError(
            f"{name} is called without {'other ' if kwargs else ''}arguments: {error}; pass"
            f" functools.partial({name}, ...), or a function that makes it"
        ) from None


def _check_arguments(source: str, spec: EnvSpec, kwargs: Mapping[str, Any]) -> None:
    if is_atari_id(source) and not observes_ram(spec):
        additions.check_known(source, kwargs, VECTOR_ARGUMENTS)
        return
    point = spec.entry_point
    creator = load_env_creator(point) if isinstance(point, str) else point
    if creator is not None:
        additions.check_taken(source, kwargs.keys() - set(MAKE_ARGUMENTS[1:]), creator)


def _native(
    spec: EnvSpec,
    atari: Atari,
    kwargs: Mapping[str, Any],
    count: int,
    watch: Watch | None,
    first: int,
) -> VectorEnv[Any, Any, Any]:
    return _watched(make_vector(spec, count, atari, kwargs), watch)


def _whole(
    source: Callable[..., Any],
    kwargs: Mapping[str, Any],
    images: Images,
    count: int,
    watch: Watch | None,
    first: int,
) -> VectorEnv[Any, Any, Any]:
    vector = source(num_envs=count, **env_ranks.arguments(source, kwargs, first))
    made.checked(name_of(source), vector, VectorEnv, "gymnasium.vector.VectorEnv")
    check_keeps_no_statistics(vector)
    if vector.num_envs != count:
        raise TrainingError(
            f"{name_of(source)} made {vector.num_envs} environments; expected {count}"
        )
    return _watched(preprocessed(vector, images), watch)


def _registered(
    side_by_side: Callable[..., VectorEnv[Any, Any, Any]],
    spec: EnvSpec,
    count: int,
    watch: Watch | None,
    first: int,
) -> VectorEnv[Any, Any, Any]:
    try:
        return side_by_side(functools.partial(gymnasium.make, spec), count, watch, first)
    except (gymnasium.error.Error, ImportError) as error:
        raise TrainingError(f"Gymnasium cannot make {spec.id!r}: {error}") from error


def _elsewhere(
    images: Images,
    source: Source,
    interpreter: Interpreter,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[Wrapper],
    count: int,
    watch: Watch | None,
    first: int,
) -> VectorEnv[Any, Any, Any]:
    vector = Elsewhere(source, interpreter, kwargs, wrappers, count, watch, first)
    return preprocessed(vector, images)


def _watched(vector: VectorEnv[Any, Any, Any], watch: Watch | None) -> VectorEnv[Any, Any, Any]:
    if watch is None:
        return vector
    return WatchedVectorEnv(vector, step_timeout_s=watch.step_timeout_s, flight=watch.flight)


def _side_by_side(
    images: Images,
    waits: bool,
    wrappers: Sequence[Wrapper],
    kwargs: Mapping[str, Any],
    make_one: Callable[..., Any],
    count: int,
    watch: Watch | None,
    first: int,
) -> VectorEnv[Any, Any, Any]:
    def make_checked(rank: int) -> gymnasium.Env[Any, Any]:
        env = make_one(**env_ranks.arguments(make_one, kwargs, rank))
        made.checked(name_of(make_one), env)
        env = additions.wrapped(env, wrappers)
        check_keeps_no_statistics(env)
        return preprocessed(env, images)

    flight, step_timeout_s = watch or (None, 0.0)
    makes = [functools.partial(make_checked, rank) for rank in range(first, first + count)]
    return SupervisedVectorEnv(makes, step_timeout_s=step_timeout_s, flight=flight, waits=waits)


def makes_vector(source: Source) -> bool:
    """Whether a source makes a vector environment as a whole, EnvPool's or the user's own."""
    return env_pool.is_id(source) or (callable(source) and _takes_num_envs(source))


def steps_as_one(source: Source) -> bool:
    """Whether the environments of a source are made and stepped together."""
    native = isinstance(source, str) and is_atari_id(source) and is_registered(source)
    return makes_vector(source) or (native and not observes_ram(spec_of(str(source))))


def _takes_num_envs(source: Callable[..., Any]) -> bool:
    try:
        return "num_envs" in signature_of(source).parameters
    except ValueError:  # some built-ins have no signature
        return False


def _is_no_id(word: str) -> str:
    """Return how to pass module:NAME if NAME is in that module, rather than an id; otherwise ""."""
    module, _, name = word.partition(":")
    if not hasattr(sys.modules.get(module), name):
        return ""
    file = f"{module.replace('.', '/')}.py"
    return f"{name} is not an id but in {file}: --env {file}:{name}, or env={module}.{name}"


def _closest_id(env_id: str) -> str:
    """Return a suggestion.  Bare names are compared first, so that "pong" finds "ALE/Pong-v5"."""

    def bare(name: str) -> str:
        return re.sub(r"-v\d+$", "", name.split("/")[-1]).lower()

    same = [known for known in gymnasium.registry if bare(known) == bare(env_id)]
    if same:
        best = max(same, key=lambda known: (known.startswith("ALE/"), "/" not in known, known))
        return f", did you mean {best!r}?"
    return nearest(env_id, gymnasium.registry)

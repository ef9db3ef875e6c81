"""What environments are made from: a Gymnasium id, or the user's own callable."""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import VectorEnv

from remotely.arguments import signature_of
from remotely_rl.environments.atari import Atari, is_atari_id, make_vector, observes_ram
from remotely_rl.environments.contract import Environments
from remotely_rl.environments.images import Images, preprocessed
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.supervision.vector import SupervisedVectorEnv, spec_of
from remotely_rl.supervision.whole import WatchedVectorEnv

# A Gymnasium id, or a callable that makes the user's own environments: see `make`.
Source = str | Callable[..., Any]


class Watch(NamedTuple):
    """How the environments of a process are watched over: see supervision/watchdog.py."""

    flight: Any  # memory for the flight record; None: of this process alone
    step_timeout_s: float  # 0: no limit


def make(
    source: Source,
    count: int,
    atari: Atari | None = None,
    images: Images | None = None,
    watch: Watch | None = None,
) -> Environments:
    """Make `count` environments from a Gymnasium id or from the user's own callable.

    A callable with a parameter `num_envs` (a VectorEnv class has one) is called once with it and
    returns a Gymnasium VectorEnv.  Any other callable is called `count` times without arguments
    and returns a Gymnasium Env each time.  `atari` is used for Atari games only, `images` for all
    other environments.

    Raises TrainingError for an unknown id, spaces that no policy fits, a callable that returns
    something else, or observations that are not one image if `images` asks for one.
    """
    images = images or Images()
    check_is_known(source)
    if isinstance(source, str):
        return _make_from_id(source, count, atari or Atari(), images, watch)
    if _takes_num_envs(source):
        if images.asked_for:
            raise TrainingError(
                f"{name_of(source)} makes a vector environment, which {images.asked_for} cannot"
                " change: preprocess its images yourself"
            )
        vector = source(num_envs=count)
        if not isinstance(vector, VectorEnv):
            raise TrainingError(_wrong_type(source, vector, "gymnasium.vector.VectorEnv"))
        if vector.num_envs != count:
            raise TrainingError(
                f"{name_of(source)} made {vector.num_envs} environments; expected {count}"
            )
        return Environments(_watched(vector, watch))
    return Environments(
        _side_by_side(source, count, images, watch), channels_first=images.frame_stack > 1
    )


def name_of(source: Source) -> str:
    """Return what run folders and messages call the environment: its id, or the callable's name.

    That of a functools.partial has its arguments: `Grid(size=5)`.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, functools.partial):
        words = [_word_of(one) for one in source.args]
        words += [f"{name}={_word_of(one)}" for name, one in source.keywords.items()]
        return f"{name_of(source.func)}({', '.join(words)})"
    return getattr(source, "__qualname__", type(source).__qualname__)


def _word_of(value: Any) -> str:
    """Return an argument as every process would write it, without its place in memory."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_word_of, value)))}}}"
    return name_of(value) if callable(value) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def is_atari(source: Source) -> bool:
    """Whether it is the id of an Atari game."""
    return isinstance(source, str) and is_atari_id(source)


def check_is_known(source: Source) -> None:
    """Raise TrainingError for an id that Gymnasium does not know, and for what `make` cannot call.

    Of an id `module:id`, the module is imported: it and the modules that it needs are then sent to
    actors.
    """
    if isinstance(source, str):
        if ":" not in source and source not in gymnasium.registry:
            raise TrainingError(f"no environment is called {source!r}{_closest_id(source)}")
        try:
            spec_of(source)
        except (gymnasium.error.Error, ImportError) as error:
            raise TrainingError(f"Gymnasium cannot make {source!r}: {error}") from error
        return
    if not callable(source):
        raise TrainingError(
            f"env is a {type(source).__name__}: pass an id, or a class or function that makes a new"
            " environment in each call"
        )
    try:
        given = {"num_envs": 1} if _takes_num_envs(source) else {}
        signature_of(source).bind(**given)
    except ValueError:  # some built-ins have no signature
        return
    except TypeError as error:
        name = name_of(source)
        raise TrainingError(
            f"{name} is called without arguments, and is {error}: pass functools.partial({name},"
            " ...), or a function that makes it"
        ) from None


def _make_from_id(
    env_id: str, count: int, atari: Atari, images: Images, watch: Watch | None
) -> Environments:
    spec = gymnasium.registry.get(env_id)
    if spec is not None and is_atari_id(env_id) and not observes_ram(spec):
        vector = _watched(make_vector(spec, count, atari), watch)
        return Environments(vector, lives=atari.life_loss_is_terminal)
    try:
        make_one = functools.partial(gymnasium.make, env_id)
        return Environments(
            _side_by_side(make_one, count, images, watch), channels_first=images.frame_stack > 1
        )
    except (gymnasium.error.Error, ImportError) as error:
        raise TrainingError(f"Gymnasium cannot make {env_id!r}: {error}") from error


def _watched(vector: VectorEnv[Any, Any, Any], watch: Watch | None) -> VectorEnv[Any, Any, Any]:
    if watch is None:
        return vector
    return WatchedVectorEnv(vector, step_timeout_s=watch.step_timeout_s, flight=watch.flight)


def _side_by_side(
    make_one: Callable[[], Any], count: int, images: Images, watch: Watch | None
) -> VectorEnv[Any, Any, Any]:
    def make_checked() -> gymnasium.Env[Any, Any]:
        env = make_one()
        if not isinstance(env, gymnasium.Env):
            raise TrainingError(_wrong_type(make_one, env, "gymnasium.Env"))
        return preprocessed(env, images)

    flight, step_timeout_s = watch or (None, 0.0)
    return SupervisedVectorEnv([make_checked] * count, step_timeout_s=step_timeout_s, flight=flight)


def _takes_num_envs(source: Callable[..., Any]) -> bool:
    try:
        return "num_envs" in signature_of(source).parameters
    except ValueError:  # some built-ins have no signature
        return False


def _wrong_type(source: Callable[..., Any], made: object, expected: str) -> str:
    return f"{name_of(source)} returned a {type(made).__name__}; expected a {expected}"


def _closest_id(env_id: str) -> str:
    """Suggest an id.  Bare names are compared first, so that "pong" finds "ALE/Pong-v5"."""

    def bare(name: str) -> str:
        return re.sub(r"-v\d+$", "", name.split("/")[-1]).lower()

    same = [known for known in gymnasium.registry if bare(known) == bare(env_id)]
    if same:
        best = max(same, key=lambda known: (known.startswith("ALE/"), "/" not in known, known))
        return f", did you mean {best!r}?"
    return nearest(env_id, gymnasium.registry)

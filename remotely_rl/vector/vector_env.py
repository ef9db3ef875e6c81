"""VectorEnv: a Gymnasium vector environment that survives crashes of its environments.

    from remotely_rl import VectorEnv

    envs = VectorEnv("CartPole-v1", num_envs=8)      # instead of gymnasium.make_vec
    envs = VectorEnv([make_one, make_another])       # instead of AsyncVectorEnv

The environments run in actors (host.py), several in each, on this machine or on the cluster that
this process is connected to.  An environment that raises is recreated in its actor; an actor that
dies or hangs is replaced.  A crash row (supervision/vector.py) then ends the episode: last
observation, reward 0, truncated, and a CrashReport in info["crash_report"].  If an actor dies, all
its environments have a crash row.
"""

import math
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from copy import deepcopy
from functools import partial
from multiprocessing import TimeoutError  # noqa: A004 - the one that Gymnasium raises
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from remotely.machine import this_machine
from remotely.machine.shield import shield
from remotely_rl import cluster
from remotely_rl.supervision import Crashes, CrashReport, env_ranks
from remotely_rl.supervision.crashes import MAX_RATE
from remotely_rl.supervision.infos import Info
from remotely_rl.supervision.rows import ARRAYS
from remotely_rl.supervision.seeds import of_each
from remotely_rl.supervision.vector import Make, checked_mask, maker_of, spec_of
from remotely_rl.supervision.watchdog import DEFAULT_S
from remotely_rl.vector.host import ObservationMode, Settings, checked_observation_mode, is_wrapped
from remotely_rl.vector.hosts import Hosts

T = TypeVar("T")

ABORT_S = 10.0  # for a thread to notice that its hosts have been killed


def _say(text: str) -> None:
    print(f"remotely_rl: {text}", file=sys.stderr, flush=True)


def ignore(report: CrashReport) -> None:
    """Ignore a report."""


class PendingCall(NamedTuple):
    """A call between `NAME_async` and `NAME_wait`, and its answer, if a thread waits for that."""

    name: str
    answer: "Future[Any] | None" = None


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, NDArray[Any]]):
    """See the module's docstring."""

    def __init__(
        self,
        env: str | Make | Sequence[Make],
        num_envs: int | None = None,
        *,
        envs_per_actor: int | None = None,
        cpus_per_actor: float = 1.0,
        python: str | None = None,
        packages: Sequence[str] = (),
        wrappers: Sequence[Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]] = (),
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        step_timeout_s: float = DEFAULT_S,
        max_crash_rate: float = MAX_RATE,
        episode_seeds: bool = False,
        check_finite: bool = True,
        say: Callable[[str], None] = _say,
        on_crash: Callable[[CrashReport], None] = ignore,
        **kwargs: Any,
    ):
        """Make the environments.

        env             a Gymnasium id (or `module:id`), with `kwargs` for `gymnasium.make`, in
                        which `{rank}` is the number of the environment; a callable that makes an
                        environment, perhaps by its `rank`; or one callable per environment
        envs_per_actor  environments per process; by default as many as make one process per core
                        of this machine.  Several make cheap environments faster; if the process
                        dies, all of them lose their episodes
        cpus_per_actor  CPUs that each actor reserves on the cluster
        python          the interpreter of the actors, and
        packages        what is installed for them: as in `remotely.options`
        wrappers        applied to each environment, the first one innermost
        copy            False: the step after the next overwrites the arrays that a step returns
        observation_mode  as in Gymnasium: "different" if observation spaces have other bounds but
                        one shape and dtype, or the spaces of all and of one
        step_timeout_s  the limit of one environment's step or reset; past it, the environment
                        hangs and its actor is replaced; 0: no limit
        max_crash_rate  a higher rate of crashes per step raises TrainingError; 1: no limit
        episode_seeds   give each episode its own seed, so that every crash can be replayed;
                        otherwise environments are seeded as in Gymnasium
        check_finite    treat NaN or infinity in an observation or a reward as a crash
        say             called with log messages: the first crash of each cause immediately, then
                        at most one message a minute
        on_crash        called with every report immediately, perhaps on another thread

        Raises what making an environment raises, and ValueError for a number out of range.
        """
        if envs_per_actor is not None and envs_per_actor < 1:
            raise ValueError(f"envs_per_actor is {envs_per_actor}; it must be at least 1")
        for name, number in (
            ("cpus_per_actor", cpus_per_actor),
            ("step_timeout_s", step_timeout_s),
            ("max_crash_rate", max_crash_rate),
        ):
            if not number >= 0:  # NaN is not
                raise ValueError(f"{name} is {number}; it must be at least 0")
        makes = makes_of(env, num_envs, kwargs)
        if wrappers:
            makes = [partial(_wrapped, make, list(wrappers)) for make in makes]
        width = envs_per_actor or math.ceil(len(makes) / this_machine.cores())
        mode = AutoresetMode(autoreset_mode)
        settings = Settings(
            mode,
            episode_seeds,
            check_finite,
            step_timeout_s,
            {"cpus": cpus_per_actor, "python": python, "packages": list(packages)},
            observation_mode=checked_observation_mode(observation_mode),
        )
        crashes = Crashes(say, max_crash_rate, keep=on_crash)
        self._begin(Hosts(makes, width, settings, crashes), copy, mode)
        self.spec = spec_of(env) if isinstance(env, str) else None

    def _begin(self, hosts: Hosts, copy: bool, mode: AutoresetMode) -> None:
        self.copy, self.autoreset_mode = copy, mode
        self._pending: PendingCall | None = None
        self._hosts = hosts
        first, self.num_envs = hosts.description, hosts.count
        self.observation_space, self.single_observation_space = hosts.observation_spaces
        self.single_action_space = first.action_space
        self.action_space = batch_space(first.action_space, hosts.count)
        self.metadata = {**first.metadata, "autoreset_mode": mode}
        self.render_mode = first.render_mode

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Take a step in each environment.

        Raises TrainingError if there are too many crashes, and ValueError for a wrong number of
        actions.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step; `step_wait` returns its rows.

        Until then every other call but `close` raises AlreadyPendingCallError.
        """
        self._check_none_pending("step_async")
        if isinstance(self.single_action_space, ARRAYS) and len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        self._hosts.begin(actions)
        self._pending = PendingCall("step")

    def step_wait(
        self, timeout: float | None = None
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Return the rows of the step that `step_async` began.

        Raises NoAsyncCallError if there is none, and multiprocessing.TimeoutError after `timeout`
        seconds; the step goes on, and a later `step_wait` returns its rows.
        """
        infos = self._wait("step", self._hosts.finish, timeout)
        rewards, terminated, truncated = self._hosts.outcomes
        obs = self._hosts.rows.value(self.copy)
        return obs, rewards.copy(), terminated.copy(), truncated.copy(), infos

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Info | None = None,
    ) -> tuple[Any, Info]:
        """Begin an episode in each environment, or in those of options["reset_mask"]."""
        self._check_none_pending("reset_async")
        infos = self._reset(seed, options)()
        return self._hosts.rows.value(self.copy), infos

    def reset_async(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Info | None = None,
    ) -> None:
        """Begin a `reset`; `reset_wait` returns its rows."""
        self._check_none_pending("reset_async")
        self._begin_on_a_thread("reset", self._reset(seed, options))

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Info]:
        """Return the rows of the reset that `reset_async` began; as `step_wait`."""
        infos = self._wait("reset", None, timeout)
        return self._hosts.rows.value(self.copy), infos

    def _reset(
        self, seed: int | Sequence[int | None] | None, options: Info | None
    ) -> Callable[[], Info]:
        """Check the arguments of a reset; return what does it."""
        count = self.num_envs
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(count, np.bool_) if mask is None else checked_mask(mask, count)
        seeds = list(of_each(seed, count))
        return partial(self._hosts.reset, chosen.copy(), seeds, deepcopy(options))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute.

        Raises what an environment raises, and ActorDied if its process dies.
        """
        self._check_none_pending("call_async")
        return self._call(name, args, kwargs)()

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a `call`; `call_wait` returns its results."""
        self._check_none_pending("call_async")
        self._begin_on_a_thread("call", self._call(name, args, kwargs))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of the call that `call_async` began; as `step_wait`."""
        found: tuple[Any, ...] = self._wait("call", None, timeout)
        return found

    def _call(self, name: str, args: Any, kwargs: Any) -> Callable[[], tuple[Any, ...]]:
        collect = self._hosts.ask(range(self.num_envs), "call", name, args, kwargs)
        return lambda: tuple(collect())

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """A copy of the random generator of each environment."""
        return self.call("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of the random generator of each environment."""
        return self.call("np_random_seed")

    def call_at(self, which: Sequence[int], name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of some environments, or read an attribute."""
        self._check_none_pending("call")
        return self._hosts.ask(which, "call", name, args, kwargs)()

    def are_wrapped(self, which: Sequence[int], wrapper: type) -> list[bool]:
        """Return which of these environments are wrapped by a class."""
        self._check_none_pending("are_wrapped")
        return self.apply_at(which, is_wrapped, wrapper)

    def apply_at(self, which: Sequence[int], function: Callable[..., T], *args: Any) -> list[T]:
        """Return `function(env, *args)` of some environments, from their processes."""
        self._check_none_pending("apply_at")
        return self._hosts.ask(which, "apply", function, *args)()

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, and of their replacements."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} environments")
        self.set_attr_at(range(self.num_envs), name, values)

    def set_attr_at(self, which: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of some environments, and of their replacements."""
        self._check_none_pending("set_attr")
        self._hosts.set_attributes(which, name, values)

    def render(self) -> tuple[Any, ...] | None:
        """Return a frame of each environment."""
        self._check_none_pending("render")
        return self._hosts.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the actors, without waiting for a pending call: that is aborted."""
        if (pending := self._pending) is not None:
            during = f"while waiting for a pending call to `{pending.name}` to complete."
            gymnasium.logger.warn(f"Calling `close` {during}")
            if pending.answer is not None:  # a thread uses what `close` releases
                self._hosts.abandon()
                wait([pending.answer], ABORT_S)
            self._pending = None
        self._hosts.close()

    def _begin_on_a_thread(self, name: str, action: Callable[[], Any]) -> "Future[Any]":
        with shield:  # a thread that nobody waits for would use the hosts beside the next call
            answer: Future[Any] = cluster.on_a_thread(action)
            self._pending = PendingCall(name, answer)
        return answer

    def _wait(self, name: str, action: Callable[[], Any] | None, timeout: float | None) -> Any:
        """Return the answer of a pending call: that of a thread, or that of `action`, here."""
        pending = self._pending
        if pending is None or pending.name != name:
            self._hosts.check_is_open()
            raise NoAsyncCallError(
                f"Calling `{name}_wait` without any prior call to `{name}_async`.", name
            )
        answer = pending.answer
        if answer is None:
            assert action is not None
            if timeout is None:
                self._pending = None  # even if Ctrl-C interrupts the wait: the next call goes on
                return action()
            answer = self._begin_on_a_thread(name, action)
        if not wait([answer], timeout).done:  # if interrupted, it is pending as before
            raise TimeoutError(f"the call to `{name}_wait` has timed out after {timeout:g} s")
        self._pending = None
        return answer.result()

    def _check_none_pending(self, name: str) -> None:
        if (pending := self._pending) is not None:
            self._hosts.check_is_open()
            during = f"while waiting for a pending call to `{pending.name}` to complete"
            raise AlreadyPendingCallError(
                f"Calling `{name}` {during}: take its results first", pending.name
            )


def makes_of(
    env: str | Make | Sequence[Make], num_envs: int | None, kwargs: dict[str, Any]
) -> list[Make]:
    """Return a callable for each environment.  Raises ValueError or TypeError for bad arguments."""
    if not isinstance(env, (str, Sequence)) and not callable(env):
        raise TypeError(f"env is {env!r}: it must be an id, a callable, or a list of callables")
    if isinstance(env, str):
        one, count = maker_of(env), _checked(num_envs)
        return [partial(one, **env_ranks.arguments(one, kwargs, rank)) for rank in range(count)]
    if kwargs:
        raise TypeError(f"{', '.join(kwargs)}: only an environment made from its id takes these")
    if callable(env):
        count = _checked(num_envs)
        if not env_ranks.takes_rank(env):
            return [env] * count
        make: Callable[..., Any] = env
        return [partial(make, rank=rank) for rank in range(count)]
    if not env or num_envs not in (None, len(env)):
        raise ValueError(f"num_envs is {num_envs}, and there are {len(env)} callables")
    return list(env)


def _wrapped(make: Make, wrappers: Sequence[Callable[[Any], Any]]) -> gymnasium.Env[Any, Any]:
    env = make()
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _checked(num_envs: int | None) -> int:
    if num_envs is None:
        return 1
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; it must be at least 1")
    return num_envs


class Simulators(VectorEnv):
    """A VectorEnv for central sampling: `make(width, watch, first)` makes the environments of a
    host together, numbered from `first` on.  Hosts are numbered from `first_host` on.

    Steps and resets return the infos named in `keys`, and in a step that ends an episode those in
    `keys_at_end` as well.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        hosts: int,
        width: int,
        crashes: Crashes,
        *,
        keys: frozenset[str],
        keys_at_end: frozenset[str] = frozenset(),
        step_timeout_s: float,
        first_host: int = 0,
        waits: bool = False,
    ):
        """Make the environments.

        `waits`: steps leave an environment unchanged whose episode is over, until it is reset.
        """
        mode = AutoresetMode.DISABLED if waits else AutoresetMode.NEXT_STEP
        settings = Settings(
            mode,
            True,
            True,
            step_timeout_s,
            {"cpus": 1.0},
            True,
            keys,
            keys_at_end,
            first_host,
            waits,
        )
        self._begin(Hosts([make] * (hosts * width), width, settings, crashes), False, mode)

    @property
    def memory(self) -> NDArray[np.uint8] | None:
        """The shared memory of the rows; None if hosts send them as messages."""
        return self._hosts.memory

    def close_extras(self, **kwargs: Any) -> None:
        """Close the actors: a step is aborted whose rows nobody wants, since sampling has ended."""
        self._pending = None
        super().close_extras(**kwargs)

    def abandon(self) -> None:
        """Abort a step or reset in another thread, by killing the hosts.

        It raises ClosedEnvironmentError there.  You must still call `close`.
        """
        self._hosts.abandon()

    def pause(self) -> Any:
        """Return a state from which `resume` continues exactly.

        Raises ValueError if the environments cannot be saved.
        """
        states, ended = self._hosts.pause()
        if not all(states):
            raise ValueError("the environments cannot be saved")
        return states, ended

    def resume(self, paused: Any) -> bool:
        """Continue from what `pause` returned; return whether all hosts could."""
        return self._hosts.resume(paused)

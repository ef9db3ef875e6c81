"""Randomized tests of Hosts: deaths and interrupts at any moment, checked against a simple model.

Hosts are objects in this process, so a thousand of them can die in a second.  A host dies before a
call, in it, or after its answer.  Interrupts are signals at any line of hosts.py and seat.py.
test_vector_env.py and tests/chaos test real processes.
"""

import contextlib
import functools
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import remotely
from remotely_rl.supervision import Crashes, CrashReport, SupervisedVectorEnv
from remotely_rl.supervision.vector import CRASH
from remotely_rl.vector import hosts, seat
from remotely_rl.vector.host import Host, Settings
from remotely_rl.vector.hosts import Hosts
from tests.chaos.numbered import Numbered, reward_of

SEQUENCES, THOROUGH = 4, 1_000
COUNT, WIDTH = 5, 2  # so the hosts have 2, 2 and 1
METHODS = ("make", "step", "reset", "end_episodes", "call", "set_attr")


class Short(Numbered):
    """Has episodes of a few steps; `where` returns its observation."""

    lives = [0] * COUNT
    level = now = length = 0

    def __init__(self, place: int = 0) -> None:
        super().__init__()
        Short.lives[place] += 1
        self.life = COUNT * Short.lives[place] + place
        self.draw = random.Random(self.life)

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        obs[3] = self.length = self.draw.randint(1, 6)
        return obs, info

    def where(self) -> Any:
        return self._obs().tolist()


def waiting(count: int, watch: Any, *_: Any) -> SupervisedVectorEnv:
    """Make a host's environments together; ended ones wait for a `reset`."""
    return SupervisedVectorEnv([Short] * count, episode_seeds=False, waits=True)


class Reaper:
    """Kills hosts at random.  `deaths` has the seat, the method and the moment of each death."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch):
        # Hosts are made on other threads, so each seat has its own random stream.
        self.draws = [random.Random(f"{seed} {place}") for place in range(COUNT)]
        self.chance = 0.0
        self.deaths: list[tuple[int, str, str]] = []
        self.known: dict[int, Any] = {}  # the host of each seat, after its first use
        for method in METHODS:
            patch.setattr(Host, method, self._mortal(method, getattr(Host, method)))

    def _mortal(self, method: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(host: Any, *args: Any) -> Any:
            if method == "make":
                host.seat, host.is_dead, host.is_made = args[-1] // WIDTH, False, False
            elif not host.is_made:  # called by `make`
                return real(host, *args)
            died = remotely.ActorDied(f"{method} was cut off", "SIGKILL")
            if host.is_dead:
                raise died
            moment, draw = "none", self.draws[host.seat]
            if draw.random() < self.chance:
                moment = draw.choice(("before", "in", "after"))
                self.kill(host, method, moment)
            if moment == "before":
                raise died
            answer = real(host, *args)
            if moment == "in":
                raise died
            if method == "make":
                host.is_made = True
            else:
                self.known[host.seat] = host
            return answer

        return call

    def kill(self, host: Any, method: str = "none", moment: str = "between") -> None:
        host.is_dead = True
        self.deaths.append((host.seat, method, moment))

    def pop(self) -> list[tuple[int, str, str]]:
        deaths, self.deaths = self.deaths, []
        return deaths


@contextlib.contextmanager
def interrupted_at(line: int) -> Iterator[None]:
    """Raise SIGINT at the n-th line that runs in hosts.py and seat.py."""
    files = {hosts.__file__, seat.__file__}
    remaining = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal remaining
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            remaining -= 1
            if remaining == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Model:
    """Checks each row, one environment at a time, given the deaths."""

    def __init__(self, mode: AutoresetMode, wait: bool):
        self.in_same_step, self.wait = mode is AutoresetMode.SAME_STEP, wait
        self.state = ["running"] * COUNT  # running, ended, lost
        self.last = np.zeros((COUNT, 4))
        self.seen: set[tuple[float, float]] = set()

    def host_died(self, place: int) -> None:
        for i in range(place * WIDTH, min((place + 1) * WIDTH, COUNT)):
            if self.state[i] == "running":
                self.state[i] = "lost"

    def begins(self, i: int, obs: np.ndarray) -> None:
        """Check the first observation of a new episode."""
        life, episode, step, _ = obs.tolist()
        assert step == 0
        assert (life, episode) not in self.seen
        self.seen.add((life, episode))
        self.state[i], self.last[i] = "running", obs

    def row(
        self, i: int, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> None:
        """Check a row of a step; `info` is None if an interrupt has cost it."""
        if self.state[i] == "ended":
            assert (reward, terminated, truncated) == (0, False, False)
            if self.wait:
                assert obs.tolist() == self.last[i].tolist()
            else:
                self.begins(i, obs)
            return
        final = obs
        if self.in_same_step and (terminated or truncated):
            final = self.last[i] if info is None else info["final_obs"][i]
        if self.state[i] == "lost":
            assert final.tolist() == self.last[i].tolist(), (i, final, self.last[i])
            assert (reward, terminated, truncated) == (0, False, True)
            is_over = True
        else:
            is_over = self.last[i][2] + 1 == self.last[i][3]
            if info is not None or not (is_over and self.in_same_step):
                assert final.tolist() == (self.last[i] + [0, 0, 1, 0]).tolist()
                assert np.isclose(reward, reward_of(final))
            even = self.last[i][3] % 2 == 0
            assert (terminated, truncated) == (is_over and even, is_over and not even)
        if info is not None:
            crashed = bool(info.get(f"_{CRASH}", np.zeros(COUNT, bool))[i])
            assert crashed == (self.state[i] == "lost")
            if crashed:
                assert info[CRASH][i].actor == i // WIDTH
        if not is_over:
            self.last[i] = obs
        elif self.in_same_step:
            self.begins(i, obs)
        else:
            self.state[i], self.last[i] = "ended", obs


class Play:
    """One sequence of random calls, deaths and interrupts."""

    def __init__(self, mode: AutoresetMode, wait: bool, seed: int, patch: pytest.MonkeyPatch):
        Short.lives[:] = [0] * COUNT
        self.draw = random.Random(seed)
        self.must_reset = mode is AutoresetMode.DISABLED and not wait
        self.model = Model(mode, wait)
        self.reaper = Reaper(seed, patch)
        self.reports: list[CrashReport] = []
        self.died = self.interrupts = 0
        self.levels = [0] * COUNT
        makes: Any = [waiting] * COUNT
        self.hosts = Hosts(
            makes if wait else [functools.partial(Short, i) for i in range(COUNT)],
            WIDTH,
            Settings(mode, False, True, 0.0, {"cpus": 1.0}, are_whole=wait, waits=wait),
            Crashes(lambda text: None, 1.0, keep=self.reports.append),
        )

    def run(self, calls: int) -> None:
        self.reset(np.ones(COUNT, np.bool_))
        self.reaper.chance = self.draw.choice((0.02, 0.1, 0.3))
        for _ in range(calls):
            host = self.reaper.known[self.draw.randrange(len(self.reaper.known))]
            if self.draw.random() < 0.1 and not host.is_dead:
                self.reaper.kill(host)
                self.note(self.reaper.pop())
            match self.draw.choice(("step",) * 6 + ("reset", "reset some", "ask", "set")):
                case "step":
                    self.step()
                case "reset":
                    self.reset(np.ones(COUNT, np.bool_))
                case "reset some":
                    self.reset(np.array([*self.draw.choices((True, False), k=COUNT - 1), True]))
                case "ask":
                    self.ask()
                case "set":
                    self.set()
        self.reaper.chance = 0.0
        for _ in range(2):
            self.step(may_interrupt=False)
        assert self.of_all("level") == self.levels
        self.note(self.reaper.pop())
        if not self.interrupts:  # after an interrupt, a death may be reported twice
            assert len(self.reports) == self.died

    def note(self, deaths: list[tuple[int, str, str]]) -> None:
        for place, method, _ in deaths:
            self.died += 1
            if method != "make":  # a host that was never made had no episodes
                self.model.host_died(place)

    @contextlib.contextmanager
    def perhaps_interrupted(self, chance: float, lines: int) -> Iterator[None]:
        """Interrupt the block with a chance, at one of its first `lines` lines."""
        limit = interrupted_at(self.draw.randint(1, lines))
        with limit if self.draw.random() < chance else contextlib.nullcontext():
            try:
                yield
            except KeyboardInterrupt:
                self.interrupts += 1

    # --- calls ------------------------------------------------------------------------------------

    def step(self, may_interrupt: bool = True) -> None:
        ended = [i for i in range(COUNT) if self.model.state[i] == "ended"]
        if self.must_reset and ended:
            with pytest.raises(ValueError, match="have ended: reset them first"):
                self.hosts.begin(np.zeros(COUNT, np.int64))
            self.reset(np.isin(np.arange(COUNT), ended))
        before, info = self.hosts.rows, None
        with self.perhaps_interrupted(0.5 if may_interrupt else 0.0, 300):
            self.hosts.begin(np.zeros(COUNT, np.int64))
            info = self.hosts.finish()
        if self.hosts.rows is before:  # the step has not begun
            return
        if self.hosts.is_stepping:
            match self.draw.choice(("finish", "ask", "set", "reset")):
                case "finish":
                    info = self.hosts.finish()
                case "ask":
                    with contextlib.suppress(remotely.ActorDied):
                        self.hosts.ask(range(COUNT), "call", "where", (), {})
                case "set":
                    with contextlib.suppress(remotely.ActorDied):
                        self.hosts.set_attributes([0], "level", self.levels[:1])
                case "reset":
                    self.end_step_by_reset()
                    return
        self.check_step(info)

    def check_step(self, info: Any) -> None:
        """Check the rows of a step, given the deaths in it and in the call that finished it."""
        deaths = self.reaper.pop()
        in_step = [death for death in deaths if death[1] == "step" and death[2] != "after"]
        self.note(in_step)
        obs = self.hosts.rows.value(True)
        for i, outcome in enumerate(zip(*self.hosts.outcomes, strict=True)):
            self.model.row(i, obs[i], *outcome, info)
        self.note([death for death in deaths if death not in in_step])

    def end_step_by_reset(self) -> None:
        """Reset all, which hides the rows of the interrupted step."""
        self.hosts.reset(np.ones(COUNT, np.bool_), [None] * COUNT, None)
        self.check_reset(np.ones(COUNT, np.bool_))

    def reset(self, chosen: Any) -> None:
        options = None if chosen.all() else {"reset_mask": chosen}
        self.hosts.reset(chosen, [None] * COUNT, options)
        self.check_reset(chosen)

    def check_reset(self, chosen: Any) -> None:
        deaths = self.reaper.pop()
        afterwards = [death for death in deaths if death[1:] == ("reset", "after")]
        self.note([death for death in deaths if death not in afterwards])
        obs = self.hosts.rows.value(True)
        for i in range(COUNT):
            if chosen[i]:
                self.model.begins(i, obs[i])
            else:
                assert obs[i].tolist() == self.model.last[i].tolist()
        self.note(afterwards)

    def ask(self) -> None:
        which = self.draw.sample(range(COUNT), self.draw.randint(1, COUNT))
        found = None
        with self.perhaps_interrupted(0.3, 100), contextlib.suppress(remotely.ActorDied):
            found = self.hosts.ask(which, "call", "where", (), {})()
        if found is not None:
            for i, where in zip(which, found, strict=True):
                if self.model.state[i] == "running":
                    assert where == self.model.last[i].tolist()
        self.note(self.reaper.pop())

    def set(self) -> None:
        which = self.draw.sample(range(COUNT), self.draw.randint(1, COUNT))
        values = [self.draw.randrange(1_000) for _ in which]
        given = dict(zip(which, values, strict=True))
        wanted = [given.get(i, level) for i, level in enumerate(self.levels)]
        try:
            self.hosts.set_attributes(which, "level", values)
            self.levels = wanted
        except remotely.ActorDied:  # only those of some hosts are set
            found = self.of_all("level")
            assert all(one in pair for one, *pair in zip(found, self.levels, wanted, strict=True))
            self.levels = found
        self.note(self.reaper.pop())

    def of_all(self, name: str) -> list[Any]:
        """Call a method of all environments until no host dies."""
        while True:
            with contextlib.suppress(remotely.ActorDied):
                return self.hosts.ask(range(COUNT), "call", name, (), {})()


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("mode", [*AutoresetMode, "waits"])
@pytest.mark.parametrize("sequences", [SEQUENCES, pytest.param(THOROUGH, marks=pytest.mark.slow)])
def test_no_row_is_wrong_whenever_hosts_die_and_whatever_is_interrupted(
    mode: Any, sequences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = mode == "waits"
    for seed in range(sequences):
        with monkeypatch.context() as patch:
            play = Play(AutoresetMode.DISABLED if wait else mode, wait, seed, patch)
            try:
                play.run(30)
            except BaseException as error:
                error.add_note(f"in sequence {seed}")
                raise
            finally:
                play.hosts.close()

"""Replay: a buffer of the newest rows of experience, and draws from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.masked_rows import MaskedRows, repeat_unread
from remotely_rl.experience.replay import windows
from remotely_rl.experience.replay.archive import Archive
from remotely_rl.experience.replay.choices import Chosen, Prioritised, Uniform
from remotely_rl.experience.replay.hindsight import Hindsight
from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.rows import Rows
from remotely_rl.experience.replay.sequences import SequenceInput, Sequences
from remotely_rl.experience.replay.stores import check_memory
from remotely_rl.experience.replay.windows import BEGINS, TERMINATED, VALID
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.trees import Tree

STRIDE = "steps between sequences"


class Draw(NamedTuple):
    """Drawn rows: arrays [N], trees of arrays [N, ...].

    With sequences, these are the M rows to learn from.  But `rows` has the N sequences, `obs` all
    of their observations, [L, N, ...], and `next_obs` is None.
    """

    rows: NDArray[np.int64]  # handles for `update`; they are never reused
    obs: Tree
    action: NDArray[Any]
    reward: NDArray[np.float32]  # the discounted sum of the window, each reward clipped
    discount: NDArray[np.float32]  # of the value of `next_obs`: 0 if the window terminated
    next_obs: Tree  # after the window; where `discount` is 0, `obs` again
    weight: NDArray[np.float32]  # importance of each row, the largest is 1
    version: NDArray[np.uint32]  # of the parameters that chose the action
    sequences: SequenceInput | None = None

    def priorities(self, errors: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the priority of each entry of `rows`, from the error of each row drawn."""
        return errors if self.sequences is None else self.sequences.priorities(errors)


class Replay:
    """Experience of `width` environments, drawn uniformly or by priority.

    `gamma` may be changed between draws.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        example: Trajectory | Layout,
        n_step: int = 3,
        gamma: float = 0.99,
        reward_clip: float = 0.0,
        alpha: float = 0.0,
        seed: int = 1,
        say: Callable[[str], None] = print,
        sequences: Sequences | None = None,
        hindsight: Hindsight | None = None,
    ):
        """Make room for `rows` rows in total, the same number for each environment.

        `example` has the layout of the rows.  `reward_clip` 0 clips nothing.  `alpha` is the
        exponent of priorities, 0 for uniform draws.  `say` is called if images turn out not to be
        stacks of frames.  With `sequences` it draws these instead of single rows.  With `hindsight`
        some of the rows that are drawn have another goal.

        Raises ReplayError if there is not enough memory, and for sequences with hindsight.
        """
        if rows < width or width < 1:
            raise ReplayError(
                f"a replay of {rows:,} rows for {width} environments has no row for each: ask for"
                f" at least {max(1, width):,} rows"
            )
        if sequences is not None and hindsight is not None:
            raise ReplayError(
                "sequences cannot have goals in hindsight: a memory has seen the goal that was set"
            )
        layout = example if isinstance(example, Layout) else Layout.of(example)
        kind = Prioritised if alpha else Uniform
        length = rows // width
        needed = Rows.nbytes_of(length, width, layout, sequences)
        needed += kind.nbytes_of(width * (length + 1))
        check_memory(needed, rows)
        self.width, self.gamma, self.reward_clip = width, gamma, reward_clip
        self._sequences, self._hindsight = sequences, hindsight
        self._rows = Rows(length, width, layout, say, sequences)
        self._alpha = alpha
        self._choices = self._no_choices()
        self._n_step = n_step
        self._random = np.random.default_rng(seed)
        self._archive: Archive | None = None
        # These must be equal for a saved replay to be loaded here.
        self._made_with = {**_sizes(rows, width, alpha), **layout.description}
        if sequences is not None:
            self._made_with |= {STRIDE: sequences.stride, "width of a state": sequences.width}

    def __len__(self) -> int:
        """The number of rows that can be drawn: valid rows with closed windows; or sequences."""
        return len(self._choices)

    @property
    def layout(self) -> Layout:
        """The layout of the rows."""
        return self._rows.layout

    @property
    def bytes_per_row(self) -> float:
        """The memory per row in bytes, including all overhead."""
        return (self._rows.nbytes + self._choices.nbytes) / (self.width * self._rows.length)

    @property
    def n_step(self) -> int:
        """The most rows that a window covers; it may be changed between draws."""
        return self._n_step

    @n_step.setter
    def n_step(self, n_step: int) -> None:
        before = self._span
        self._n_step = n_step
        self._close(np.arange(self.width), max(before, self._span))

    @property
    def _span(self) -> int:
        """The most rows that a draw reads."""
        if self._sequences is None:
            return self._n_step
        return self._sequences.span(self._n_step)

    def append(self, trajectory: Trajectory, column: int = 0) -> None:
        """Append T rows to each of B columns, from `column` on.

        Raises ReplayError for another layout, and for columns that do not exist.
        """
        self.layout.check(trajectory)
        if self._sequences is not None and trajectory.state.shape[1] != self._sequences.width:
            raise ReplayError(
                f"the state is {trajectory.state.shape[1]} numbers, but the replay was made for"
                f" {self._sequences.width}: make another replay for it"
            )
        if not 0 <= column <= self.width - trajectory.width:
            raise ReplayError(
                f"{trajectory.width} environments from column {column} on do not fit a replay of"
                f" {self.width} columns"
            )
        for part in self._rows.cut(trajectory):
            self._choices.forbid(self._rows.write(part, column))
            columns = np.arange(column, column + trajectory.width)
            self._close(columns, len(part.action) + self._span)

    def draw(self, count: int, beta: float = 0.4) -> Draw:
        """Draw `count` rows or sequences, with replacement.

        `beta` is the exponent of the importance weights.  Raises ReplayError if no row can be
        drawn.
        """
        if not len(self):
            if self._sequences is not None:
                raise ReplayError(
                    "the replay has no sequence to draw yet: one needs"
                    f" {self._span} rows of an environment"
                )
            raise ReplayError(
                f"the replay has no row to draw yet: a window of {self._n_step} steps needs as many"
                " rows of an environment, or the end of an episode"
            )
        rows = self._rows
        chosen = self._choices.draw(count, beta, self._random)
        if self._sequences is not None:
            return self._sequences_at(chosen, self._sequences)
        columns, numbers, weight = chosen
        window = rows.at(columns, numbers + np.arange(self._n_step)[:, None])
        first, flags, reward = window[0], rows.flags[window], rows.reward[window]
        goals = None
        if self._hindsight is not None:
            goals = self._hindsight.goals(rows, columns, numbers, self._n_step, self._random)
            flags, reward = goals.flags, goals.reward
        returns = windows.returns(flags, reward, self.gamma, self.reward_clip)
        obs = rows.observations(first)
        next_obs = rows.observations(rows.at(columns, numbers + returns.length))
        if goals is not None:
            obs, next_obs = goals.put_in(obs), goals.put_in(next_obs)
        repeat_unread(next_obs, obs, returns.discount)
        return Draw(
            rows=numbers * self.width + columns,
            obs=obs,
            action=rows.action[first],
            reward=returns.reward,
            discount=returns.discount,
            next_obs=next_obs,
            weight=weight,
            version=rows.version[first],
        )

    def _sequences_at(self, chosen: Chosen, form: Sequences) -> Draw:
        columns, numbers, weight = chosen
        rows, n_step, burn_in = self._rows, self._n_step, form.burn_in
        at = rows.at(columns, numbers + np.arange(form.span(n_step) + 1)[:, None])  # [L, N]
        flags = rows.flags[at]
        seen = MaskedRows((flags[:-1] & VALID) != 0)
        step, column = seen.valid[burn_in : form.rows].nonzero()
        step += burn_in
        window = step + np.arange(n_step)[:, None]
        returns = windows.returns(
            flags[window, column], rows.reward[at[window, column]], self.gamma, self.reward_clip
        )
        obs = rows.observations(at.reshape(-1))
        terminated = (flags[:-1] & TERMINATED) != 0
        states = rows.states
        assert states is not None
        return Draw(
            rows=numbers * self.width + columns,
            obs=trees.map_tree(
                lambda x: seen.fill_read(x.reshape(*at.shape, *x.shape[1:]), terminated), obs
            ),
            action=rows.action[at[step, column]],
            reward=returns.reward,
            discount=returns.discount,
            next_obs=None,
            weight=weight[column],
            version=rows.version[at[step, column]],
            sequences=SequenceInput(
                # A row that is no experience is followed by the beginning of an episode.
                state=np.where(seen.valid[0][:, None], states.gather(at[0]), np.float32(0)),
                begins=(flags & BEGINS) != 0,
                step=step,
                next_step=step + returns.length,
                column=column,
                burn_in=burn_in,
            ),
        )

    def update(self, rows: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of drawn rows or sequences, [N] each; a uniform replay ignores them.

        Rows that have been overwritten since are skipped.  Raises ReplayError, and sets none, if a
        priority is negative or not finite.
        """
        if isinstance(self._choices, Uniform):
            return
        if not (np.isfinite(priorities) & (priorities >= 0)).all():
            least, most = priorities.min(), priorities.max()
            raise ReplayError(f"priorities must be finite and at least 0, not {least} to {most}")
        numbers, columns = np.divmod(rows, self.width)
        places = self._rows.at(columns, numbers)
        is_there = (numbers >= self._rows.oldest[columns]) & self._choices.may(places)
        self._choices.update(places[is_there], priorities[is_there])

    @staticmethod
    def is_saved(folder: Path) -> bool:
        """Whether a folder has a saved replay."""
        return Archive.exists(folder)

    @staticmethod
    def difference(folder: Path, rows: int, width: int, alpha: float, stride: int) -> str:
        """Return why such a replay cannot load the save in a folder, or "" if it can.

        Shapes and dtypes are not compared, and `stride` only with that of sequences.  Raises
        ReplayError if the save cannot be read.
        """
        theirs = Archive.read(folder).facts["made_with"]
        ours = _sizes(rows, width, alpha)
        if STRIDE in theirs:
            ours[STRIDE] = stride
        return _difference(folder, ours, {name: theirs[name] for name in ours})

    def save(self, folder: Path) -> int:
        """Save the complete state, so that `load` continues exactly.

        Returns the number of the save, one more than that of the last save to this folder.  Only
        rows since the last save to this folder are written.  If the process dies, the previous save
        is intact.  So it is after an OSError, such as a full disk, which leaves nothing else
        behind.
        """
        if self._archive is None or self._archive.folder != folder or not self._archive.is_current:
            self._archive = Archive(folder)
        facts = {
            "made_with": self._made_with,
            "rows": self._rows.state,
            "n_step": self._n_step,
            "choices": self._choices.state,
            "random": self._random.bit_generator.state,
        }
        self._archive.save(facts, self._rows.rings(), self._choices.arrays())
        return self._archive.number

    def load(self, folder: Path) -> int:
        """Continue from the save in a folder, with the same draws and `n_step`.

        Returns the number that `save` returned.

        Raises ReplayError if there is no save, or if it has other rows, environments, shapes or
        `alpha`; the replay is then unchanged.  It also raises ReplayError if a file is damaged; the
        replay is then empty.
        """
        archive = Archive.read(folder)
        facts = archive.facts
        if differs := _difference(folder, self._made_with, facts["made_with"]):
            raise ReplayError(
                f"{differs}: load it with the settings it was saved with, or start with an empty"
                " one"
            )
        try:
            self._rows.restore(facts["rows"])
            self._choices = self._no_choices()
            archive.fill(self._rows.rings(), self._choices.arrays())
        except ReplayError:
            self._rows.clear()
            self._choices = self._no_choices()
            raise
        self._choices.restore(facts["choices"])
        self._n_step = facts["n_step"]
        self._random.bit_generator.state = facts["random"]
        self._close(np.arange(self.width), self._rows.length)
        self._archive = archive
        return archive.number

    def _no_choices(self) -> Uniform | Prioritised:
        return Prioritised(self._rows, self._alpha) if self._alpha else Uniform(self._rows)

    def _close(self, columns: NDArray[np.int64], last: int) -> None:
        """Allow rows with closed windows to be drawn, among the `last` of each column."""
        numbers = self._rows.count[columns] + np.arange(-last, 0)[:, None]
        places = self._rows.at(columns, numbers)
        is_kept = numbers >= self._rows.oldest[columns]
        flags = np.where(is_kept, self._rows.flags[places], 0).astype(np.uint8)
        if self._sequences is None:
            is_closed = windows.closed(flags, self._n_step)
        else:
            is_closed = self._sequences.closed(flags, self._n_step)
        may = self._choices.may(places) & is_kept
        self._choices.forbid(places[may & ~is_closed])
        self._choices.allow(places[is_closed & ~may])


def _sizes(rows: int, width: int, alpha: float) -> dict[str, Any]:
    return {"environments": width, "rows": rows // width * width, "alpha": alpha}


def _difference(folder: Path, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    for name in [*ours, *theirs]:
        here, there = (of.get(name, "none") for of in (ours, theirs))
        if here != there:
            return f"{folder} holds a replay whose {name} is {there}, but this one's is {here}"
    return ""

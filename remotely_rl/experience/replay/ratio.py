"""Ratio: control of how often each row is trained on, by limiting both sampling and updates.

In rounds, a learner makes the updates that it owes after each phase of sampling.  If actors go on
while it learns, they wait when they are more than 1 % ahead, like inserts in Reverb's
SampleToInsertRatio (https://arxiv.org/abs/2102.04736, section 3.4); the learner makes only the
updates that it owes.
"""

AHEAD = 0.01  # fraction of the rows trained on so far, by which sampling may run ahead


class Ratio:
    """Counts appended rows and updates, and limits both.

    `ratio` is how often each row is trained on; an update trains on `batch_size` rows.  The first
    `learn_from` rows owe no updates.  The debt grows when rows are appended: a run that is resumed
    with another ratio keeps its debt, and applies the new ratio to new rows.
    """

    def __init__(self, ratio: float, batch_size: int, learn_from: int = 0):
        self.ratio, self.batch_size, self.learn_from = ratio, batch_size, learn_from
        self.rows = 0  # appended
        self.trained = 0  # rows in all updates so far, with repetitions
        self.owed = 0.0  # rows that updates must still train on

    def appended(self, rows: int) -> None:
        """Count appended rows: only valid ones."""
        before = max(self.rows, self.learn_from)
        self.rows += rows
        self.owed += max(0, self.rows - before) * self.ratio

    def updated(self, updates: int = 1) -> None:
        """Count updates."""
        self.trained += updates * self.batch_size
        self.owed -= updates * self.batch_size

    @property
    def updates_owed(self) -> int:
        """The number of updates until the learner has reached the ratio; 0 if it is ahead."""
        return max(0, int(self.owed // self.batch_size))

    @property
    def rows_allowed(self) -> int:
        """The number of rows that may be appended before sampling must wait for updates.

        Unless it is 0, the next trajectory may be appended, whatever its length.  It always allows
        enough rows for the next update.
        """
        ahead = max(self.trained * AHEAD, self.batch_size)
        to_begin = max(0, self.learn_from - self.rows)
        return to_begin + max(0, -int(-(ahead - self.owed) // self.ratio))

    def state(self) -> dict[str, float]:
        """Return the state for `restore`."""
        return {"rows": self.rows, "trained": self.trained, "owed": self.owed}

    def restore(self, state: dict[str, float]) -> None:
        self.rows, self.trained = int(state["rows"]), int(state["trained"])
        self.owed = state["owed"]

"""Ratio: how often each row is trained on, kept from both sides.

In rounds, a learner makes the updates that it owes after each phase of sampling.  Where actors run
on while it learns, they wait when they are more than 1 % ahead, as inserts do with the
SampleToInsertRatio of Reverb (https://arxiv.org/abs/2102.04736, section 3.4); the learner makes
what it owes, and no more.
"""

AHEAD = 0.01  # of what was trained on so far, by which sampling may run ahead


class Ratio:
    """Counts rows appended and updates made, and says how many of each are to follow.

    `ratio` is how often each row is trained on; an update trains on `batch_size` rows.  The first
    `learn_from` rows owe none.  What is owed is counted when rows come: a run that is resumed with
    another ratio owes what it owed, and counts by the new one from then on.
    """

    def __init__(self, ratio: float, batch_size: int, learn_from: int = 0):
        self.ratio, self.batch_size, self.learn_from = ratio, batch_size, learn_from
        self.rows = 0  # appended
        self.trained = 0  # rows that updates have trained on, repeated ones counted each time
        self.owed = 0.0  # rows that they are still to train on

    def appended(self, rows: int) -> None:
        """Count rows that were appended: valid ones, once each."""
        before = max(self.rows, self.learn_from)
        self.rows += rows
        self.owed += max(0, self.rows - before) * self.ratio

    def updated(self, updates: int = 1) -> None:
        """Count updates that were made."""
        self.trained += updates * self.batch_size
        self.owed -= updates * self.batch_size

    @property
    def updates_owed(self) -> int:
        """How many updates bring the learner to the ratio; 0 if it is there or ahead."""
        return max(0, int(self.owed // self.batch_size))

    @property
    def rows_allowed(self) -> int:
        """How many rows may be appended before sampling has to wait for updates.

        While it is not 0 the next trajectory may be appended, however long it is; and enough is
        always allowed for the next update.
        """
        ahead = max(self.trained * AHEAD, self.batch_size)
        to_begin = max(0, self.learn_from - self.rows)
        return to_begin + max(0, -int(-(ahead - self.owed) // self.ratio))

    def state(self) -> dict[str, float]:
        """What `restore` continues from."""
        return {"rows": self.rows, "trained": self.trained, "owed": self.owed}

    def restore(self, state: dict[str, float]) -> None:
        self.rows, self.trained = int(state["rows"]), int(state["trained"])
        self.owed = state["owed"]

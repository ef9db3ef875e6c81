"""Ratio: how often each row is trained on, kept from both sides.

In rounds, a learner makes the updates that it owes after each phase of sampling.  Where actors run
on while it learns, the side that is more than 1 % ahead waits for the other, like the
SampleToInsertRatio of Reverb (https://arxiv.org/abs/2102.04736, section 3.4).
"""

AHEAD = 0.01  # of what was done so far, by which either side may run ahead


class Ratio:
    """Counts rows appended and updates made, and says which side may go on.

    `ratio` is how often each row is trained on; an update trains on `batch_size` rows.  The first
    `learn_from` rows owe none.
    """

    def __init__(self, ratio: float, batch_size: int, learn_from: int = 0):
        self.ratio, self.batch_size, self.learn_from = ratio, batch_size, learn_from
        self.rows = 0
        self.updates = 0

    def appended(self, rows: int) -> None:
        """Count rows that were appended: valid ones, once each."""
        self.rows += rows

    def updated(self, updates: int = 1) -> None:
        """Count updates that were made."""
        self.updates += updates

    @property
    def updates_owed(self) -> int:
        """How many updates bring the learner to the ratio; 0 if it is there or ahead."""
        return max(0, int(self._due // self.batch_size) - self.updates)

    @property
    def updates_allowed(self) -> int:
        """How many updates the learner may make before it has to wait for rows."""
        return max(0, int(self._due * (1 + AHEAD) // self.batch_size) - self.updates)

    @property
    def rows_allowed(self) -> int:
        """How many rows may be appended before sampling has to wait for updates.

        While it is not 0 the next trajectory may be appended, however long it is; and enough is
        always allowed for the next update.
        """
        done = self.updates * self.batch_size
        may_be_due = max(done * (1 + AHEAD), done + self.batch_size)
        return max(0, self.learn_from + -int(-may_be_due // self.ratio) - self.rows)

    @property
    def _due(self) -> float:
        """How many rows the learner should have trained on, repeated ones counted each time."""
        return max(0, self.rows - self.learn_from) * self.ratio

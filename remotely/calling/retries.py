"""Retries of a call whose outcome is lost: its actor died, or the actor's machine was lost.

The lost attempt may have run.  An error that the method itself raises is an outcome, and is never
retried, not even an ActorDied of another actor that the method has called.

    a call          of a method that allows it (objects/marks.py) is sent again to the same actor:
                    send_queue.RetriedFuture
    a job of a pool goes to any member.  An attempt that did not run is no retry, because the next
                    member is as good as the last: pools/scheduler.py
"""

from remotely.errors import ActorDied, WorkerLost
from remotely.values import raised_error


def is_lost(error: BaseException | None) -> bool:
    """Tell whether the error of a call says that its outcome is lost."""
    return isinstance(error, ActorDied | WorkerLost) and not raised_error.was_raised(error)


class Retries:
    """What the lost attempts of one call have left of its retries.

    left             how often it may be sent again
    unrun_are_free   whether an attempt that did not run counts as none
    lost_by          the error of a lost attempt; of one that may have run, if there is any
    """

    __slots__ = ("left", "lost_by", "unrun_are_free")

    def __init__(self, left: int, unrun_are_free: bool = False) -> None:
        self.left = left
        self.unrun_are_free = unrun_are_free
        self.lost_by: BaseException | None = None

    def allow(self, error: BaseException) -> bool:
        """Tell whether a call may be sent again after this error of an attempt; count that."""
        if not is_lost(error):
            return False
        may_have_run = getattr(error, "may_have_run", True)
        counts = may_have_run or not self.unrun_are_free
        if counts and self.left <= 0:
            return False
        self.left -= counts
        if self.lost_by is None or may_have_run:
            self.lost_by = error
        return True

"""What Linux does for a process at the end of its relatives: prctl(2), which Python lacks."""

import ctypes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl


def end_with_parent(number: int) -> None:
    """Send this process the signal when the thread that has started it ends."""
    _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

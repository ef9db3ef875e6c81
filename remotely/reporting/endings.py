"""How an actor has ended, in words, wherever that is shown.  Pure."""


def how_it_ended(exit: int | str | None, lost: bool = False) -> str:
    """Return what follows the name of an actor: "ended with SIGKILL", "ended with exit code 3"."""
    if lost:
        return "was lost"
    if exit is None:
        return "has ended"
    return f"ended with {exit}" if isinstance(exit, str) else f"ended with exit code {exit}"


def end_named(exit: int | str | None, lost: bool, why: str) -> str:
    """Return the same in a word or two: "SIGKILL", "exit code 3", "out of memory", "lost"."""
    if lost:
        return "lost"
    if why.startswith("out of memory"):
        return "out of memory"
    if exit is None:
        return "ended"
    return exit if isinstance(exit, str) else f"exit code {exit}"

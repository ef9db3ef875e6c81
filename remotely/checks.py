"""What an argument of the public functions is to be, said in one sentence where it is not."""

MOST = 10**12  # as much as the master's messages carry of anything but bytes


def number(name: str, value: object, least: int = 0) -> None:
    """Refuse what is no number from `least` to MOST.  Raises ValueError."""
    if _is_one_of(value, (int, float)) and least <= value <= MOST:  # type: ignore[operator]
        return
    raise ValueError(f"{name}={value!r}: it is to be a number from {least} up")


def whole_number(name: str, value: object, least: int = 0) -> None:
    """Refuse what is no whole number from `least` to MOST.  Raises ValueError."""
    if _is_one_of(value, (int,)) and least <= value <= MOST:  # type: ignore[operator]
        return
    raise ValueError(f"{name}={value!r}: it is to be a whole number from {least} up")


def of_type(name: str, value: object, wanted: type | tuple[type, ...], what: str) -> None:
    """Refuse what is of another type; `what` names the one wanted.  Raises TypeError."""
    if not isinstance(value, wanted):
        raise TypeError(f"{name}={value!r}: it is to be {what}")


def _is_one_of(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)  # True is an int too

"""Units of figures: a figure's name ends in its unit."""

from collections.abc import Callable

from tools.bench.figures import Spread


def _seconds(value: float) -> tuple[float, str]:
    if value < 1e-3:
        return value * 1e6, "us"
    return (value * 1e3, "ms") if value < 1 else (value, "s")


# The first match of a name's end counts: `_bytes_per_s`, then `_per_s`, then `_s`.
UNITS: dict[str, Callable[[float], tuple[float, str]]] = {
    "_bytes_per_s": lambda value: (value / 1e9, "GB/s"),
    "_per_s": lambda value: (value, "/s"),
    "_s": _seconds,
    "_bytes": lambda value: (value / 1e6, "MB"),
    "_share": lambda value: (value * 100, "%"),
    "_steps": lambda value: (value / 1e3, "k steps") if value < 1e6 else (value / 1e6, "M steps"),
}


def shown(figure: str, value: float) -> str:
    """Return a value in a readable unit: `shown("call_s", 0.000167)` is "167 us"."""
    number, unit = _scaled(figure, value)
    return f"{digits(number)}{unit}" if unit == "/s" else f"{digits(number)} {unit}"


def shown_spread(figure: str, spread: Spread) -> str:
    """Return a median and its range, all in the median's unit: "167 us (160-181)"."""
    median = shown(figure, spread.median)
    if spread.rounds == 1:
        return median
    number, _ = _scaled(figure, spread.median)
    scale = number / spread.median if spread.median else 1
    return f"{median} ({digits(spread.low * scale)}-{digits(spread.high * scale)})"


def digits(number: float) -> str:
    """Return three digits of a number, or all before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _scaled(figure: str, value: float) -> tuple[float, str]:
    scale = next(scale for ending, scale in UNITS.items() if figure.endswith(ending))
    return scale(value)

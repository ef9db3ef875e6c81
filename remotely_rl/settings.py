"""Settings as data: fields of a dataclass, each with a type, a line of prose and bounds.

    epochs: Annotated[int, "epochs of an update over its batch", COUNT] = 3

Such a dataclass calls `check` when it is created, so that every instance is valid.  The prose is
the help of the command line.
"""

import ast
import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from remotely_rl import other_names
from remotely_rl.errors import TrainingError, nearest


@dataclasses.dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"at least {self.low:g}"
        return f"from {self.low:g} to {self.high:g}"


@dataclasses.dataclass(frozen=True)
class Length(Range):
    """Bounds of a schedule's length: a number of steps, or below 1 a fraction of the run."""

    def check(self, name: str, value: float) -> float:
        """Return the length.  Raises TrainingError for 0, and for a fractional number of steps."""
        if not value > 0 or (value > 1 and value % 1):
            raise TrainingError(
                f"{name} must be a number of steps, or below 1 a fraction of the run, not {value:g}"
            )
        return value if value < 1 else int(value)


PLAIN: dict[type, str] = {bool: "True or False", str: "a str"}
COUNT = Range(1)
NOT_NEGATIVE = Range(0)
FRACTION = Range(0, 1)
LENGTH = Length(0)


AUTO = "auto"


class Auto(int):
    """A default number that a run replaces by what fits its machine; the number is the base of it.

    A user asks for it by "auto".
    """

    def __repr__(self) -> str:
        return AUTO

    __str__ = __repr__


class Setting(NamedTuple):
    """A field that a user can set."""

    name: str
    kind: Any  # its type
    prose: str
    bounds: Range | None
    default: Any

    @property
    def first_kind(self) -> type:
        """Its type; the first type of a union."""
        union = typing.get_origin(self.kind) in (typing.Union, types.UnionType)
        first: type = typing.get_args(self.kind)[0] if union else self.kind
        return first


def settings(kind: type) -> list[Setting]:
    """Return the fields of a dataclass that have prose, in order.

    A subclass that changes only a field's default inherits its prose and bounds.  Prose may contain
    a constant of the class: {cls.horizon}.
    """
    bases = [base for base in kind.__mro__ if dataclasses.is_dataclass(base)]
    hints = [typing.get_type_hints(base, include_extras=True) for base in bases]
    plain = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        for hint in (hints_of_base.get(field.name) for hints_of_base in hints):
            _, *rest = typing.get_args(hint) or [hint]
            if rest and isinstance(rest[0], str):
                bounds = rest[1] if len(rest) > 1 else None
                prose = rest[0].format(cls=kind)
                made = field.default_factory
                default = field.default if made is dataclasses.MISSING else made()
                found.append(Setting(field.name, plain[field.name], prose, bounds, default))
                break
    return found


def check_names(kind: type, given: Iterable[str]) -> None:
    """Raise TrainingError for a name that is not a field.

    The message suggests a field, or says why the class has no such field.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            if why := lacks(kind).get(name):
                raise TrainingError(why)
            meant = " or ".join(map(repr, other_names.here(name, known)))
            hint = f": here that is {meant}" if meant else nearest(name, known)
            raise TrainingError(f"there is no field {name!r}{hint}")


def lacks(kind: type) -> Mapping[str, str]:
    """Return the fields that a class lacks, unlike others, with the reason: its `lacks`."""
    found: Mapping[str, str] = getattr(kind, "lacks", {})
    return found


def check(made: Any) -> None:
    """Raise TrainingError for a setting of the wrong type or out of bounds.

    Converts numbers to the field's type: np.int64(2) to 2, 1e6 to 1000000.
    """
    for name, kind, _, bounds, default in settings(type(made)):
        value = getattr(made, name)
        if isinstance(default, Auto) and (value == AUTO or isinstance(value, Auto)):
            object.__setattr__(made, name, default if value == AUTO else value)
            continue
        for plain_kind, what in PLAIN.items():
            if kind is plain_kind and not isinstance(value, plain_kind):
                raise TrainingError(f"{name} must be {what}, not {value!r}")
        if value == "" and not _takes_list(kind):
            raise TrainingError(f"{name} is an empty text, which names nothing: leave it out")
        number = next((one for one in (int, float) if kind in (one, one | None)), None)
        if number is None or (value is None and kind is not number):
            continue
        is_one = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_one or not math.isfinite(value):
            raise TrainingError(f"{name} must be a number, not {value!r}")
        if number is int and not (isinstance(value, numbers.Integral) or value % 1 == 0):
            raise TrainingError(f"{name} must be a whole number, not {value!r}")
        plain = number(int(value) if isinstance(value, numbers.Integral) else float(value))
        if isinstance(bounds, Length):
            plain = bounds.check(name, plain)
        elif bounds and not bounds.low <= plain <= bounds.high:
            raise TrainingError(f"{name} must be {bounds}, not {value}")
        object.__setattr__(made, name, plain)


def _takes_list(kind: Any) -> bool:
    """Return whether a field may be a list too: an empty text is an empty one."""
    return any(typing.get_origin(part) is tuple for part in (kind, *typing.get_args(kind)))


def whole(text: str) -> int:
    """Parse a whole number, such as 2 or 1e6.  Raises ValueError if it is not one."""
    number = float(text)
    return int(number) if number.is_integer() and not text.lstrip("+-").isdecimal() else int(text)


def option(name: str, value: Any = None) -> str:
    """Format a field as an option of the command line: --n-step 1, --no-double."""
    if isinstance(value, Mapping):  # env_kwargs, evaluate_env_kwargs
        option = f"--{name.removesuffix('_kwargs').replace('_', '-')}-arg"
        return " ".join(f"{option} {key}={one}" for key, one in value.items())
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if value is None:
        return f"--{name}"
    return f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}"


def literal(text: str) -> Any:
    """Parse a command line argument as a Python literal; return the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def text_of(value: Any) -> str | None:
    """Return the text that `literal` parses to this value, or None."""
    shown = repr(value)
    for text in (value, shown) if isinstance(value, str) else (shown,):
        parsed = literal(text)
        if type(parsed) is type(value) and repr(parsed) == shown:
            return text
    return None

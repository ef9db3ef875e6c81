"""Names that Ray's users expect: an AttributeError says what to write instead.

The names do not exist: `hasattr` is false, and a class that defines one of them keeps it.
"""

import inspect
from typing import Any

OF_CLASS = {
    "remote": "call the class itself, {name}(...); resources are given to the decorator, or to "
    "remotely.options({name}, cpus=2)(...)",
    "options": "write remotely.options({name}, cpus=2)(...)",
}
OF_METHOD = {
    "remote": "{name}(...) waits for the result; {name}.submit(...) returns a future, and its "
    "result() the value",
    "options": "options are an actor's: remotely.options(Actor, ...)(...)",
}
_MISSING = object()


class RayHint:
    """A name that a class does not have, and about which its AttributeError gives advice."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __get__(self, instance: object, cls: type) -> Any:
        raise AttributeError(_sentence(f"class {cls.__name__}", self._word, OF_CLASS, cls.__name__))


def add_ray_hints(cls: type) -> None:
    """Give a class the hints for those names that it does not have itself."""
    for word in OF_CLASS:
        if inspect.getattr_static(cls, word, _MISSING) is _MISSING:
            setattr(cls, word, RayHint(word))


def no_such_attribute(method: str, word: str) -> str:
    """Return the message for an attribute that methods of handles do not have."""
    if word in OF_METHOD:
        return _sentence(f"method {method}", word, OF_METHOD, method)
    return f"the method {method} has no attribute {word!r}"


def static_member(cls: type, name: str, default: object) -> Any:
    """Return what a class has under a name, without running any of its code."""
    return default if is_ray_hint(cls, name) else inspect.getattr_static(cls, name, default)


def is_ray_hint(cls: type, name: str) -> bool:
    return name in OF_CLASS and isinstance(inspect.getattr_static(cls, name, None), RayHint)


def _sentence(what: str, word: str, words: dict[str, str], name: str) -> str:
    return f"the {what} has no {word!r}: {words[word].format(name=name)}"

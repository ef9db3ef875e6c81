"""The arguments of a call, pickled once.

What they refer to without containing it goes beside them, and they keep the actors whose handles
are among them.
"""

from collections.abc import Sequence
from typing import Any

from remotely.engine import RemoteActor
from remotely.values import codec, references
from remotely.values.codec import Encoded
from remotely.values.references import Named, Notes, named_arguments
from remotely.values.unpicklable import PartNames

_NOTHING: Sequence[Named] = ()


def encode(
    remotes: Sequence[RemoteActor],
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: PartNames = "",
) -> tuple[Encoded, Sequence[Named]]:
    """Pickle arguments, and say which of them refer to futures or refs.

    Without `remotes` nobody knows yet which actor the call is for.  `names` are what errors call
    the arguments.
    """
    encoded = codec.encode_atoms(args, kwargs)
    if encoded is not None:
        return encoded, _NOTHING
    local, noting = references.local, Notes(remotes)
    outer, local.notes = local.notes, noting
    try:
        what = names or f"{method}: args", f"{method}: kwargs"
        encoded = codec.encode((args, kwargs), what)
    finally:
        local.notes = outer
    if noting.kept:
        encoded = encoded._replace(travelling=(*encoded.travelling, *noting.kept))
    if not noting.things:
        return encoded, _NOTHING
    return encoded, named_arguments(method, args, kwargs, noting.things)

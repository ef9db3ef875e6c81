"""Trees: values nested like Gymnasium's Dict and Tuple spaces.

A tree is a leaf, or a dict or a tuple of trees.  An observation is a tree of arrays in an actor
and of tensors in a learner; one of a plain space is a leaf.  Named tuples are not trees.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

# A leaf, a dict of trees or a tuple of trees.  Any, because type checkers cannot follow the type of
# the leaves through `isinstance`.
Tree = Any
# The keys and indices from a tree to one of its leaves.
Path = tuple[str | int, ...]


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to each leaf together with the corresponding leaves of `others`."""
    if isinstance(tree, dict):
        return {
            key: map_tree(function, part, *(other[key] for other in others))
            for key, part in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves, in order."""
    return [leaf for _, leaf in items(tree)]


def items(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, leaf) pairs, in order."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from items(part, (*path, key))
    elif isinstance(tree, tuple):
        for index, part in enumerate(tree):
            yield from items(part, (*path, index))
    else:
        yield path, tree


def at(tree: Tree, path: Path) -> Tree:
    """Return the subtree at a path."""
    for key in path:
        tree = tree[key]
    return tree


def first(tree: Tree) -> Any:
    """Return the first leaf, to read a property that all leaves share."""
    while isinstance(tree, (dict, tuple)):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree


def write_row(into: Tree, index: int, tree: Tree) -> None:
    """Copy each leaf of `tree` to row `index` of the corresponding leaf of `into`."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            write_row(into[key], index, part)
    elif isinstance(tree, tuple):
        for part, whole in zip(tree, into, strict=True):
            write_row(whole, index, part)
    else:
        into[index] = tree


def join(function: Callable[[list[Any]], Any], trees: Sequence[Tree]) -> Tree:
    """Join trees of the same structure to one: `function` joins corresponding leaves."""
    return map_tree(lambda *parts: function(list(parts)), *trees)


def named(path: Path) -> str:
    """Format a path for messages: `['robot']['arm']`."""
    return "".join(f"[{key!r}]" for key in path)

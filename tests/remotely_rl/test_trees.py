"""Trees of any nesting."""

import pytest

from remotely_rl import trees

NESTED = {"a": (1, {"b": 2}), "c": 3}


def test_map_tree_applies_a_function_to_corresponding_leaves() -> None:
    assert trees.map_tree(lambda x, y: x + y, NESTED, {"c": 30, "a": (10, {"b": 20})}) == {
        "a": (11, {"b": 22}),
        "c": 33,
    }
    assert trees.map_tree(abs, -1) == 1


def test_items_returns_the_path_of_each_leaf() -> None:
    found = dict(trees.items(NESTED))
    assert found == {("a", 0): 1, ("a", 1, "b"): 2, ("c",): 3}
    assert all(trees.at(NESTED, path) == leaf for path, leaf in found.items())
    assert trees.named(("a", 1, "b")) == "['a'][1]['b']"
    assert (trees.first(NESTED), trees.leaves(NESTED)) == (1, [1, 2, 3])


def test_join_joins_corresponding_leaves() -> None:
    assert trees.join(sum, [NESTED, NESTED, NESTED]) == {"a": (3, {"b": 6}), "c": 9}


def test_map_tree_refuses_trees_of_different_structure() -> None:
    with pytest.raises((KeyError, ValueError)):
        trees.map_tree(max, NESTED, {"a": (1,), "c": 3})

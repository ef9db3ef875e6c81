"""Trees of any nesting."""

import pytest

from remotely_rl import trees

NESTED = {"a": (1, {"b": 2}), "c": 3}


def test_a_function_is_applied_to_the_leaves_at_the_same_place() -> None:
    assert trees.map_tree(lambda x, y: x + y, NESTED, {"c": 30, "a": (10, {"b": 20})}) == {
        "a": (11, {"b": 22}),
        "c": 33,
    }
    assert trees.map_tree(abs, -1) == 1


def test_each_leaf_has_a_path_that_leads_to_it() -> None:
    found = dict(trees.items(NESTED))
    assert found == {("a", 0): 1, ("a", 1, "b"): 2, ("c",): 3}
    assert all(trees.at(NESTED, path) == leaf for path, leaf in found.items())
    assert trees.named(("a", 1, "b")) == "['a'][1]['b']"
    assert (trees.first(NESTED), trees.leaves(NESTED)) == (1, [1, 2, 3])


def test_several_trees_become_one_leaf_by_leaf() -> None:
    assert trees.join(sum, [NESTED, NESTED, NESTED]) == {"a": (3, {"b": 6}), "c": 9}


def test_trees_of_different_nesting_are_rejected() -> None:
    with pytest.raises((KeyError, ValueError)):
        trees.map_tree(max, NESTED, {"a": (1,), "c": 3})

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.policies.branches import (
    Node,
    active_head,
    branch_path,
    repair_detached,
    siblings,
)


def tree(*rows: tuple[Any, ...]) -> tuple[Node, ...]:
    return tuple(Node(*row) for row in rows)


# The parallel calls of a recorded fixture's shape: the follow-up hangs off the first result.
PARALLEL = tree(
    ("u1", None, "user"),
    ("a1", "u1", "assistant"),
    ("r2", "a1", "tool", 1),
    ("r1", "a1", "tool", 0),
    ("a2", "r1", "assistant"),
    ("u2", "a2", "user"),
)

BRANCHED = tree(
    ("u1", None, "user"),
    ("a1", "u1", "assistant"),
    ("a1b", "u1", "assistant"),
    ("u2", "a1b", "user"),
    ("u2b", "a1b", "user"),
    ("a3", "u2", "assistant"),
)


def test_a_path_goes_from_the_root_to_the_head() -> None:
    assert branch_path(BRANCHED, "a3").ids == ("u1", "a1b", "u2", "a3")
    assert branch_path(BRANCHED, "a1").ids == ("u1", "a1")
    assert branch_path(BRANCHED, "a3").warnings == ()


def test_all_results_of_a_reply_are_on_its_path_in_the_order_of_its_calls() -> None:
    assert branch_path(PARALLEL, "u2").ids == ("u1", "a1", "r1", "r2", "a2", "u2")
    assert branch_path(PARALLEL, "a1").ids == ("u1", "a1", "r1", "r2")
    assert branch_path(PARALLEL, "r2").ids == ("u1", "a1", "r1", "r2")


def test_a_missing_parent_begins_the_path_with_a_warning() -> None:
    path = branch_path(tree(("a1", "gone", "assistant"), ("u2", "a1", "user")), "u2")
    assert path.ids == ("a1", "u2")
    assert path.warnings == ("a1: its parent gone is missing, the path begins here",)


def test_a_circle_ends_where_it_closes() -> None:
    path = branch_path(tree(("a", "c"), ("b", "a"), ("c", "b")), "c")
    assert path.ids == ("a", "b", "c")
    assert path.warnings == ("a: its parent c stands below it, the path begins here",)
    assert branch_path(tree(("a", "a")), "a").ids == ("a",)


def test_a_head_that_is_not_there_has_no_path() -> None:
    path = branch_path(BRANCHED, "nobody")
    assert path.ids == ()
    assert path.warnings == ("nobody: there is no such message",)


def test_the_active_head_is_the_newest_leaf_unless_a_child_is_named() -> None:
    assert active_head(BRANCHED) == "a3"
    assert active_head(BRANCHED, {"a1b": "u2b"}) == "u2b"
    assert active_head(BRANCHED, {"u1": "a1"}) == "a1"
    assert active_head(BRANCHED, {"u1": "nobody"}) == "a3"
    assert active_head(PARALLEL) == "u2"
    assert active_head(()) is None
    circle = tree(("a", "b"), ("b", "a"))
    assert (active_head(circle), active_head(circle, root="a")) == (None, "b")


def test_the_newest_of_several_roots_is_taken_unless_one_is_named() -> None:
    nodes = tree(("u1", None), ("u2", None), ("a2", "u2", "assistant"))
    assert active_head(nodes) == "a2"
    assert active_head(nodes, root="u1") == "u1"


@pytest.mark.parametrize(
    ("id", "told"),
    [("a1", ("a1", "a1b")), ("u2b", ("u2", "u2b")), ("u1", ("u1",)), ("nobody", ())],
)
def test_siblings_are_told_in_order(id: str, told: tuple[str, ...]) -> None:
    assert siblings(BRANCHED, id) == told


def test_parallel_results_are_no_branches() -> None:
    assert siblings(PARALLEL, "r2") == ("r2",)


DETACHED = tree(
    ("u1", None, "user"),
    ("a1", None, "assistant"),
    ("u2", "u1", "user"),
    ("a2", "u2", "assistant"),
)


def test_a_detached_reply_is_hung_between_the_messages_around_it() -> None:
    repaired = repair_detached(DETACHED)
    assert [each.parent for each in repaired] == [None, "u1", "a1", "u2"]
    assert branch_path(repaired, "a2").ids == ("u1", "a1", "u2", "a2")
    assert DETACHED[1].parent is None
    assert repair_detached(repaired) == repaired


def test_a_reply_whose_parent_is_absent_is_detached_too() -> None:
    nodes = tree(("u1", None, "user"), ("a1", "gone", "assistant"), ("u2", "a1", "user"))
    assert [each.parent for each in repair_detached(nodes)] == [None, "u1", "a1"]


def test_without_branches_and_without_a_user_before_it_nothing_is_repaired() -> None:
    legacy = tree(("u1", None, "user"), ("a1", None, "assistant"))
    assert repair_detached(legacy) == legacy
    leading = tree(("a1", None, "assistant"), ("u1", "a1", "user"))
    assert repair_detached(leading) == leading


def grown(seed: int, count: int) -> tuple[Node, ...]:
    rng = random.Random(seed)
    nodes: list[Node] = []
    for at in range(count):
        kinds: list[Any] = ["user", "assistant", "tool"]
        parents = [None, "gone", *(f"n{place}" for place in range(count))]
        nodes.append(Node(f"n{at}", rng.choice(parents), rng.choice(kinds), rng.randrange(3)))
    return tuple(nodes)


@settings(max_examples=200)
@given(st.integers(0, 1 << 30), st.integers(1, 9))
def test_any_tree_has_finite_paths_without_repetition_and_is_repaired_once(
    seed: int, count: int
) -> None:
    nodes = grown(seed, count)
    for node in nodes:
        path = branch_path(nodes, node.id).ids
        assert node.id in path
        assert len(set(path)) == len(path)
    repaired = repair_detached(nodes)
    assert repair_detached(repaired) == repaired
    assert [each.id for each in repaired] == [each.id for each in nodes]
    head = active_head(nodes)
    assert head is None or head in {each.id for each in nodes}

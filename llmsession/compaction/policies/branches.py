"""Conversations that are trees: the path that is shown, and what stands beside it.

A reply's follow-up may hang off one of its tool results; the others are no ancestors of it, and
belong to the path all the same. Nothing here changes a tree: an edit or a fork is a new child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

__all__ = ["BranchPath", "Node", "active_head", "branch_path", "repair_detached", "siblings"]


class Node(msgspec.Struct, frozen=True):
    """A message of a tree; ``order`` is a tool result's place among those of its call's message,
    and of equals the first in the tree comes first."""

    id: str
    parent: str | None = None
    role: Literal["user", "assistant", "tool"] = "user"
    order: int = 0


class BranchPath(msgspec.Struct, frozen=True):
    """Ids from a root to a head, and what was wrong on the way there, in words."""

    ids: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def branch_path(nodes: Sequence[Node], head: str) -> BranchPath:
    """The path to *head*, with all tool results of each reply on it, in the order of the calls.

    A parent that is not there, and one that closes a circle, begins the path and is warned of; a
    *head* that is not there has none.
    """
    known = {node.id: node for node in nodes}
    warnings: list[str] = []
    if head not in known:
        return BranchPath((), (f"{head}: there is no such message",))
    upwards: list[Node] = []
    walked: set[str] = set()
    at: str | None = head
    while at is not None:
        node = known[at]
        walked.add(at)
        upwards.append(node)
        at = node.parent
        if at is not None and at not in known:
            warnings.append(f"{node.id}: its parent {at} is missing, the path begins here")
            at = None
        elif at in walked:
            warnings.append(f"{node.id}: its parent {at} stands below it, the path begins here")
            at = None
    path: list[str] = []
    for node in reversed(upwards):
        path += [node.id] if node.id not in path else []
        if node.role == "assistant":
            path += [each.id for each in _results(nodes, node) if each.id not in path]
    return BranchPath(tuple(path), tuple(warnings))


def _results(nodes: Sequence[Node], reply: Node) -> list[Node]:
    results = [each for each in nodes if each.parent == reply.id and each.role == "tool"]
    return sorted(results, key=lambda each: each.order)


def active_head(
    nodes: Sequence[Node], active: Mapping[str, str] | None = None, root: str | None = None
) -> str | None:
    """The message at the end of the active path: from *root*, or the newest root, down by the
    *active* child where one is named, else by the newest. None for an empty tree.

    *nodes* are in the order of their times.
    """
    known = {node.id for node in nodes}
    roots = [each.id for each in nodes if each.parent is None or each.parent not in known]
    at = root if root in known else (roots[-1] if roots else None)
    walked: set[str] = set()
    while at is not None and at not in walked:
        walked.add(at)
        children = [each.id for each in nodes if each.parent == at and each.id not in walked]
        chosen = (active or {}).get(at)
        if not children:
            break
        at = chosen if chosen in children else _newest(nodes, children)
    return at


def _newest(nodes: Sequence[Node], children: Sequence[str]) -> str:
    """The newest of *children* that is gone on from, else the newest: of parallel tool results
    only one has a follow-up."""
    inner = {each.parent for each in nodes}
    return next((each for each in reversed(children) if each in inner), children[-1])


def siblings(nodes: Sequence[Node], id: str) -> tuple[str, ...]:
    """The messages that hang where *id* hangs, itself included, in order; tool results of one
    reply are no branches of it."""
    node = next((each for each in nodes if each.id == id), None)
    if node is None or node.role == "tool":
        return () if node is None else (id,)
    return tuple(each.id for each in nodes if each.parent == node.parent and each.role != "tool")


def repair_detached(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """*nodes*, in the order of their times, with replies that hang nowhere in a tree that has
    branches hung below the user's message before them; and the user's next message, if it hung
    off that one too, below the reply. What is repaired is not repaired again."""
    known = {node.id for node in nodes}
    if not any(node.parent in known for node in nodes):
        return tuple(nodes)
    repaired = list(nodes)
    for at, node in enumerate(nodes):
        if node.role != "assistant" or node.parent in known:
            continue
        asked = next((each for each in reversed(nodes[:at]) if each.role == "user"), None)
        if asked is None:
            continue
        repaired[at] = msgspec.structs.replace(node, parent=asked.id)
        after = next(
            (place for place in range(at + 1, len(nodes)) if nodes[place].role == "user"), None
        )
        if after is not None and nodes[after].parent == asked.id:
            repaired[after] = msgspec.structs.replace(repaired[after], parent=node.id)
    return tuple(repaired)

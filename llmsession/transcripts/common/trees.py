"""Conversations that are trees: their paths, and the branches that become further conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from llmsession.turns.blocks import block_type, encode_json
from llmsession.turns.messages import Message

from .assembly import CHAT, Before, assemble
from .chat_records import Reading, outgoing, with_results
from .conversation import Conversation
from .recorded_message import RecordedMessage, summary_mark

__all__ = [
    "Branching",
    "families",
    "mark_summaries",
    "newest_leaf",
    "paths",
    "read_paths",
    "without_unplaced",
    "written_path",
]


def paths(parents: Mapping[str, str | None], head: str | None, reading: Reading) -> list[list[str]]:
    """The paths of a tree from a root to a leaf: first the one that ends at *head*, then those to
    the other leaves.

    *parents* maps each node to its parent, in the order of the nodes. A missing parent, and one
    that would close a circle, is noted, and its node becomes a root.
    """
    above = _without_circles(parents, reading)
    inner = {parent for parent in above.values() if parent is not None}
    leaves = [node for node in above if node not in inner]
    heads = ([head] if head is not None else []) + [leaf for leaf in leaves if leaf != head]
    return [_path(above, node) for node in heads]


def without_unplaced(
    recorded_messages: dict[str, list[RecordedMessage]],
    parents: dict[str, str | None],
    reading: Reading,
) -> dict[str, str | None]:
    """Remove from a tree what has no place in any turn: empty replies, such as errors, and replies
    before any user message. Their children move to their parents.

    *recorded_messages* and *parents* are changed, and *reading* keeps what is removed. Returns, for
    each removed node, the nearest node above it that is left.
    """
    below_users = _below_users(recorded_messages, parents)
    gone: dict[str, str | None] = {}
    for id, messages in list(recorded_messages.items()):
        is_reply = bool(messages) and messages[0].role == "assistant"
        is_empty = all(message.role == "assistant" and not message.blocks for message in messages)
        if is_empty or (is_reply and id not in below_users):
            gone[id] = parents.pop(id)
            for message in recorded_messages.pop(id):
                _leave_out_reply(message, reading)
    for id, parent in parents.items():
        parents[id] = _standing(parent, gone)
    return {id: _standing(id, gone) for id in gone}


def mark_summaries(
    recorded_messages: dict[str, list[RecordedMessage]],
    summaries: Mapping[str, tuple[str, str]],
    gone: Mapping[str, str | None],
) -> None:
    """Insert a summary mark into *recorded_messages* for each of *summaries*.

    *summaries* maps the message that stores a summary to the first message that is not summarised,
    and the text. *gone* is the result of ``without_unplaced``.
    """
    for first, text in summaries.values():
        above = gone.get(first) or ""
        if first in recorded_messages:
            recorded_messages[first] = [*summary_mark(text), *recorded_messages[first]]
        elif above in recorded_messages:
            recorded_messages[above] = [*recorded_messages[above], *summary_mark(text)]


def _is_asking(message: RecordedMessage) -> bool:
    """Is it a user's message that holds more than results, or nothing at all?"""
    kinds = {block_type(raw) for raw in message.blocks}
    return message.role == "user" and (not kinds or bool(kinds - {"tool_use", "tool_result"}))


def _leave_out_reply(message: RecordedMessage, reading: Reading) -> None:
    """Keep a reply that has no place in any turn beside the messages."""
    if not message.blocks:
        why = "error" if message.error else "empty"
        reading.leave_out(message.number, why, message.raw, "a reply without content")
    else:
        detail = "a reply before any user text"
        reading.leave_out(message.number, "no_user_message", message.raw, detail, visible=True)


def _below_users(
    messages: Mapping[str, list[RecordedMessage]], parents: Mapping[str, str | None]
) -> set[str]:
    """The nodes that are a user's message or stand below one."""
    below: set[str] = set()
    for id in parents:
        path: list[str] = []
        current: str | None = id
        while (
            current is not None
            and current in messages
            and current not in below
            and current not in path
        ):
            path.append(current)
            current = parents[current]
        user_spoke = current in below
        for node in reversed(path):
            user_spoke = user_spoke or any(map(_is_asking, messages[node]))
            if user_spoke:
                below.add(node)
    return below


def _standing(node: str | None, gone: Mapping[str, str | None]) -> str | None:
    seen: set[str] = set()
    while node is not None and node in gone and node not in seen:
        seen.add(node)
        node = gone[node]
    return None if node in gone else node


def newest_leaf(parents: Mapping[str, str | None], times: Mapping[str, float]) -> str | None:
    """The newest node without children, and of equally new ones the last; None if there is none."""
    inner = set(parents.values())
    leaves = [node for node in parents if node not in inner]
    return max(reversed(leaves), key=lambda leaf: times.get(leaf, 0.0), default=None)


def _without_circles(parents: Mapping[str, str | None], reading: Reading) -> dict[str, str | None]:
    above: dict[str, str | None] = {}
    for number, (node, parent) in enumerate(parents.items(), 1):
        if parent is not None and parent not in parents:
            reading.note(number, "missing_parent", f"{parent}: a path begins here", visible=True)
            parent = None
        above[node] = parent
    reached: set[str] = set()
    for number, node in enumerate(parents, 1):
        walked: set[str] = set()
        current: str | None = node
        while current is not None and current not in reached:
            walked.add(current)
            parent = above[current]
            if parent is not None and parent in walked:
                reading.note(number, "circle", f"{parent} stands below itself: a path begins here")
                above[parent] = None
                parent = None
            current = parent
        reached |= walked
    return above


def _path(above: Mapping[str, str | None], node: str) -> list[str]:
    nodes: list[str] = []
    current: str | None = node
    while current is not None:
        nodes.append(current)
        current = above[current]
    return nodes[::-1]


def read_paths(
    ways: Sequence[Sequence[RecordedMessage]],
    reading: Reading,
    *,
    session: str,
    format: str,
    fields: Callable[[Sequence[RecordedMessage]], dict[str, Any]] | None = None,
    kept: Mapping[str, Any],
    **shared: Any,
) -> tuple[Conversation, ...]:
    """A conversation for each of *ways*; the first one is the active path. Messages that a branch
    shares with the path that it leaves are the same objects.

    *shared* are fields of all conversations, and *fields* gives those of one way. *kept*, a JSON
    object, holds the file's other fields; the first conversation keeps it under the name of the
    format. The id of a branch contains the id of its last message. A branch that adds no message is
    left out, and whatever it left out itself is kept with the first conversation.
    """
    conversations: list[Conversation] = []
    known: dict[str, tuple[Message, Conversation]] = {}
    homes: dict[int, Conversation] = {}
    """The conversation in which each message of the *ways* came first, by the object's identity."""
    for way in ways:
        last = next((recorded.id for recorded in reversed(way) if recorded.id), "")
        name = f"{session}#{last}" if conversations else session
        own = fields(way) if fields is not None else {}
        # Notes on records that are on no path, or on several, belong to the first conversation.
        notes = Reading(strict=reading.strict, where=reading.where) if conversations else reading
        before, start = _whole_turns(way, homes)
        if start:
            own["system"] = conversations[0].system
        fields_of_all = {**shared, **own}
        read = assemble(
            way[start:],
            session=name,
            format=format,
            rules=CHAT,
            before=before,
            notes=notes.notes,
            records=notes.records,
            **fields_of_all,
        )
        read = _with_summary_before(read, way, start)
        whole = _on_top_of(read, known, conversations[0]) if conversations else read
        if whole is None:
            conversations[0] = _with_what_was_left_out(conversations[0], read)
            continue
        beside = {} if conversations else kept
        whole = msgspec.structs.replace(
            whole, extra={format: msgspec.Raw(encode_json(beside))}, archived=_is_archived(kept)
        )
        for message in whole.messages:
            known.setdefault(message.id, (message, whole))
        for recorded in way:
            homes.setdefault(id(recorded), whole)
        conversations.append(whole)
    return tuple(conversations)


def _with_summary_before(
    read: Conversation, way: Sequence[RecordedMessage], start: int
) -> Conversation:
    """*read*, with the last summary that *way* marks before *start*, unless one is marked behind
    it. The messages before *start* were assembled with another path.
    """
    marks = [index for index, recorded in enumerate(way[:start]) if recorded.summary]
    if not marks or any(recorded.summary for recorded in way[start:]):
        return read
    following = {recorded.id for recorded in way[marks[-1] + 1 :] if recorded.id}
    places = (index for index, message in enumerate(read.messages) if message.id in following)
    upto = next(places, len(read.messages))
    return msgspec.structs.replace(read, summary=way[marks[-1]].summary, summary_upto=upto)


def _is_archived(kept: Mapping[str, Any]) -> bool:
    """Do the file's other fields, *kept*, say in any of the known ways that it is archived?"""
    values = (kept.get(name, False) for name in ("archived", "is_archived", "isArchived"))
    return any(encode_json(value) in (b"true", b"1") for value in values)


def _whole_turns(
    way: Sequence[RecordedMessage], homes: Mapping[int, Conversation]
) -> tuple[Before, int]:
    """The whole turns at the beginning of *way* that were assembled before, and how many of its
    messages they are.
    """
    shared = next(
        (index for index, messages in enumerate(way) if id(messages) not in homes), len(way)
    )
    if not shared:
        return Before(), 0
    home = homes[id(way[shared - 1])]
    if any(note.what == "moved_result" for note in home.notes):
        return Before(), 0  # a result of theirs may have been moved from behind the fork
    openings: dict[str, int] = {}
    for index, message in enumerate(home.messages):
        if not index or message.turn != home.messages[index - 1].turn:
            openings[message.id] = index
    for index in range(shared - 1, 0, -1):
        if way[index].role == "user" and way[index].id in openings:
            prefix = home.messages[: openings[way[index].id]]
            last = prefix[-1].turn if prefix else 0
            return Before(prefix, tuple(turn for turn in home.interrupted if turn <= last)), index
    return Before(), 0


def _on_top_of(
    branch: Conversation,
    known: Mapping[str, tuple[Message, Conversation]],
    main: Conversation,
) -> Conversation | None:
    """*branch*, with the messages that are known already as the same objects; None if all of them
    are.
    """
    shared: list[Message] = []
    parent = main
    for message in branch.messages:
        same, home = known.get(message.id, (None, main))
        if same is None or not _is_same(message, same):
            break
        shared.append(same)
        parent = home
    if len(shared) == len(branch.messages):
        return None
    theirs = Counter(message.turn for message in parent.messages)
    ours = Counter(message.turn for message in branch.messages)
    common = Counter(message.turn for message in shared)
    turns = sum(common[turn] == ours[turn] == theirs[turn] for turn in common)
    return msgspec.structs.replace(
        branch,
        messages=(*shared, *branch.messages[len(shared) :]),
        parent=parent.id,
        shared_turns=turns,
    )


def _is_same(message: Message, known: Message) -> bool:
    return message is known or msgspec.structs.replace(message, session=known.session) == known


def _with_what_was_left_out(main: Conversation, branch: Conversation) -> Conversation:
    left = tuple(record for record in branch.records if record not in main.records)
    notes = tuple(note for note in branch.notes if note not in main.notes)
    return msgspec.structs.replace(main, records=main.records + left, notes=main.notes + notes)


# Writing.


class Branching(msgspec.Struct):
    """A conversation with its branches, to be written as one tree."""

    main: Conversation
    all: list[Conversation]


def families(conversations: Sequence[Conversation]) -> list[Branching]:
    """*conversations*, each grouped with its branches, in order."""
    by_id = {conversation.id: conversation for conversation in reversed(conversations)}
    groups: dict[int, Branching] = {}
    for conversation in conversations:
        root, seen = conversation, {conversation.id}
        while root.parent in by_id and root.parent not in seen:
            root = by_id[root.parent]
            seen.add(root.id)
        groups.setdefault(id(root), Branching(root, [])).all.append(conversation)
    return list(groups.values())


def written_path(
    family: Branching, format: str, *, folded: bool
) -> Iterator[tuple[list[RecordedMessage], str | None, bool]]:
    """The messages of all paths, each once.

    Yields a message (with its results, if *folded*), the id of the message above it, and whether it
    is the last one of the active path.
    """
    seen: dict[str, str | None] = {}
    for conversation in [family.main, *(item for item in family.all if item is not family.main)]:
        out = outgoing(conversation, format)
        groups = with_results(out) if folded else [[message] for message in out]
        above: str | None = None
        for index, group in enumerate(groups):
            name = group[0].id
            if name in seen and seen[name] != above:
                name = f"{conversation.id}/{name}"
                group[0].id = name
            if name not in seen:
                seen[name] = above
                is_head = conversation is family.main and index == len(groups) - 1
                yield group, above, is_head
            above = name

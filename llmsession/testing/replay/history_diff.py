"""Are two histories the same? In a form without what an interrupt and a resend may change.

They may change TurnIds, message ids, times, receipts, and the suffixes of call ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import TypeAlias

import msgspec

from llmsession.transcripts import clean_call_id
from llmsession.turns.blocks import block_type, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.usage import Usage

__all__ = [
    "NormalizedHistory",
    "NormalizedMessage",
    "normalized",
    "same_history",
    "turn_differences",
]

Value: TypeAlias = str | bytes | tuple[bytes, ...]
NormalBlock: TypeAlias = dict[str, Value]
"""The fields of a block: text by its value, everything else by its bytes."""

_SUFFIX = re.compile(r"(_\d+)+$")
_Fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NormalizedMessage(msgspec.Struct, frozen=True):
    """A message without what may differ. ``settled`` are the calls whose result the session
    wrote itself."""

    role: str
    blocks: tuple[NormalBlock, ...]
    settled: tuple[str, ...] = ()
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None


NormalTurn: TypeAlias = tuple[NormalizedMessage, ...]
NormalizedHistory: TypeAlias = tuple[NormalTurn, ...]


class _Labels:
    """A call id as its base and its place among the calls of that base in one turn: the session
    adds ``_2`` and so on to an id that it has seen before, and replaces what no provider accepts,
    as the readers of files do."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._bases: Counter[str] = Counter()

    def __getitem__(self, call_id: str) -> str:
        if call_id not in self._labels:
            # A suffix may make an id too long, and what is cleaned may look like a suffix.
            base = _SUFFIX.sub("", clean_call_id(_SUFFIX.sub("", call_id)))
            self._bases[base] += 1
            self._labels[call_id] = f"{base}#{self._bases[base]}"
        return self._labels[call_id]


def normalized(history: Sequence[Message]) -> NormalizedHistory:
    """*history*, turn by turn, without TurnIds, message ids, times, receipts and the suffixes of
    call ids. Two histories are the same if their normal forms are equal."""
    turns = groupby(history, key=lambda message: message.turn)
    return tuple(_normal_turn(tuple(messages)) for _, messages in turns)


def _normal_turn(messages: Sequence[Message]) -> NormalTurn:
    labels = _Labels()
    return tuple(_normal_message(message, labels) for message in messages)


def _normal_message(message: Message, labels: _Labels) -> NormalizedMessage:
    blocks, settled = [], []
    for index, raw in enumerate(split_blocks(message.body)):
        if index in message.synthetic and block_type(raw) == "text":
            continue  # a receipt
        block = _normal_block(raw, labels)
        blocks.append(block)
        if index in message.synthetic:
            settled.append(str(block["tool_use_id"]))
    return NormalizedMessage(
        message.role,
        tuple(blocks),
        tuple(settled),
        message.model,
        message.provider,
        message.usage,
        message.stop_reason,
        message.error,
    )


def _normal_block(raw: msgspec.Raw, labels: _Labels) -> NormalBlock:
    fields = {name: _value(bytes(value)) for name, value in _Fields.decode(raw).items()}
    match block_type(raw):
        case "tool_use":
            fields["id"] = labels[str(fields.get("id"))]
        case "tool_result":
            fields["tool_use_id"] = labels[str(fields.get("tool_use_id"))]
            if fields.get("content", b"null") == b"null":
                fields["content"] = ""
            if fields.get("is_error") in (b"false", b"null"):
                del fields["is_error"]
    return fields


def _value(raw: bytes) -> Value:
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    if raw.startswith(b"["):
        return tuple(bytes(part) for part in split_blocks(raw))
    return raw


def same_history(left: Sequence[Message], right: Sequence[Message]) -> str | None:
    """The first difference between two histories in their normal form; None if there is none."""
    turns = enumerate(zip_longest(normalized(left), normalized(right)), 1)
    for number, (one, two) in turns:
        if one is None or two is None:
            return f"turn {number} is only in the {'second' if one is None else 'first'} history"
        for index, pair in enumerate(zip_longest(one, two)):
            difference = _difference(*pair)
            if difference:
                return f"turn {number}, message {index}: {difference}"
    return None


def _difference(left: NormalizedMessage | None, right: NormalizedMessage | None) -> str | None:
    if left is None or right is None:
        return f"only in the {'second' if left is None else 'first'}"
    for name in NormalizedMessage.__struct_fields__:
        one, two = getattr(left, name), getattr(right, name)
        if one != two and name == "blocks":
            return _block_difference(left.blocks, right.blocks)
        if one != two:
            return f"{name} is {one!r} in the first and {two!r} in the second"
    return None


def _block_difference(left: Sequence[NormalBlock], right: Sequence[NormalBlock]) -> str:
    for index, (one, two) in enumerate(zip_longest(left, right)):
        if one is None or two is None:
            return f"block {index} is only in the {'second' if one is None else 'first'}"
        for name in [*one, *(name for name in two if name not in one)]:
            if one.get(name) != two.get(name):
                return f"block {index} ({_text(one.get('type'))}): its {name} differs"
    return "no block differs"


def _text(value: Value | None) -> str:
    return value if isinstance(value, str) else ""


# Against the recording.


def turn_differences(
    lived: Sequence[Message],
    recorded: Sequence[Message],
    *,
    unanswered: Collection[str] = (),
    cut_short: bool = False,
) -> list[str]:
    """How the messages of one turn differ from the recorded ones, one line for each message.

    Compared are roles and blocks. Results of the recorded calls *unanswered* are not, for the
    recording has none; and blank texts of the user are not, for a session takes none. A turn that
    was *cut_short*, by an interrupt that kept it, has to be a beginning of the recorded one: its
    last results may be missing, its last reply may be a part of the text.
    """
    labels = _Labels()
    whole = _plain(recorded, labels)
    lacking = {labels[call] for call in unanswered}
    whole = _without_results(whole, lacking)
    normal = _plain(lived, _Labels())
    if cut_short:
        settled = {call for message in _normal_turn(lived) for call in message.settled}
        return list(_not_beginning(_without_results(normal, lacking | settled), whole, lived))
    return list(_unequal(_without_results(normal, lacking), whole))


Plain: TypeAlias = tuple[str, list[NormalBlock]]


def _plain(messages: Sequence[Message], labels: _Labels) -> list[Plain]:
    """Roles and blocks; user messages in a row are one, its results stand first, in call order."""
    plain: list[Plain] = []
    calls: list[str] = []
    for message in messages:
        blocks = list(_normal_message(message, labels).blocks)
        calls += [str(block["id"]) for block in blocks if block.get("type") == "tool_use"]
        if message.is_user:
            blocks = [block for block in blocks if not _is_blank(block)]
            if plain and plain[-1][0] == "user":
                blocks = plain.pop()[1] + blocks
            results = [block for block in blocks if _answers(block)]
            results.sort(key=lambda block: _place(_answers(block), calls))
            blocks = results + [block for block in blocks if not _answers(block)]
        plain.append((message.role, blocks))
    return plain


def _place(call: str, calls: Sequence[str]) -> int:
    return calls.index(call) if call in calls else len(calls)


def _answers(block: NormalBlock) -> str:
    return str(block.get("tool_use_id", "")) if block.get("type") == "tool_result" else ""


def _is_blank(block: NormalBlock) -> bool:
    return block.get("type") == "text" and not _text(block.get("text")).strip()


def _without_results(plain: Sequence[Plain], calls: Collection[str]) -> list[Plain]:
    remaining = [
        (role, [block for block in blocks if _answers(block) not in calls])
        for role, blocks in plain
    ]
    return [(role, blocks) for role, blocks in remaining if blocks]


def _unequal(lived: Sequence[Plain], recorded: Sequence[Plain]) -> Iterator[str]:
    for index, (one, two) in enumerate(zip_longest(lived, recorded)):
        if one is None or two is None:
            yield f"message {index} is only in the {'recording' if one is None else 'session'}"
        elif one[0] != two[0]:
            yield f"message {index} is the {one[0]}'s, in the recording the {two[0]}'s"
        elif one[1] != two[1]:
            yield f"message {index}: {_block_difference(one[1], two[1])}"


def _not_beginning(
    lived: Sequence[Plain], recorded: Sequence[Plain], messages: Sequence[Message]
) -> Iterator[str]:
    yield from _unequal(lived[:-1], recorded[: len(lived) - 1])
    if not lived:
        return
    if len(lived) > len(recorded) or lived[-1][0] != recorded[len(lived) - 1][0]:
        yield "the last message that was kept is not in the recording"
        return
    role, last = lived[-1]
    full = recorded[len(lived) - 1][1]
    if last == full:
        return
    if role == "user":
        # Not all results had come; of the steers those that were read.
        rest = iter(full)
        if not all(any(block == other for other in rest) for block in last):
            yield "the last results that were kept are not those of the recording"
    elif messages[-1].stop_reason != "cancelled" or not _is_begun(last, full):
        yield "the last text that was kept is no beginning of the recorded one"


def _is_begun(prefix: Sequence[NormalBlock], full: Sequence[NormalBlock]) -> bool:
    texts = [_text(block.get("text")) for block in full if _is_said(block)]
    begun = [_text(block.get("text")) for block in prefix]
    if not begun or len(begun) > len(texts):
        return False
    last = len(begun) - 1
    return begun[:last] == texts[:last] and texts[last].startswith(begun[last])


def _is_said(block: NormalBlock) -> bool:
    return block.get("type") == "text" and not _is_blank(block)

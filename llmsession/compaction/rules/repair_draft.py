"""A transcript under repair: its blocks as movable slots, and the report of changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from llmsession.errors import InvalidMessage
from llmsession.turns.blocks import encode_json, join_blocks, split_blocks
from llmsession.turns.messages import Message

from .block_fields import is_server_call, is_server_result, read_block

__all__ = ["Draft", "Repair", "Run", "Slot"]

SlotKind: TypeAlias = Literal["call", "result", "server_call", "server_result", "other"]
RESULT_OF = {"call": "id", "server_call": "id", "result": "tool_use_id"}


class Repair(msgspec.Struct, frozen=True):
    """One change of a repair.

    ``rule`` is the rule that required it. ``message_index`` is the message's index in the input.
    ``call_id`` is the call's id in the input, or "" if no call is concerned. ``what`` says what was
    done.
    """

    rule: str
    message_index: int
    call_id: str
    what: str


class Slot:
    """One block. ``call_id`` is the original id that pairs it with another block, or ""."""

    __slots__ = ("call_id", "kind", "message", "raw", "synthetic")

    def __init__(self, message: int, raw: bytes | msgspec.Raw, synthetic: bool) -> None:
        block = read_block(raw)
        self.message = message
        self.raw = raw
        self.synthetic = synthetic
        self.kind: SlotKind = _kind(block.type, block.id)
        paired_by = block.tool_use_id if self.kind.endswith("result") else block.id
        self.call_id = "" if self.kind == "other" or paired_by is None else str(paired_by)

    def rename(self, new_id: str) -> None:
        """Give the block another id. Its other fields keep their bytes and their order."""
        fields = msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw])
        fields[RESULT_OF[self.kind]] = msgspec.Raw(encode_json(new_id))
        self.raw = encode_json(fields)


def _kind(block_type: str, block_id: object) -> SlotKind:
    if block_type == "tool_use":
        # A call without an id cannot be answered.
        return "call" if isinstance(block_id, str) else "other"
    if block_type == "tool_result":
        return "result"
    if is_server_call(block_type):
        return "server_call"
    return "server_result" if is_server_result(block_type) else "other"


class Run:
    """Neighbours of one role: a range of positions in the transcript."""

    def __init__(self, role: str, start: int) -> None:
        self.role = role
        self.start = start
        self.stop = start + 1


class Draft:
    """The slots of each message, which can be changed. The messages themselves are only read."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.content = [list(_slots(index, message)) for index, message in enumerate(messages)]
        self.runs: list[Run] = []
        self.repairs: list[Repair] = []
        self._before = [tuple(slots) for slots in self.content]
        self._renamed: set[int] = set()
        self._added: dict[int, Message] = {}
        for index, message in enumerate(messages):
            if self.runs and self.runs[-1].role == message.role:
                self.runs[-1].stop = index + 1
            else:
                self.runs.append(Run(message.role, index))

    def note(self, rule: str, message: int, call_id: str, what: str) -> None:
        """Report a change."""
        self.repairs.append(Repair(rule, message, call_id, what))

    def slots(self, run: Run, *kinds: SlotKind) -> list[Slot]:
        """The slots of a run in order, of all kinds or of some."""
        inside = (slot for slots in self.content[run.start : run.stop] for slot in slots)
        return [slot for slot in inside if not kinds or slot.kind in kinds]

    def drop(self, slot: Slot, rule: str, what: str) -> None:
        """Remove a block, and report it."""
        self.take(slot)
        self.note(rule, slot.message, slot.call_id, what)

    def take(self, slot: Slot) -> None:
        """Remove a block from its message, to put it elsewhere."""
        self.content[slot.message] = [item for item in self.content[slot.message] if item != slot]

    def rename(self, slot: Slot, new_id: str) -> None:
        """Give a block another id."""
        slot.rename(new_id)
        self._renamed.add(slot.message)

    def add_after(self, message: int, slots: Sequence[Slot]) -> None:
        """Put a user message with these blocks after the assistant message at *message*."""
        above = self.messages[message]
        index = above.completed_at or above.created_at
        self._added[message] = Message(
            id=f"{above.id}+results",
            session=above.session,
            turn=above.turn,
            role="user",
            body=join_blocks(slot.raw for slot in slots),
            created_at=index,
            completed_at=index,
            synthetic=_synthetic(slots),
        )

    def finished(self) -> Iterator[Message]:
        """The messages after the repair. An unchanged message is the same object. A message that
        lost all its blocks is left out and reported (R7).
        """
        for index, message in enumerate(self.messages):
            slots = self.content[index]
            if tuple(slots) == self._before[index] and index not in self._renamed:
                yield message
            elif slots:
                body = join_blocks(slot.raw for slot in slots)
                yield msgspec.structs.replace(message, body=body, synthetic=_synthetic(slots))
            else:
                self.note("R7", index, "", "removed: no block is left in it")
            if index in self._added:
                yield self._added[index]


def _slots(index: int, message: Message) -> Iterator[Slot]:
    try:
        raws = split_blocks(message.body)
    except msgspec.DecodeError as error:
        raise InvalidMessage(
            f"messages[{index}].content is not a list of blocks: {error}"
        ) from error
    synthetic = set(message.synthetic)
    for place, raw in enumerate(raws):
        yield Slot(index, raw, place in synthetic)


def _synthetic(slots: Sequence[Slot]) -> tuple[int, ...]:
    return tuple(index for index, slot in enumerate(slots) if slot.synthetic)

"""A recorded conversation as messages, and notes on everything in the file that is no message."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import msgspec

from llmsession.turns.messages import Message

__all__ = ["Conversation", "Note", "branch_of"]


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something in the file that did not become part of a message, or not as it stood.

    ``line`` counts from 1; in a file that is one JSON document it is the number of the message
    in its conversation. ``visible`` says that the model of this conversation was sent it,
    or wrote it, and that the messages do not hold it: content was lost. Notes on bookkeeping,
    on other models' work and on content that was only moved are not visible.
    """

    line: int
    what: str
    detail: str = ""
    visible: bool = False


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds. Message ``turn`` numbers count the recorded turns, from 1.

    A turn is one user message, then assistant messages, each followed by one user message if
    it had tool results; text that came with results stands after them. Where a file gives texts
    or results in a row ids of their own, or records them one by one, each stays a message:
    neighbours of one side are one message to a provider. ``interrupted`` names
    the turns that were cut short while they were recorded. ``source`` says where the
    conversation comes from. ``extra`` holds unknown fields of the file's header and
    ``records`` unknown records, both as JSON.

    Of a file that holds a tree the active path is one conversation, and each other branch is
    one more: ``parent`` is the id of the path that it leaves, and its first ``shared_turns``
    turns are that path's, the same message objects. ``summary`` is what the file keeps as the
    summary of the conversation so far. It stands for the first ``summary_upto`` messages, which
    are in ``messages`` all the same; 0 where the file has none of them any more, or does not say
    which they are. ``system`` is the system prompt, which is no message. ``archived`` is what the
    file says: its user has put the conversation aside.
    """

    id: str
    format: str
    messages: tuple[Message, ...]
    notes: tuple[Note, ...] = ()
    interrupted: tuple[int, ...] = ()
    title: str = ""
    labels: dict[str, str] = {}
    source: str = ""
    parent: str = ""
    shared_turns: int = 0
    summary: str = ""
    summary_upto: int = 0
    system: str = ""
    archived: bool = False
    extra: dict[str, msgspec.Raw] = {}
    records: tuple[msgspec.Raw, ...] = ()

    @property
    def turns(self) -> tuple[tuple[Message, ...], ...]:
        """The messages, grouped by turn, in order."""
        grouped = groupby(self.messages, key=lambda message: message.turn)
        return tuple(tuple(group) for _, group in grouped)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The turns that do not end with an assistant message without tool calls."""
        lasts = (turn[-1] for turn in self.turns)
        return tuple(last.turn for last in lasts if last.is_user or last.tool_calls)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The ids of the tool calls that have no result in the recording, in order."""
        answered = {
            result.tool_use_id for message in self.messages for result in message.tool_results
        }
        calls = (call.id for message in self.messages for call in message.tool_calls)
        return tuple(call for call in calls if call not in answered)

    def count_notes(self) -> dict[str, int]:
        """How many notes there are of each kind, most frequent first."""
        return dict(Counter(note.what for note in self.notes).most_common())


def branch_of(parent: Conversation, branch: Conversation) -> Conversation:
    """*branch*, another path through the file of *parent*: the turns that both begin with are
    the same message objects."""
    shared: list[Message] = []
    turns = 0
    for turn, other in zip(branch.turns, parent.turns, strict=False):
        cut = [turns + 1 in conversation.interrupted for conversation in (branch, parent)]
        if cut[0] != cut[1] or list(map(_without_session, turn)) != list(
            map(_without_session, other)
        ):
            break
        turns += 1
        shared += other
    return msgspec.structs.replace(
        branch,
        messages=(*shared, *branch.messages[len(shared) :]),
        title=parent.title,
        source=parent.source,
        parent=parent.id,
        shared_turns=turns,
    )


def _without_session(message: Message) -> Message:
    # A missing id was made from the session's.
    own_id = message.id.removeprefix(f"{message.session}/")
    return msgspec.structs.replace(message, session="", id=own_id)

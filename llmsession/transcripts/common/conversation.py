"""A recorded conversation as messages, and notes on everything in the file that is not a
message.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import msgspec

from llmsession.turns.messages import Message

__all__ = ["Conversation", "Note", "branch_of"]


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something in the file that did not become part of a message, or not unchanged.

    - ``line`` counts from 1. In a file that is one JSON document, it is the number of the message
      in its conversation.
    - ``what`` is the kind of the note, and ``detail`` describes it.
    - ``visible`` is True if content was lost: the model of this conversation was sent it or wrote
      it, and the messages do not contain it. Notes on bookkeeping, on other models' work, and on
      content that was only moved are not visible.
    """

    line: int
    what: str
    detail: str = ""
    visible: bool = False


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file.

    The ``turn`` numbers of messages count the recorded turns, from 1. A turn is one user message,
    then assistant messages, each followed by one user message if it had tool results. Text that
    came with results stands after them. If a file gives consecutive texts or results ids of their
    own, or records them one by one, each stays a message; to a provider, neighbours of one side are
    one message.

    - ``interrupted`` lists the turns that were cut short while they were recorded.
    - ``source`` says where the conversation comes from.
    - ``extra`` holds unknown fields of the file's header, and ``records`` unknown records, both as
      JSON.
    - ``parent`` and ``shared_turns``: in a file with a tree, the active path is one conversation,
      and each other branch is a further one. ``parent`` is the id of the path that the branch
      leaves. The branch's first ``shared_turns`` turns are those of that path, with the same
      message objects.
    - ``summary`` is the file's summary of the conversation so far. It replaces the first
      ``summary_upto`` messages, which are in ``messages`` nevertheless. ``summary_upto`` is 0 if
      the file has none of these messages any more, or does not say which they are.
    - ``system`` is the system prompt, which is not a message.
    - ``archived`` is True if the file says that its user has archived the conversation.
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
        """The messages grouped by turn, in order."""
        grouped = groupby(self.messages, key=lambda message: message.turn)
        return tuple(tuple(group) for _, group in grouped)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The numbers of the turns that do not end with an assistant message without tool calls."""
        lasts = (turn[-1] for turn in self.turns)
        return tuple(last.turn for last in lasts if last.is_user or last.tool_calls)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The ids of the tool calls without a result in the recording, in order."""
        answered = {
            result.tool_use_id for message in self.messages for result in message.tool_results
        }
        calls = (call.id for message in self.messages for call in message.tool_calls)
        return tuple(call for call in calls if call not in answered)

    def count_notes(self) -> dict[str, int]:
        """How many notes there are of each kind, the most frequent first."""
        return dict(Counter(note.what for note in self.notes).most_common())


def branch_of(parent: Conversation, branch: Conversation) -> Conversation:
    """*branch*, another path through the file of *parent*. The turns at the beginning of both
    become the same message objects.
    """
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
    # A missing id was derived from the session's id.
    own_id = message.id.removeprefix(f"{message.session}/")
    return msgspec.structs.replace(message, session="", id=own_id)

"""A recorded conversation as the records of a session: repaired, numbered, with its source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import safe_cuts
from llmsession.compaction.rules.check import check_request
from llmsession.compaction.rules.repair import tool_pair_repair
from llmsession.compaction.summaries.cap import result_text
from llmsession.compaction.summaries.extractive import summarise
from llmsession.compaction.summaries.shorten import shorten_text
from llmsession.compaction.tokens.messages import context_tokens, text_tokens_for
from llmsession.compaction.view.plan import Plan, plan_of, record_of
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.provider_blocks import summary_in
from llmsession.compaction.view.summary_wording import introduced
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidConfig, InvalidInput, InvalidMessage
from llmsession.transcripts import Conversation, with_usable_calls
from llmsession.turns import records as r
from llmsession.turns.blocks import (
    Block,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    is_thinking,
    join_blocks,
    parse_blocks,
    text_block,
)
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, message_id
from llmsession.turns.request import Frame, Profile

from ..values.config import CompactionConfig
from ..values.validation import checked_labels

__all__ = [
    "OPENING",
    "Imported",
    "check_sendable",
    "import_turns",
    "source_of",
    "usable_labels",
    "with_file_summary",
]

OPENING = "(The assistant speaks first.)"
"""The user message of a turn that has none, because a conversation must begin with the user."""
MIN_SUMMARY_CHARS = 400
"""A summary is not shortened below this length, however small the window is."""
MAX_REPAIRS = 1_000
"""How many lines about repairs a session's source keeps. The rest are only counted."""


class Imported(NamedTuple):
    """The turns of a conversation as records."""

    turns: tuple[r.TurnImported, ...]
    summaries: tuple[r.SummariesStored, ...]
    numbers: dict[int, int]
    """The session's turn numbers by those in the conversation."""
    repairs: tuple[str, ...]
    """What was changed, one line per change."""
    compacted: tuple[r.CompactionApplied, ...] = ()
    """The summary of the file, for the messages that it stands for."""

    @property
    def records(self) -> tuple[r.Record, ...]:
        """The records to write, in order."""
        return (*self.turns, *self.summaries, *self.compacted)

    def view_of(self, count: int) -> View:
        """How the session shows its first *count* messages, including the summary of the file."""
        view = View(thinking_from=count)
        for record in self.compacted:
            view = view.applied(plan_of(record), count)
        return view

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, in order."""
        return tuple(message for turn in self.turns for message in turn.messages)


def import_turns(
    conversation: Conversation,
    session: str,
    *,
    compaction: CompactionConfig,
    before: Sequence[Message] = (),
    shared_turns: int = 0,
    used: Collection[int] = (),
) -> Imported:
    """The turns of *conversation* without its first *shared_turns*.

    *session* has the messages of the shared turns already (*before*). Calls are paired with
    results. Call ids that no provider accepts are replaced, and all are made unique; a message
    keeps replaced ids in its ``extra``. Message ids and turn numbers stay, unless *session* already
    uses them (*used* are its turn numbers). A turn without a user message gets a neutral one, and
    an empty turn is left out. Long results get the summaries that a compaction shows.

    Raises InvalidMessage for content that is not a list of blocks.
    """
    repairs: list[str] = []
    groups = [
        repaired
        for turn in _usable(conversation.turns[shared_turns:], repairs)
        if (repaired := _repaired(turn, session, repairs))
    ]
    numbers: dict[int, int] = {}
    numbered = list(_numbered(groups, {*used}, numbers, repairs))
    messages = _unique_calls(before, numbered, repairs)
    ids = {message.id for message in before}
    turns = tuple(
        r.TurnImported(
            turn=number,
            messages=tuple(_with_ids(group, session, ids, repairs)),
            calls=tuple(_calls(group)),
        )
        for number, group in _by_turn(messages)
    )
    summaries = dict(_summaries(turns, compaction))
    return Imported(
        turns,
        (r.SummariesStored(summaries=summaries),) if summaries else (),
        numbers,
        tuple(repairs),
    )


def with_file_summary(
    imported: Imported,
    conversation: Conversation,
    profile: Profile,
    *,
    before: Sequence[Message],
    numbers: Mapping[int, int],
    budget_tokens: int,
) -> Imported:
    """*imported* with the summary of *conversation*, if it has one, as the first prefix summary.

    The summary stands for the same messages as in the file, up to the last place before their end
    at which no call is separated from its result. If those messages are gone, or the file does not
    say which they are, it is placed before all messages. *before* are the messages that a branch
    shares with its parent, *numbers* the session's turn numbers by those in the conversation. A
    summary over half of *budget_tokens* is shortened, and the repairs say so; the source keeps it
    unchanged.
    """
    text = conversation.summary.strip()
    if not text:
        return imported
    messages = (*before, *imported.messages)
    upto = _summarised(conversation, messages, numbers)
    if any(summary_in(message.body, upto) for message in messages[upto:] if message.is_assistant):
        line = "summary: not shown, because a later summary of the provider covers more messages"
        return imported._replace(repairs=(*imported.repairs, line))
    repairs = imported.repairs
    shown, chars = introduced(text), int(budget_tokens * profile.chars_per_token / 2)
    while text_tokens_for(shown, profile) > budget_tokens // 2 and chars > MIN_SUMMARY_CHARS:
        shown = introduced(shorten_text(text, chars))
        chars = chars * 4 // 5
    if shown != introduced(text):
        line = f"summary: shortened, because {len(text):,} characters exceed half of a request"
        repairs = (*repairs, line)
    place = f"the first {upto} messages" if upto else "messages that are not in the file"
    plan = Plan(
        policy="imported",
        compacted_before=0,
        reason=f"the summary of {place}, from a file of the format {conversation.format}",
        tokens_before=context_tokens(messages, View(), profile),
        tokens_after=0,
        turns_compacted=len({message.turn for message in messages[:upto]}),
        voids_thinking=profile.binds_thinking,
        prefix_summary=r.PrefixSummary(upto, shown, "caller"),
        trigger="caller",
    )
    after = context_tokens(messages, View().applied(plan, len(messages)), profile)
    record = replace(record_of(plan), tokens_after=after)
    return imported._replace(repairs=repairs, compacted=(record,))


def _summarised(
    conversation: Conversation, messages: Sequence[Message], numbers: Mapping[int, int]
) -> int:
    """How many of the session's *messages* the summary of *conversation* stands for."""
    count = conversation.summary_upto
    if count >= len(conversation.messages):
        return len(messages)
    if count <= 0:
        return 0
    first = conversation.messages[count]
    turn = numbers.get(first.turn)
    places = [index for index, message in enumerate(messages) if message.turn == turn]
    if not places:  # the turn was left out, so the messages before it are summarised
        kept = {numbers.get(message.turn, 0) for message in conversation.messages[count:]}
        shown = (index for index, message in enumerate(messages) if message.turn in kept)
        return next(shown, len(messages))
    begins_turn = conversation.messages[count - 1].turn != first.turn
    place = places[0]
    if not begins_turn:
        place = next((i for i in places if first.id and messages[i].id == first.id), place)
    return max(cut for cut in safe_cuts(messages, 0, place))


def _usable(
    turns: Sequence[Sequence[Message]], repairs: list[str]
) -> Iterator[tuple[Message, ...]]:
    """*turns* without call ids that no provider accepts."""
    messages = [message for turn in turns for message in turn]
    for message in messages:
        _blocks(message)  # raises for a message that is not a list of blocks

    def note(message: Message, detail: str) -> None:
        repairs.append(f"{_named(message)}: {detail}")

    usable = iter(with_usable_calls(messages, note))
    for turn in turns:
        yield tuple(islice(usable, len(turn)))


def _repaired(turn: Sequence[Message], session: str, repairs: list[str]) -> tuple[Message, ...]:
    messages = []
    for message in turn:
        if _blocks(message):
            messages.append(message)
        else:
            repairs.append(f"{_named(message)}: left out because it is empty")
    paired, changes = tool_pair_repair(messages)
    for change in changes:
        call = f", call {change.call_id}" if change.call_id else ""
        repairs.append(
            f"{_named(messages[change.message_index])}{call}: {change.rule}, {change.what}"
        )
    if paired and not (paired[0].is_user and _says_something(paired[0])):
        first = paired[0]
        repairs.append(f"turn {first.turn}: a neutral user message was added in front")
        opening = Message(
            id="",
            session=session,
            turn=first.turn,
            role="user",
            body=join_blocks([text_block(OPENING)]),
            created_at=first.created_at,
            completed_at=first.created_at,
            synthetic=(0,),
        )
        paired = (opening, *paired)
    return paired


def _blocks(message: Message) -> tuple[Block, ...]:
    try:
        return parse_blocks(message.body)
    except msgspec.DecodeError as error:
        raise InvalidMessage(
            f"{_named(message)}: its content is not a list of blocks: {error}"
        ) from error


def _named(message: Message) -> str:
    return f"turn {message.turn}, message {message.id or '(without an id)'}"


def _says_something(message: Message) -> bool:
    return any(
        not (isinstance(block, TextBlock) and not block.text.strip()) and not is_thinking(block)
        for block in parse_blocks(message.body)
    )


def _numbered(
    groups: Sequence[tuple[Message, ...]],
    used: set[int],
    numbers: dict[int, int],
    repairs: list[str],
) -> Iterator[Message]:
    """The messages of *groups*, with turn numbers that are neither in *used* nor given twice."""
    free = max([*used, *(group[0].turn for group in groups)], default=0)
    for group in groups:
        number = group[0].turn
        if number < 1 or number in used:
            free += 1
            repairs.append(f"turn {number}: renumbered to {free}, because the number was used")
            number = free
        used.add(number)
        numbers.setdefault(group[0].turn, number)
        for message in group:
            yield message if message.turn == number else replace(message, turn=number)


def _unique_calls(
    before: Sequence[Message], messages: Sequence[Message], repairs: list[str]
) -> tuple[Message, ...]:
    """*messages* with call ids that no earlier message has.

    The calls and results of each turn are already paired.
    """
    unique, changes = tool_pair_repair((*before, *messages))
    for change in changes:
        repairs.append(f"call {change.call_id}: {change.rule}, {change.what}")
    return unique[len(before) :]


def _by_turn(messages: Sequence[Message]) -> Iterator[tuple[int, list[Message]]]:
    turns: dict[int, list[Message]] = {}
    for message in messages:
        turns.setdefault(message.turn, []).append(message)
    yield from turns.items()


def _calls(group: Sequence[Message]) -> Iterator[str]:
    for message in group:
        # Not ``message.tool_calls``, because the message would cache the parsed blocks.
        for block in parse_blocks(message.body):
            if isinstance(block, ToolUseBlock):
                yield block.id


def _with_ids(
    group: Sequence[Message], session: str, ids: set[str], repairs: list[str]
) -> Iterator[Message]:
    counts = {"user": 0, "assistant": 0}
    for message in group:
        position = counts[message.role]
        counts[message.role] += 1
        new_id = message.id
        if not new_id or new_id in ids:
            new_id = message_id(session, TurnId(message.turn_id.owner, message.turn), position)
            while new_id in ids:
                new_id += "+"
            if message.id:
                repairs.append(f"{_named(message)}: its id was used, so it became {new_id}")
        ids.add(new_id)
        if (new_id, message.session) != (message.id, message.session or session):
            message = replace(message, id=new_id, session=message.session or session)
        yield message


def _summaries(
    turns: Sequence[r.TurnImported], compaction: CompactionConfig
) -> Iterator[tuple[str, str]]:
    if not compaction.enabled:
        return
    for turn in turns:
        for message in turn.messages:
            for block in parse_blocks(message.body):
                if isinstance(block, ToolResultBlock):
                    summary = summarise(
                        result_text(block.content),
                        is_error=bool(block.is_error),
                        max_chars=compaction.summary_chars,
                    )
                    if summary:
                        yield block.tool_use_id, summary


def source_of(conversation: Conversation, imported: Imported, left_out: Sequence[str]) -> r.Source:
    """Everything that *conversation* has beside its messages.

    Its notes, the repairs and *left_out* become lines of ``repairs``.
    """
    notes = [
        f"line {note.line}: {note.what}{', ' + note.detail if note.detail else ''}"
        for note in conversation.notes
    ]
    lines = (*notes, *imported.repairs, *left_out)
    if len(lines) > MAX_REPAIRS:
        lines = (*lines[:MAX_REPAIRS], f"and {len(lines) - MAX_REPAIRS:,} more")
    return r.Source(
        format=conversation.format,
        id=conversation.id,
        title=conversation.title,
        summary=conversation.summary,
        system=conversation.system,
        origin=conversation.source,
        parent=conversation.parent,
        shared_turns=conversation.shared_turns,
        interrupted=tuple(imported.numbers.get(turn, turn) for turn in conversation.interrupted),
        extra=conversation.extra,
        records=conversation.records,
        repairs=lines,
    )


def usable_labels(conversation: Conversation) -> tuple[dict[str, str], tuple[str, ...]]:
    """The labels of *conversation* that a session can have, and a line for each other one."""
    labels: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in conversation.labels.items():
        try:
            labels = checked_labels({**labels, name: value})
        except InvalidInput as error:
            left_out.append(f"label left out: {error}")
    return labels, tuple(left_out)


def check_sendable(
    conversation: Conversation,
    messages: Sequence[Message],
    view: View,
    profile: Profile,
    frame: Frame,
) -> None:
    """Check that a request that continues *messages*, shown by *view* or completely, is valid.

    Raises InvalidInput if it would break a rule, and InvalidConfig if the messages have tool calls
    and the configuration has no tools.
    """
    name = f"conversation {conversation.id!r}"
    if not frame.tools and any(message.tool_calls for message in messages):
        raise InvalidConfig(
            f"{name} has tool calls, but the configuration has no tools; add at least one"
        )
    body = join_blocks([text_block("go on")])
    next_message = Message(id="", session="", turn=0, role="user", body=body)
    # A rule that is broken even without the conversation is not the conversation's fault.
    bare = project((next_message,), View(), profile, frame)
    others = {(broken.rule, broken.text) for broken in check_request(bare, profile)}
    whole = View(thinking_from=len(messages))
    for shown in (whole,) if view == whole else (whole, view):  # a rewind may show all messages
        request = project((*messages, next_message), shown, profile, frame)
        for broken in check_request(request, profile):
            if (broken.rule, broken.text) not in others:
                problem = f"{broken.rule} {broken.where}: {broken.text}"
                raise InvalidInput(f"{name} cannot be continued: {problem}")

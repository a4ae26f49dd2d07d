"""The compaction of the Cline SDK: fold what an agent did, project onto a budget, and summarise.

The first two need no model. Source: the Cline SDK, its ``basic`` compaction, its budget projection
and its sidecar projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmsession.compaction.planning.boundaries import (
    has_own_words,
    newest_request,
    newest_that_fit,
    safe_cuts,
)
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.summaries.cap import other_blocks
from llmsession.compaction.summaries.file_calls import command_of, file_call
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View
from llmsession.turns.blocks import TextBlock, ToolResultBlock
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from ..base import WaitingPolicy
from ..counting import sizes_in_budget
from ..drafts import Draft, calls_before, cut_ranges, follows_results, live_tail, never_left_out
from ..limits import Amount, Count
from ..prefixes import SummaryPolicy, cut_at_most, latest_cut
from ..registry import register

__all__ = [
    "BasicFold",
    "BudgetProjection",
    "SidecarProjection",
    "fold_notice",
    "fold_target",
    "fold_trigger",
    "middle_cut",
]

TRIGGER_SHARE = 0.90
ENOUGH_PAIRS = 5
_MAX_TRIES = 8
COMMAND_CHARS, LATEST_TEXTS = 100, 3
_NOTICE = "<SYSTEM_NOTICE>\nEarlier context was compacted."
_NOTICE_HEAD = f"{_NOTICE} Summary of your actions after the request above:"
_NOTICE_END = "</SYSTEM_NOTICE>"


def fold_trigger(max_input_tokens: int) -> int:
    """The number of tokens from which on a request is compacted: 90 % of the model's input
    limit.
    """
    return max_input_tokens * 9 // 10


def fold_target(max_input_tokens: int, pairs: int, max_output_tokens: int) -> int:
    """The number of tokens to compact down to.

    It is half of the input limit if there are five questions with answers and the output limit is
    smaller than the input limit; otherwise 70 % of the trigger.
    """
    trigger = fold_trigger(max_input_tokens)
    if pairs >= ENOUGH_PAIRS and max_output_tokens < max_input_tokens:
        return max(0, min(max_input_tokens // 2, trigger - 1))
    return max(0, min(trigger * 7 // 10, trigger - 1))


def _target(messages: Sequence[Message], budget: Budget) -> int:
    requests = sum(map(has_own_words, messages))
    pairs = min(requests, sum(message.is_assistant for message in messages))
    return fold_target(budget.limit_tokens, pairs, budget.profile.max_output_tokens)


def fold_notice(messages: Sequence[Message]) -> str:
    """A notice of what an agent did in *messages*, which are left out.

    It lists the files that were read, with line ranges, the files that were changed, and the
    commands, with at most 100 characters of each. The last three texts follow verbatim, if they are
    at most a quarter of what is left out.
    """
    read: dict[str, None] = {}
    edited: dict[str, None] = {}
    ran: dict[str, None] = {}
    said: list[str] = []
    for message in messages:
        for call in message.tool_calls:
            if (known := file_call(call)) is not None:
                lines = f":{known.lines}" if known.lines else ""
                place = f"{known.path}{lines}"
                (read if known.kind == "read" else edited)[place] = None
            elif (command := command_of(call)) is not None:
                ran[command[:COMMAND_CHARS]] = None
        if message.is_assistant and message.text.strip():
            said.append(message.text.strip())
    latest = said[-LATEST_TEXTS:]
    if sum(map(len, latest)) * 4 > sum(len(message.body) for message in messages):
        latest = []
    sections = [
        ("Files read:", read),
        ("Files edited:", edited),
        ("Commands ran:", ran),
        ("Your recent responses:", latest),
    ]
    text = "\n\n".join("\n".join([title, *items]) for title, items in sections if items)
    return f"{_NOTICE_HEAD}\n{text}{_NOTICE_END}"


@register
class BasicFold(WaitingPolicy, frozen=True, kw_only=True):
    """``basic_fold``: keeps what the user said, and replaces what the agent did in between by a
    list of files and commands.

    Of the newest turn the newest messages stay as far as they fit; of older turns the last answer
    stays, the newest first. A message that was kept once is only folded when room becomes short
    again. It injects a notice for each gap, with the marker ``<SYSTEM_NOTICE>``.

    Not copied: a notice that repeats the answers that it replaces; removing attachments from older
    messages; and removing tool calls from an answer: here an answer with calls is folded as a
    whole.
    """

    name: ClassVar[str] = "basic_fold"
    due_from: ClassVar[float] = TRIGGER_SHARE

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """The folds that bring the request down to the target; None if it is there already, or
        nothing can be folded.
        """
        draft = Draft(view, messages, budget)
        target = _target(messages, budget)
        if draft.used <= target or newest_request(messages) is None:
            return None
        room, before, tries = target, -1, 0
        while True:
            tried = draft.fork()
            gaps = self._gaps(tried, room)
            tried.omit(gaps)
            self._tell(tried)
            count = sum(end - first for first, end in gaps)
            if tried.used <= target or (room <= 0 and count == before):
                break
            # The notices need room, too. How much is only known when they are written, so try again
            # with less.
            tries += 1
            room = room - (tried.used - target) if tries < _MAX_TRIES else 0
            before = count
        if tried.used >= draft.used:
            return None
        return tried.plan(self.name, f"{count} messages folded", folded_messages=count)

    def _gaps(self, draft: Draft, room: int) -> list[tuple[int, int]]:
        """What to fold so that the request has about *room* tokens."""
        messages, sizes = draft.messages, draft.sizes
        anchors = {
            index for index in range(draft.start, len(messages)) if has_own_words(messages[index])
        }
        anchors |= {
            item for index in anchors for item in range(calls_before(messages, index), index)
        }
        anchors |= never_left_out(messages)
        # A context must begin with a message that opens a turn, so the first one stays.
        anchors.add(next(index for index, size in enumerate(sizes) if size or index in anchors))
        # The existing notices will be written anew, so their room is free.
        notices = [item.text for item in draft.view.injected if item.text.startswith(_NOTICE)]
        room += sum(map(draft.text_tokens, notices))
        room -= draft.used - sum(sizes) + sum(sizes[index] for index in anchors)
        newest = newest_request(messages) or 0
        suffix = tail = live_tail(messages)
        while suffix - 1 > newest:
            cost = 0 if suffix - 1 in anchors else sizes[suffix - 1]
            if cost > room:
                break
            suffix -= 1
            room -= cost
        while suffix < tail and not messages[suffix].is_assistant:
            suffix += 1
        anchors.update(range(suffix, len(messages)))
        for index in range(newest - 1, draft.start - 1, -1):
            message = messages[index]
            last = message.is_assistant and messages[index + 1].turn != message.turn
            if last and not message.tool_calls and message.text.strip() and sizes[index] <= room:
                anchors.add(index)
                room -= sizes[index]
        return list(cut_ranges(draft, draft.start, len(messages), anchors))

    def _tell(self, draft: Draft) -> None:
        """Inject a notice behind each gap that this draft made, or made longer."""
        before = {item.at: item for item in draft.view.injected if item.text.startswith(_NOTICE)}
        notices: list[Injected] = []
        for first, end in draft.shown.omitted:
            if (first, end) in draft.view.omitted:
                notices += [before[end]] if end in before else []
            elif end > draft.start:
                notices.append(Injected(end, fold_notice(draft.messages[first:end])))
        draft.inject(notices, instead_of=_NOTICE)


def middle_cut(text: str, max_chars: int) -> str:
    """The head and the tail of *text*, each half of *max_chars* characters, with a count of what is
    left out between them.
    """
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    cut = len(text) - 2 * half
    return f"{text[:half]}\n\n...[truncated {cut} chars]...\n\n{text[len(text) - half :]}"


@register
class BudgetProjection(WaitingPolicy, frozen=True, kw_only=True):
    """``budget_projection``: reduces the request to a target in three steps.

    First all thinking is left out. Then long texts are cut in the middle, the newest first, each to
    an equal share of the target. Then calls are left out with their results, and other messages,
    the oldest first.

    The first and the newest message of the user stay unchanged, and so does what the model has not
    answered yet. If the target cannot be reached, the figures say ``unachievable``, and the plan
    goes as far as it can. Marker: ``...[truncated N chars]...``.

    Not copied: removing single unsafe blocks, which do not exist here, because a result without its
    call is repaired when it arrives.
    """

    name: ClassVar[str] = "budget_projection"
    due_from: ClassVar[float] = TRIGGER_SHARE

    def changes(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """What brings the request down to the target; None if it is there already, or nothing may
        be left out.
        """
        draft = Draft(view, messages, budget)
        target = _target(messages, budget)
        if draft.used <= target:
            return None
        thinking = draft.strip_thinking()
        requests = [index for index, message in enumerate(messages) if has_own_words(message)]
        anchors = never_left_out(messages) | set(requests[:1])
        texts = _shrink(draft, anchors, target)
        gone = _leave_out(draft, anchors, target)
        parts = [
            f"{thinking:,} tokens of thinking left out" if thinking else "",
            f"{texts} texts cut" if texts else "",
            f"{gone} messages left out" if gone else "",
            "the target cannot be reached" if draft.used > target else "",
        ]
        return draft.plan(
            self.name,
            ", ".join(filter(None, parts)),
            thinking_tokens=thinking,
            texts_cut=texts,
            messages_left_out=gone,
            unachievable=int(draft.used > target),
        )


def _shrink(draft: Draft, anchors: frozenset[int], target: int) -> int:
    indexes = [index for index in range(draft.start, len(draft.messages)) if draft.shows(index)]
    share = int(target // max(1, len(indexes)) * draft.budget.profile.chars_per_token)
    share = max(share * 1_000 // max(1, draft.budget.scale_permille), 200)
    cut = 0
    for index in reversed(indexes):
        if draft.used <= target:
            break
        for number, block in enumerate(
            draft.messages[index].content if index not in anchors else ()
        ):
            if isinstance(block, TextBlock):
                cut += draft.shorten(index, number, middle_cut(draft.text(index, number), share))
            elif isinstance(block, ToolResultBlock) and not other_blocks(block.content):
                cut += draft.show_result(
                    index, block, middle_cut(draft.result(index, block), share)
                )
    return cut


def _leave_out(draft: Draft, anchors: frozenset[int], target: int) -> int:
    """Leave out calls with their results, and other messages, the oldest first."""
    messages, gone = draft.messages, 0
    opens = draft.budget.profile.thinking_opens_tool_loop
    index = draft.start
    while index < len(messages) and draft.used > target:
        # In recordings the results may stand one by one, and so may the parts of a reply.
        end = next(safe_cuts(messages, index + 1, len(messages)), len(messages))
        # As in ``cut_ranges``: a message that follows must not join earlier results.
        joins = opens and follows_results(draft.shown_before(index))
        if draft.shows(index) and not joins and anchors.isdisjoint(range(index, end)):
            draft.omit([(index, end)])
            gone += end - index
        index = end
    return gone


_SECTIONS = (
    "Write it in five parts: the goal; the state of the work; highlights, with what was found and"
    " decided; what is next; the files that were read and changed."
)


@register
class SidecarProjection(SummaryPolicy, frozen=True, kw_only=True):
    """Cline's SDK with a model: from 90 % of the limit on, a summary replaces everything before the
    newest messages.

    The newest ``preserve_tokens`` are kept, or the target if that is less, but never less than the
    latest turn that the user typed. The transcript is not changed; our view is the sidecar.

    Not copied: projecting the summary's source to fit a summariser; here the source is split into
    parts.
    """

    name: ClassVar[str] = "sidecar_projection"

    preserve_tokens: Amount = 20_000
    max_tokens: Amount = 0
    summary_tokens: Count = 4_096

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the trigger reached?"""
        return limit_tokens > 0 and used_tokens >= fold_trigger(limit_tokens)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of everything before the newest messages; None if nothing more can be
        replaced.
        """
        pairs = sum(message.is_assistant and not message.tool_calls for message in messages)
        target = fold_target(budget.limit_tokens, pairs, self.max_tokens)
        keep = min(self.preserve_tokens, target)
        sizes = sizes_in_budget(view, messages, budget)
        cut = min(newest_that_fit(sizes, keep), latest_cut(view, messages, budget))
        upto = cut_at_most(messages, cut)
        return self.summary(view, messages, budget, upto, instructions=_SECTIONS)

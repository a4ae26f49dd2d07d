"""A plan in the making: what several stages would change, and how large the request would be.

Each stage of a policy decides by what the stages before it left, and all of them become one plan.
If each stage were a plan of its own, each would rewrite the prompt's prefix and pay for the cache
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from llmsession.compaction.planning.boundaries import (
    injection_voids,
    is_safe_cut,
    is_turn_start,
    newest_that_fit,
)
from llmsession.compaction.planning.policy import Budget, measured, planned
from llmsession.compaction.summaries.cap import result_text
from llmsession.compaction.tokens.messages import (
    MESSAGE_OVERHEAD_TOKENS,
    shown_tokens,
    text_tokens_for,
)
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected

from .prefixes import MIN_SUMMARY_TOKENS, cut_at_most, latest_cut, told_tokens
from .spans import beside_pins, left_out, pinned

__all__ = [
    "Draft",
    "calls_before",
    "cut_ranges",
    "follows_results",
    "live_tail",
    "never_left_out",
    "summary_cut",
]


class Draft:
    """*view* with changes. ``used`` is the estimated size of the whole request with them, in
    tokens.

    ``shown`` is the changed view so far, with ``compacted_before`` behind the last message.
    ``sizes`` are the tokens of each message in it, 0 for a message that is not shown.
    """

    def __init__(self, view: View, messages: Sequence[Message], budget: Budget) -> None:
        self.messages = messages
        self.budget = budget
        self.view = view
        # The copied dictionaries belong to this draft.
        self.shown = msgspec.structs.replace(
            view,
            compacted_before=len(messages),
            shown_results=dict(view.shown_results),
            inputs=dict(view.inputs),
            texts=dict(view.texts),
        )
        self.start = view.start
        self.summary_request: SummaryRequest | None = None
        self.drops_thinking = False
        self.sizes = [0] * len(messages)
        for first, end in view.shown_ranges(len(messages)):
            self.sizes[first:end] = map(self._size, range(first, end))
        self._summary_tokens = told_tokens(view, budget)
        self._before = self._size_before()
        # What the request has beside the messages: system text and tools.
        self.rest = max(budget.used_tokens - self._before, budget.frame_tokens)
        self.used = self._before + self.rest

    def _size_before(self) -> int:
        """The tokens of the messages as the unchanged view shows them."""
        return self.budget.size(self.messages, self.view)

    def fork(self) -> Draft:
        """Another draft that starts with the changes of this one."""
        other = object.__new__(Draft)
        other.__dict__.update(self.__dict__)
        other.shown = msgspec.structs.replace(
            self.shown,
            shown_results=dict(self.shown.shown_results),
            inputs=dict(self.shown.inputs),
            texts=dict(self.shown.texts),
        )
        other.sizes = list(self.sizes)
        return other

    def text_tokens(self, text: str) -> int:
        """The tokens of *text* as a message of its own."""
        words = text_tokens_for(text, self.budget.profile) + MESSAGE_OVERHEAD_TOKENS
        return self.budget.scaled(words)

    def _size(self, index: int) -> int:
        if not self.shows(index):
            return 0
        tokens = shown_tokens(self.messages[index], index, self.shown, self.budget.profile)
        return self.budget.scaled(tokens)

    def shows(self, at: int) -> bool:
        """Is the message at *at* shown, in whatever form?"""
        return at >= self.start and self.shown.shows(at)

    def shown_before(self, at: int, gone: Collection[int] = ()) -> Iterator[Message]:
        """The messages before *at* that are shown, but for those at *gone*, the newest first."""
        for index in range(at - 1, self.start - 1, -1):
            if index not in gone and self.shows(index):
                yield self.messages[index]

    def measure(self, at: int) -> None:
        """Count the message at *at* again after a change."""
        size = self._size(at)
        self.used += size - self.sizes[at]
        self.sizes[at] = size

    def result(self, at: int, result: ToolResultBlock) -> str:
        """The text that is shown for *result*, which the message at *at* holds."""
        visible_text = self.shown.text_for(result.tool_use_id, at)
        return result_text(result.content) if visible_text is None else visible_text

    def is_open(self, result: ToolResultBlock) -> bool:
        """May this plan still decide how *result* is shown? A text that an earlier plan chose is
        frozen.
        """
        return result.tool_use_id not in self.view.shown_results

    def show_result(self, at: int, result: ToolResultBlock, text: str) -> bool:
        """Show *text* for *result*. Returns False, and changes nothing, if it is not shorter than
        what is shown, or if an earlier plan has decided.
        """
        if not self.is_open(result) or len(text) >= len(self.result(at, result)):
            return False
        self.shown.shown_results[result.tool_use_id] = text
        self.measure(at)
        return True

    def text(self, at: int, block: int) -> str:
        """The text that is shown for the text block number *block* of the message at *at*."""
        own = self.messages[at].content[block]
        text = own.text if isinstance(own, TextBlock) else ""
        return self.shown.texts.get(text_key(self.messages[at], block), text)

    def shorten(self, at: int, block: int, text: str) -> bool:
        """Show *text* for a text block. Returns False, and changes nothing, if it is not shorter,
        or if an earlier plan has decided.
        """
        key = text_key(self.messages[at], block)
        if key in self.view.texts or len(text) >= len(self.text(at, block)):
            return False
        self.shown.texts[key] = text
        self.measure(at)
        return True

    def shorten_input(self, at: int, call: ToolUseBlock, shown: msgspec.Raw) -> bool:
        """Show the JSON *shown* for the input of *call*. Returns False, and changes nothing, if it
        is not shorter, or if a text was chosen before.
        """
        if call.id in self.shown.inputs or len(shown) >= len(msgspec.json.encode(call.input)):
            return False
        self.shown.inputs[call.id] = shown
        self.measure(at)
        return True

    def omit(self, ranges: Collection[tuple[int, int]]) -> None:
        """Leave out the messages in *ranges*."""
        ranges = [span for span in ranges if any(map(self.shows, range(*span)))]
        if not ranges:
            return
        draft = Plan(
            policy="", compacted_before=0, reason="", tokens_before=0, tokens_after=0,
            omitted=tuple(ranges), voids_thinking=False,
        )  # fmt: skip
        self.shown = self.shown.applied(draft, 0)
        for first, end in ranges:
            for index in range(first, end):
                self.measure(index)

    def keep_newest(self, max_tokens: int) -> None:
        """Leave out the oldest messages, until the request has at most *max_tokens* or nothing more
        may be left out.
        """
        room = max_tokens - (self.used - sum(self.sizes))
        charged, left = beside_pins(self.sizes, pinned(self.messages), room)
        begin = newest_that_fit(charged, left)
        self.omit(left_out(self.messages, begin, shown_from=self.start))

    def without(self, ranges: Collection[tuple[int, int]]) -> int:
        """The value that ``used`` would have with *ranges* left out."""
        return self.used - sum(sum(self.sizes[first:end]) for first, end in ranges)

    def inject(self, items: Sequence[Injected], *, instead_of: str) -> None:
        """Inject *items*, in place of the injected texts that begin with *instead_of*."""
        gone = [item for item in self.shown.injected if item.text.startswith(instead_of)]
        others = [item for item in self.shown.injected if not item.text.startswith(instead_of)]
        injected = tuple(sorted([*others, *items], key=lambda item: item.at))
        if injected == self.shown.injected:
            return
        self.used += sum(map(self.text_tokens, (item.text for item in items)))
        self.used -= sum(map(self.text_tokens, (item.text for item in gone)))
        self.shown = msgspec.structs.replace(self.shown, injected=injected)

    def want(
        self, upto: int, room: int, instructions: str = "", pinned: Injected | None = None
    ) -> None:
        """Ask for a summary of at most *room* tokens in place of everything before *upto*. *pinned*
        is repeated behind it.
        """
        earlier = self.view.prefix_summary.text if self.view.prefix_summary else ""
        max_tokens = max(1, room * 1000 // max(1, self.budget.scale_permille))
        self.summary_request = SummaryRequest(
            first=self.start,
            upto=upto,
            max_tokens=max_tokens,
            earlier=earlier,
            instructions=instructions,
            pinned=pinned,
        )
        self.used += room - self._summary_tokens - sum(self.sizes[self.start : upto])
        self.used += self.pinned_tokens(pinned)
        self._summary_tokens = room
        self.sizes[self.start : upto] = [0] * (upto - self.start)
        self.start = upto

    def pinned_tokens(self, pinned: Injected | None) -> int:
        """The tokens of *pinned*, which is repeated behind a summary."""
        if pinned is None:
            return 0
        return self.budget.scaled(text_tokens_for(pinned.text, self.budget.profile))

    def condense(self, upto: int, max_tokens: int) -> bool:
        """Ask for a summary of everything before *upto*, half as long and at most *max_tokens*
        tokens.

        Returns False, and changes nothing, if there is too little to summarise.
        """
        source = sum(self.sizes[self.start : upto])
        if upto <= self.start or source < 2 * MIN_SUMMARY_TOKENS:
            return False
        self.want(upto, min(max_tokens, source // 2))
        return True

    def drop_thinking(self) -> None:
        """Leave out all thinking made so far."""
        self.drops_thinking = True
        self.shown = msgspec.structs.replace(self.shown, thinking_from=len(self.messages))
        # A message that is not shown has no size, with or without thinking.
        for index in self.shown.shown_positions(len(self.messages)):
            if self.messages[index].is_assistant:
                self.measure(index)

    def strip_thinking(self) -> int:
        """Leave out all thinking made so far, and return how many tokens that saves.

        Nothing is changed if it saves nothing, or if a tool loop may have to begin with thinking.
        """
        before = self.used
        opens = self.budget.profile.thinking_opens_tool_loop
        if not opens and self.shown.thinking_from < len(self.messages):
            had = self.drops_thinking
            self.drop_thinking()
            self.drops_thinking = had or self.used < before
        return before - self.used

    def budget_now(self) -> Budget:
        """The budget, with the current size of the request."""
        return msgspec.structs.replace(self.budget, used_tokens=self.used)

    def absorb(self, plan: Plan) -> None:
        """Take over the changes of *plan*, which was made for ``shown``, and the summary that it
        asks for.
        """
        if plan.drops_thinking:
            self.drop_thinking()
        applied = self.shown.applied(plan, len(self.messages))
        self.shown = msgspec.structs.replace(
            applied, version=self.view.version, thinking_from=self.shown.thinking_from
        )
        self.start = max(self.start, self.shown.start)
        for index in self.view.shown_positions(len(self.messages)):
            self.measure(index)
        self.used = self.rest + self.budget.size(self.messages, self.shown)
        if plan.summary_request is not None:
            self.summary_request = plan.summary_request
            self.used = self.rest + plan.tokens_after

    def changed(self) -> tuple[dict[str, str], dict[str, msgspec.Raw], dict[str, str]]:
        """The changes against the first view: frozen results, inputs, and texts."""
        view, draft_view = self.view, self.shown
        return (
            {
                call: text
                for call, text in draft_view.shown_results.items()
                if call not in view.shown_results
            },
            {call: raw for call, raw in draft_view.inputs.items() if call not in view.inputs},
            {key: text for key, text in draft_view.texts.items() if key not in view.texts},
        )

    def plan(self, name: str, reason: str, **figures: int) -> Plan | None:
        """The plan of the policy *name*; None if nothing is changed.

        *reason* says in words what was done. *figures* that are 0 are left out.
        """
        view, draft_view, budget = self.view, self.shown, self.budget
        shown_results, inputs, texts = self.changed()
        turns = {
            self.messages[index].turn
            for index in view.shown_positions(len(self.messages))
            if not self.shows(index)
        }
        compacted_before, left = view.compacted_before, set(shown_results)
        # From the end: a stage may decide for a result that is not shown now, but not for old ones.
        for index in reversed(range(len(self.messages)) if left else ()):
            found = left & {result.tool_use_id for result in self.messages[index].tool_results}
            if found:
                compacted_before = max(compacted_before, index + 1)
                turns.add(self.messages[index].turn)
                left -= found
            if not left:
                break
        prefix_summary = (
            draft_view.prefix_summary if draft_view.prefix_summary != view.prefix_summary else None
        )
        injected = draft_view.injected if draft_view.injected != view.injected else None
        plan = planned(
            name,
            view,
            self.messages,
            budget,
            reason,
            compacted_before=compacted_before,
            shown_results=shown_results,
            inputs=inputs,
            texts=texts,
            prefix_summary=prefix_summary,
            omitted=tuple(span for span in draft_view.omitted if span not in view.omitted),
            injected=injected,
            drops_thinking=self.drops_thinking,
            summary_request=self.summary_request,
            tokens_before=self._before,
            tokens_after=max(0, self.used - self.rest),
            results_summarised=len(shown_results),
            turns_compacted=len(turns),
            figures={key: value for key, value in figures.items() if value},
        )
        changes = (
            plan.shown_results or plan.inputs or plan.texts or plan.omitted or plan.drops_thinking
        )
        shows_otherwise = changes or plan.summary_request or plan.prefix_summary
        if not shows_otherwise and injected is None:
            return None
        if not shows_otherwise and injected is not None and plan.voids_thinking:
            voids = injection_voids(view, self.messages, injected)
            plan = msgspec.structs.replace(plan, voids_thinking=voids)
        return plan if self.summary_request else measured(plan, view, self.messages, budget)


def live_tail(messages: Sequence[Message]) -> int:
    """Where the part begins that the model has not answered yet: the last message, and the calls
    that its results answer.
    """
    return calls_before(messages, len(messages) - 1)


def calls_before(messages: Sequence[Message], at: int) -> int:
    """The position of the calls that the results at *at* answer; *at* itself if there are none. In
    recordings the results may be spread over several messages.
    """
    while at > 0 and messages[at].tool_results:
        at -= 1
    return max(0, at)


def never_left_out(messages: Sequence[Message]) -> frozenset[int]:
    """The positions that no stage leaves out: the pinned messages, and the live tail."""
    return frozenset((*pinned(messages), *range(live_tail(messages), len(messages))))


def follows_results(newest_first: Iterable[Message]) -> bool:
    """Does the last reply among the messages *newest_first* have results behind it? If what comes
    after these messages is left out, the next user message joins the results.
    """
    for message in newest_first:
        if message.is_assistant:
            return False
        if message.tool_results:
            return True
    return False


def cut_ranges(
    draft: Draft, first: int, end: int, kept: Collection[int]
) -> tuple[tuple[int, int], ...]:
    """The ranges from *first* to *end* that can be left out without splitting a call from its
    results. Messages at the positions *kept* stay.
    """
    messages = draft.messages
    # If results and a later user message became neighbours, the provider would read them as one
    # message, which looks like an open tool loop.
    joins = draft.budget.profile.thinking_opens_tool_loop
    ranges, gone = list[tuple[int, int]](), set[int]()
    edges = [index for index in range(first, end) if index in kept]
    for before, after in zip([first - 1, *edges], [*edges, end], strict=True):
        start, stop = before + 1, after
        while start < stop and (
            not is_safe_cut(messages, start)
            or (joins and follows_results(draft.shown_before(start, gone)))
        ):
            start += 1
        while stop > start and not is_safe_cut(messages, stop):
            stop -= 1
        if start < stop:
            ranges.append((start, stop))
            gone.update(range(start, stop))
    return tuple(ranges)


def summary_cut(draft: Draft, at: int) -> int:
    """The last position up to *at* where a summary may end; the view's start if there is none.

    If tool loops must begin with thinking, the summary must end with an answer. Otherwise, should
    writing the summary fail, the messages left out behind it would leave a user message directly
    after results.
    """
    messages, edge = draft.messages, latest_cut(draft.view, draft.messages, draft.budget)
    cut = cut_at_most(messages, min(at, edge))
    if draft.budget.profile.thinking_opens_tool_loop:
        while cut > 0 and (
            not is_turn_start(messages, cut)
            or follows_results(messages[index] for index in range(cut - 1, -1, -1))
        ):
            cut -= 1
    return max(cut, draft.start)

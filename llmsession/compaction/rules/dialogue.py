"""A request as the validity rules read it: runs of messages of one role, their calls and
results.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmsession.turns.request import Profile, Request

from ..view.prefix import shared_prefix
from .block_fields import RuleViolation
from .message_facts import Mark, MessageFacts, ToolFacts, merged

__all__ = ["Dialogue"]


class Dialogue:
    """The requests of one session, one after the other, as the rules read them.

    It grows with the conversation: messages that a request has in common with the one before are
    not read again.
    """

    __slots__ = (
        "answering", "call_count", "call_ids", "calling", "count", "late", "messages", "notable",
        "profile", "repeated", "request", "runs", "starts", "tools", "unpaired",
    )  # fmt: skip

    request: Request
    tools: ToolFacts

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._forget()

    def _forget(self) -> None:
        self.messages: list[MessageFacts] = []
        self.count = 0
        """How many messages were read."""
        self.repeated: list[int] = []
        """Positions of messages with the same role as the message before."""
        self.notable: list[int] = []
        self.runs: list[MessageFacts] = []
        """The messages, with neighbours of one role merged, so that roles alternate."""
        self.starts: list[int] = []
        """The position where each run starts."""
        self.calling: list[int] = []
        """Runs with calls, and runs with results (``answering``)."""
        self.answering: list[int] = []
        self.unpaired: list[int] = []
        """Runs whose calls are not answered by the next run in the same order, or whose results do
        not answer the run before.
        """
        self.late: list[int] = []
        """Runs in which a result stands behind another block."""
        self.call_count = 0
        self.call_ids: set[str] = set()

    def read(self, request: Request, messages: list[MessageFacts], tools: ToolFacts) -> None:
        """Be *request* from now on, which has *messages* and *tools*.

        If this raises, it must not be used any more.
        """
        # The same list has only grown since (see FactsCache).
        if messages is not self.messages and shared_prefix(self.messages, messages) < self.count:
            self._forget()
        known, self.count = self.count, len(messages)
        self.request, self.messages, self.tools = request, messages, tools
        # The last run may still grow. That would change the answers of the run before it, so both
        # are read again.
        settled = max(0, len(self.runs) - 2)
        self._gather(known)
        self._pair(settled)

    def _gather(self, start: int) -> None:
        before = self.messages[start - 1].role if start else ""
        last = self.runs[-1].role if self.runs else ""
        for index, facts in enumerate(self.messages[start:], start):
            role = facts.role
            if facts.notable:
                self.notable.append(index)
            if role == before:
                self.repeated.append(index)
            before = role
            if role == last:
                self.runs[-1] = merged(self.runs[-1], facts, index - self.starts[-1])
            elif role in ("user", "assistant"):
                self.runs.append(facts)
                self.starts.append(index)
                last = role
            else:
                continue
            if facts.call_ids:
                self.call_count += len(facts.call_ids)
                self.call_ids.update(facts.call_ids)

    def _pair(self, settled: int) -> None:
        """Note the calls and results of the runs from *settled* on."""
        for indexes in (self.calling, self.answering, self.unpaired, self.late):
            while indexes and indexes[-1] >= settled:
                indexes.pop()
        runs, last = self.runs, len(self.runs) - 1
        for index in range(settled, last + 1):
            run = runs[index]
            answers = runs[index + 1].result_ids if index < last else ()
            calls = runs[index - 1].call_ids if index else ()
            if run.call_ids:
                self.calling.append(index)
            if run.result_ids:
                self.answering.append(index)
            if run.call_ids != answers or run.result_ids != calls:
                self.unpaired.append(index)
            if run.late_results:
                self.late.append(index)

    def answers(self, at: int) -> tuple[str, ...]:
        """The ids that the run after the run *at* has results for."""
        return self.runs[at + 1].result_ids if at + 1 < len(self.runs) else ()

    def calls_before(self, at: int) -> tuple[str, ...]:
        """The ids of the calls in the run before the run *at*."""
        return self.runs[at - 1].call_ids if at else ()

    def found(self, rule: str) -> Iterator[RuleViolation]:
        """The violations of *rule* that single messages make by themselves."""
        for index in self.notable:
            for fault in self.messages[index].faults:
                if fault.rule == rule:
                    yield RuleViolation(rule, f"messages[{index}].{fault.place}", fault.text)

    def where(self, run: int, mark: Mark) -> str:
        """The path of a block in a run."""
        return f"messages[{self.starts[run] + mark.message}].content[{mark.block}]"

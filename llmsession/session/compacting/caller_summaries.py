"""``set_summary``: the caller's own text in place of the beginning of the conversation.

It is applied like any compaction: by one record, while no reply is pending, and without a change of
the history. A command that had to wait is checked again before it is applied.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import is_safe_cut, must_wait
from llmsession.compaction.planning.prefix_summaries import without_pins
from llmsession.compaction.tokens.messages import context_tokens, text_tokens_for
from llmsession.compaction.view.plan import Plan, record_of
from llmsession.compaction.view.summary_wording import introduced
from llmsession.errors import InvalidInput, SessionError
from llmsession.turns.records import PrefixSummary

from ..core.core import Core
from ..core.idempotency_keys import IdempotencyKeys
from ..log.history_cuts import messages_through
from ..values import commands as c

__all__ = ["CallerSummaries"]


class CallerSummaries:
    """The caller's summaries of one session that wait to be applied.

    ``resume`` is called when a build that waited for one of them may continue.
    """

    def __init__(self, core: Core, resume: Callable[[], None]) -> None:
        self._core = core
        self._resume = resume
        self.waiting: list[tuple[c.SetSummary, IdempotencyKeys]] = []
        self.is_applying = False
        """Is a summary being written to the store? No request is built in that time."""

    def put(self, command: c.SetSummary, keys: IdempotencyKeys) -> None:
        """Apply *command* at the next moment that allows it.

        Raises InvalidInput for a summary that can be applied neither now nor later.
        """
        self._prefix_summary(command)
        self.waiting.append((command, keys))

    def apply(self) -> None:
        """Write the next summary. The actor calls this only while no reply is pending."""
        while self.waiting and not self.is_applying:
            command, keys = self.waiting[0]
            try:
                prefix_summary = self._prefix_summary(command)
                if self._must_wait(prefix_summary):
                    self._check_ends(command)
                    return
            except SessionError as error:  # the history has changed since it was accepted
                del self.waiting[0]
                keys.refuse(command, error)
            else:
                del self.waiting[0]
                self._write(command, keys, prefix_summary)

    def _must_wait(self, prefix_summary: PrefixSummary) -> bool:
        """Would the summary remove thinking that a tool loop after it must begin with?"""
        state = self._core.state
        messages, profile = state.context_messages(), self._core.builder.profile
        thinking_from = max(state.view.thinking_from, prefix_summary.upto)
        view = replace(state.view, thinking_from=thinking_from)
        return must_wait(view, messages, profile, state.message_count)

    def _check_ends(self, command: c.SetSummary) -> None:
        """Raises InvalidInput if no open turn can end the tool loop that the summary waits for.

        Waiting would be a deadlock if the caller who waits is the one who would send the next turn.
        """
        state = self._core.state
        if not state.open:
            message = (
                f"a summary up to turn {command.turn} of session {self._core.session!r} would void"
                f" the thinking in the tool loop in which turn {state.head_turn} was stopped;"
                " summarise that turn, too, or send another turn first, which ends the loop"
            )
            raise InvalidInput(message)

    def _prefix_summary(self, command: c.SetSummary) -> PrefixSummary:
        state, core = self._core.state, self._core
        where = f"turn {command.turn} of session {core.session!r}"
        try:
            upto = messages_through(state.messages, command.turn) if command.turn > 0 else 0
        except ValueError:
            upto = 0
        if not upto:
            raise InvalidInput(f"{where} is not in the history")
        if upto < state.view.start:
            last = state.context_messages()[state.view.start - 1].turn  # may be the open turn
            raise InvalidInput(f"{where} is already covered by a summary up to turn {last}")
        if not is_safe_cut(state.messages, upto):
            raise InvalidInput(f"{where} ends with a call whose result comes after it")
        text = introduced(command.text)
        size = text_tokens_for(text, core.builder.profile) + core.builder.frame_tokens
        if size > core.budget_tokens:
            raise InvalidInput(
                f"the summary has about {size:,} tokens; a request of session {core.session!r}"
                f" may hold {core.budget_tokens:,}"
            )
        return PrefixSummary(upto, text, "caller")

    def _write(
        self, command: c.SetSummary, keys: IdempotencyKeys, prefix_summary: PrefixSummary
    ) -> None:
        core = self._core
        messages, view = core.state.context_messages(), core.state.view
        profile = core.builder.profile
        plan = Plan(
            policy="caller",
            compacted_before=view.compacted_before,
            reason=f"the caller's summary up to turn {command.turn}",
            tokens_before=context_tokens(messages, view, profile),
            tokens_after=0,
            turns_compacted=len({m.turn for m in messages[view.start : prefix_summary.upto]}),
            voids_thinking=profile.binds_thinking,
            prefix_summary=prefix_summary,
            injected=without_pins(view, messages, prefix_summary.upto),
            trigger="caller",
        )
        after = context_tokens(messages, view.applied(plan, len(messages)), profile)
        record = record_of(plan)
        commands = c.remembered(command.command_id, command.digest, None)
        self.is_applying = True
        answer = keys.answer(command)

        def applied() -> None:
            self.is_applying = False
            core.log.event("compaction.applied", trigger="caller", after=after)
            answer()
            self._resume()

        core.journal.write(replace(record, tokens_after=after, commands=commands), applied)

    def refuse_waiting(self, error: SessionError) -> None:
        """Answer the waiting commands with *error*. Nothing is applied any more."""
        waiting, self.waiting = self.waiting, []
        for command, keys in waiting:
            keys.refuse(command, error)

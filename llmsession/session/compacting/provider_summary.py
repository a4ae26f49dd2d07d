"""A summary that the conversation's own provider writes and returns as one signed block.

The request holds the conversation as it is sent to the model. The conversation continues in the
meantime. Images, documents and fetched addresses in the summarised messages are lost with them.

Source: the anthropic SDK 2.11 (its types and its tool runner), and the provider's documentation of
on-demand compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from llmsession.compaction.provider_side import ProviderSummaries
from llmsession.compaction.rules.check import check_request
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.provider_blocks import signed_summary
from llmsession.compaction.view.view import View
from llmsession.errors import InvalidRequest, ProviderError
from llmsession.providers.protocol import Provider
from llmsession.turns.messages import Message
from llmsession.turns.records import ModelRequest
from llmsession.turns.reply import Reply
from llmsession.turns.request import Frame, Profile, Request
from llmsession.turns.stop import Follow, stop_rule

from ..tasks.owner_lease import OwnerLease
from ..tasks.worker_thread import off_loop
from .model_summary import SummaryFailed
from .summary_requests import SummaryRequests

__all__ = ["SignedSummary", "can_summarise", "request_for_summary"]

RETRY_DELAYS_S = (2.0, 10.0, 30.0)
OUR_BUGS = frozenset({
    "compaction_block_ambiguous", "compaction_block_misplaced", "compaction_content_mismatch",
    "compaction_incomplete_turn", "compaction_nothing_to_summarize",
    "compaction_signature_invalid", "compaction_tool_changes_mismatch",
})  # fmt: skip
"""Refusals that a valid request never gets. They are logged as bugs."""
_OF_A_REPLY = ("context_management", "stop_sequences", "output_format")
"""Options that only shape a reply. A request for a summary is refused if it has them."""


def can_summarise(messages: Sequence[Message], upto: int) -> bool:
    """Can the provider summarise the first *upto* of *messages*?

    It cannot if they end with a reply that it paused, because that reply is not finished, or with
    calls without results.
    """
    last = messages[upto - 1] if 0 < upto <= len(messages) else None
    if last is None:
        return False
    paused = last.is_assistant and stop_rule(last.stop_reason).follow is Follow.CONTINUE
    return not (paused or last.tool_calls)


def request_for_summary(
    messages: Sequence[Message],
    view: View,
    profile: Profile,
    frame: Frame,
    config: ProviderSummaries,
) -> Request:
    """The request for a summary of *messages*, shown as in *view*.

    It has the same model, system text and tools as the conversation, so that the thinking in later
    messages stays valid. Raises InvalidRequest if it breaks a validity rule.
    """
    injected = tuple(text for text in view.injected if text.at < len(messages))
    view = msgspec.structs.replace(view, injected=injected)
    request = project(messages, view, profile, frame)
    options, max_tokens = _summary_options(request.options, config)
    request = msgspec.structs.replace(request, options=options, max_tokens=max_tokens)
    violations = check_request(request, profile)
    if violations:
        rules = "; ".join(
            f"{broken.rule} {broken.where}: {broken.text}" for broken in violations[:3]
        )
        raise InvalidRequest(f"the request for a summary breaks validity rules: {rules}")
    return request


def _summary_options(
    frame_options: dict[str, Any], config: ProviderSummaries
) -> tuple[dict[str, Any], int]:
    options = {name: value for name, value in frame_options.items() if name not in _OF_A_REPLY}
    choice = options.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        del options["tool_choice"]
    output = options.get("output_config")
    if isinstance(output, dict):
        output = {name: value for name, value in output.items() if name != "format"}
        budget = output.get("task_budget")
        if isinstance(budget, dict):
            output["task_budget"] = {k: v for k, v in budget.items() if k != "remaining"}
        options["output_config"] = output
    thinking = options.get("thinking")
    budget_tokens = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    # The limit must also hold the thinking.
    room = config.max_tokens + (budget_tokens if isinstance(budget_tokens, int) else 0)
    return {**options, "compaction": config.parameter()}, room


class SignedSummary:
    """One signed summary, and the requests that were made for it.

    *request* builds the request, in a thread if *is_long* is True. *step* numbers the summary among
    those of its session. *refused* is called with refusals that are our own fault.
    """

    def __init__(
        self,
        provider: Provider,
        request: Callable[[], Request],
        *,
        is_long: bool,
        step: int,
        refused: Callable[[ProviderError], None],
        lease: OwnerLease,
    ) -> None:
        self._sender = SummaryRequests(provider, lease, step=step)
        self._request = request
        self._is_long = is_long
        self._refused = refused
        self.requests: list[ModelRequest] = self._sender.made
        """The requests so far, with the usage that was reported."""

    async def block(self) -> str:
        """The signed block as JSON. If the provider is overloaded, the request is repeated after a
        delay.

        Raises SummaryFailed if the reply holds no signed block (the conversation is not changed),
        ProviderError, InvalidRequest. A cancellation closes the request.
        """
        request = await off_loop(self._request) if self._is_long else self._request()
        for delay_s in (*RETRY_DELAYS_S, None):
            try:
                return _block_of(await self._sender.send(request))
            except ProviderError as error:
                if error.code in OUR_BUGS:
                    self._refused(error)
                if error.kind != "retryable" or delay_s is None:
                    raise
                await anyio.sleep(max(delay_s, error.delay_s))
        raise AssertionError  # the last round returns or raises


def _block_of(reply: Reply) -> str:
    for raw in reply.blocks:
        if reply.stop_reason == "compaction" and signed_summary(raw, 1) is not None:
            return raw.decode()
    raise SummaryFailed(f"the reply holds no summary; it stopped with {reply.stop_reason}")

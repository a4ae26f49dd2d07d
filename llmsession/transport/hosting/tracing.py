"""Traces of turns, model requests and tools. It needs the extra: ``llmsession[tracing]``.

The names are those of OpenTelemetry's conventions for generative AI, copied from
opentelemetry-semantic-conventions 0.66b2. Spans contain no text of conversations. OpenTelemetry's
SDK exports the spans. Without the SDK they are discarded.
"""

from __future__ import annotations

import time
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from llmsession.turns import records as r
from llmsession.turns.request import Request

__all__ = ["Tracing"]

OPERATION = "gen_ai.operation.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION = "gen_ai.usage.cache_creation.input_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"
MAX_OPEN = 10_000
NS = 1_000_000_000


class Tracing:
    """An observer of a manager's sessions. It creates a span for each turn, with a child span for
    each request to a model and for each tool call. *tracer* is a tracer of OpenTelemetry; the
    default is the global one."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer if tracer is not None else trace.get_tracer("llmsession")
        self._turns: dict[tuple[str, int], Span] = {}
        self._requests: dict[tuple[str, int], tuple[Span, int]] = {}
        self._calls: dict[tuple[str, int], dict[str, Span]] = {}

    def recorded(self, session: str, record: r.Record) -> None:
        """See ``SessionObserver``."""
        match record:
            case r.TurnAccepted():
                self._begin(session, record.turn, record.at)
            case r.ToolsRequested():
                for call in record.calls:
                    self._begin_call(session, record, call)
            case r.ToolsAnswered():
                for answer in record.answers:
                    self._end_call(session, record.turn, answer.call_id, record.at, answer.is_error)
            case r.TurnCommitted():
                self._end(session, record, None)
            case r.TurnAborted():
                self._end(session, record, record.reason)
            case r.TurnFailed():
                self._end(session, record, record.cause)

    def _begin(self, session: str, turn: int, time_s: float) -> Span:
        if len(self._turns) >= MAX_OPEN:  # turns of sessions that another owner took
            self._turns.pop(next(iter(self._turns))).end()
        span = self._turns[session, turn] = self._tracer.start_span(
            "invoke_agent",
            attributes={
                OPERATION: "invoke_agent",
                CONVERSATION: session,
                "llmsession.turn": turn,
            },
            start_time=int(time_s * NS),
        )
        return span

    def _within(self, session: str, turn: int) -> Any:
        # After a restart, a recovered turn was accepted before this observer existed.
        span = self._turns.get((session, turn)) or self._begin(session, turn, time.time())
        return trace.set_span_in_context(span)

    def _begin_call(self, session: str, record: r.ToolsRequested, call: r.PendingCall) -> None:
        span = self._tracer.start_span(
            f"execute_tool {call.name}",
            context=self._within(session, record.turn),
            attributes={
                OPERATION: "execute_tool",
                CONVERSATION: session,
                TOOL_NAME: call.name,
                TOOL_CALL: call.id,
            },
            start_time=int(record.at * NS),
        )
        self._calls.setdefault((session, record.turn), {})[call.id] = span

    def _end_call(self, session: str, turn: int, call_id: str, time_s: float, failed: bool) -> None:
        span = self._calls.get((session, turn), {}).pop(call_id, None)
        if span is not None:
            if failed:
                span.set_status(Status(StatusCode.ERROR))
                span.set_attribute(ERROR_TYPE, "tool_error")
            span.end(int(time_s * NS))

    def _end(self, session: str, record: r.Terminal, error: str | None) -> None:
        for call_id in tuple(self._calls.get((session, record.turn), ())):
            self._end_call(session, record.turn, call_id, record.at, failed=True)
        self._calls.pop((session, record.turn), None)
        span = self._turns.pop((session, record.turn), None)
        if span is not None:
            if error is not None:
                span.set_status(Status(StatusCode.ERROR))
                span.set_attribute(ERROR_TYPE, error)
            span.end(int(record.at * NS))

    def requested(
        self, session: str, turn: int, request: Request, *, tokens: int, budget_tokens: int
    ) -> None:
        """See ``SessionObserver``."""
        span = self._tracer.start_span(
            f"chat {request.model}",
            context=self._within(session, turn),
            kind=SpanKind.CLIENT,
            attributes={
                OPERATION: "chat",
                CONVERSATION: session,
                REQUEST_MODEL: request.model,
                REQUEST_MAX_TOKENS: request.max_tokens,
                "llmsession.context.tokens": tokens,
                "llmsession.context.budget_tokens": budget_tokens,
                "llmsession.context.messages": len(request.messages),
            },
        )
        self._requests[session, turn] = span, time.monotonic_ns()

    def began(self, session: str, turn: int) -> None:
        """See ``SessionObserver``."""
        known = self._requests.get((session, turn))
        if known is not None:
            known[0].set_attribute(FIRST_CHUNK, (time.monotonic_ns() - known[1]) / NS)

    def ended(
        self,
        session: str,
        turn: int,
        spent: r.ModelRequest,
        *,
        provider: str,
        stop_reason: str | None,
    ) -> None:
        """See ``SessionObserver``."""
        span, _ = self._requests.pop((session, turn), (None, 0))
        if span is None:
            return
        usage = spent.usage
        span.set_attribute(PROVIDER, provider)
        span.set_attribute(INPUT_TOKENS, usage.prompt_tokens)
        span.set_attribute(OUTPUT_TOKENS, usage.output_tokens)
        span.set_attribute(CACHE_READ, usage.cache_read_tokens)
        span.set_attribute(CACHE_CREATION, usage.cache_write_tokens)
        if spent.model is not None:
            span.set_attribute(RESPONSE_MODEL, spent.model)
        if stop_reason is not None:
            span.set_attribute(FINISH_REASONS, [stop_reason])
        else:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute(ERROR_TYPE, "incomplete")
        span.end()

    def charged(self, session: str, spent: r.ModelRequest, cost_nano_usd: int | None) -> None:
        """See ``SessionObserver``."""

"""Spans, as OpenTelemetry's SDK keeps them, under the names of its conventions."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

from llmsession import SessionConfig, SessionManager, Tool
from llmsession.testing.scripted import ScriptedProvider, ScriptedReply, call, never, say
from llmsession.transport.hosting import tracing
from llmsession.turns.usage import Usage

USAGE = Usage(input_tokens=5, output_tokens=7, cache_read_tokens=100, cache_write_tokens=10)


async def look(**_: Any) -> str:
    return "seen"


async def spans_of(*script: ScriptedReply, interrupt: bool = False) -> dict[str, ReadableSpan]:
    """The spans of one turn, by name."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    observer = tracing.Tracing(provider.get_tracer("test"))
    async with SessionManager(
        provider=ScriptedProvider(list(script)), observers=[observer]
    ) as manager:
        config = SessionConfig(model="m", tools=[Tool(name="look", run=look)])
        session = await manager.create(config, session_id="s")
        turn = await session.send("a secret")
        if interrupt:
            await session.interrupt()
        await turn.outcome()
    finished = kept.get_finished_spans()
    assert "secret" not in "".join(span.to_json() for span in finished)
    return {span.name: span for span in finished}


async def test_a_turn_is_a_span_and_in_it_each_request_and_each_tool() -> None:
    spans = await spans_of(call("look", id="c"), say("done").costing(USAGE))
    turn, chat, tool = spans["invoke_agent"], spans["chat m"], spans["execute_tool look"]
    assert turn.attributes is not None
    assert dict(turn.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "s",
        "llmsession.turn": 1,
    }
    for inner in (chat, tool):
        assert inner.parent is not None
        assert inner.parent.span_id == turn.context.span_id
    held: dict[str, Any] = dict(chat.attributes or {})
    assert held.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert held.pop("llmsession.context.tokens") > 0
    assert held.pop("llmsession.context.budget_tokens") > 0
    assert held.pop("gen_ai.request.max_tokens") > 0
    assert held == {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "s",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 115,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_creation.input_tokens": 10,
        "llmsession.context.messages": 3,
    }
    assert dict(tool.attributes or {})["gen_ai.tool.call.id"] == "c"
    assert all(span.status.is_ok or span.status.is_unset for span in spans.values())


async def test_a_turn_that_is_interrupted_ends_its_spans_as_errors() -> None:
    spans = await spans_of(never(), interrupt=True)
    assert (spans["invoke_agent"].attributes or {})["error.type"] == "interrupt"
    assert not spans["invoke_agent"].status.is_ok


def test_the_names_are_those_of_the_conventions() -> None:
    modules = (gen_ai_attributes, error_attributes)
    known = {value for module in modules for value in vars(module).values() if type(value) is str}
    ours = {value for name, value in vars(tracing).items() if name.isupper() and type(value) is str}
    assert len(ours) == 15
    assert ours <= known

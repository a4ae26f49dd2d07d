"""Summaries through the real SDKs over real HTTP: what is asked of them keeps every rule."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession import (
    CompactionConfig,
    SessionConfig,
    SessionManager,
    SummariserConfig,
    Tool,
    ToolOutput,
    records,
)
from llmsession.testing import StrictServer, call, say
from llmsession.testing.strict_server.replies.received import Received
from tests.providers.over_http import APIS, MODELS, PATIENCE_S, Api, make_provider
from tests.session.actors import first

pytestmark = pytest.mark.real_time

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
}


class Camera:
    """A tool that returns an image with a long text."""

    async def __call__(self, **arguments: Any) -> ToolOutput:
        return ToolOutput(content=[{"type": "text", "text": "what it sees\n" * 400}, IMAGE])


@pytest.mark.parametrize("api", APIS)
async def test_a_segment_and_the_summary_of_a_result_are_written_over_http(api: Api) -> None:
    def script(received: Received) -> Any:
        return call("look", id="c1") if len(received.body["messages"]) == 1 else say("seen " * 50)

    def summaries(_: Received) -> Any:
        return say("a door, as c1 shows")

    config = SessionConfig(
        model=MODELS[api],
        max_tokens=1_000,
        window_tokens=60_000,
        tools=[Tool(name="look", run=Camera())],
        compaction=CompactionConfig(
            keep_recent_turns=1,
            low=0.001,
            threshold=0.9,
            summariser=SummariserConfig(model=MODELS[api], improve_results=True),
        ),
    )
    with anyio.fail_after(PATIENCE_S):
        async with StrictServer(script) as talking, StrictServer(summaries) as writing:
            parts = {
                "provider": make_provider(api, talking),
                "summariser": make_provider(api, writing),
            }
            async with SessionManager(**parts) as manager:
                session = await manager.create(config)
                events = session.subscribe()
                for n in range(3):
                    await (await session.send(f"look {n} " + "again " * 3_000)).text()
                stored = await first(events, records.SummariesStored)
                assert list(stored.summaries) == ["c1"]
                assert stored.requests[0].usage.output_tokens > 0
                assert (await session.compact()).applied
                assert b"a door, as c1 shows" in session.context().encode()
                assert session.usage().summaries.output_tokens > 0
                events.close()
            asked = writing.requests
            assert [each.refusal for each in (*talking.requests, *asked) if each.refusal] == []
            assert len(asked) >= 2
            assert all("image" in str(each.body["messages"]) for each in asked)

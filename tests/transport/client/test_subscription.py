"""What a client reads of a turn whose owner is killed, and which another owner resumes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmsession import SessionConfig, StepRestarted, TextDelta, connect, records
from tests.transport.killing import killed, started

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


async def test_text_from_before_a_kill_is_not_joined_with_that_of_the_resumed_turn(
    tmp_path: Path,
) -> None:
    process = await started(tmp_path)
    try:
        async with (
            asyncio.timeout(150),
            connect(f"unix:{tmp_path}/s.sock", patience_s=100) as there,
        ):
            # Its text is the pid of its service, again and again.
            session = await there.create(SessionConfig(model="pid", recovery="resume"))
            turn = await session.send("go")
            pieces: list[str | StepRestarted] = []
            watching, text = aiter(turn), turn.stream_text()
            while len(pieces) < 5:
                pieces.append(await anext(text))
            events = [await anext(watching) for _ in range(5)]
            await killed(process)
            process = await started(tmp_path)
            pieces += [piece async for piece in text]
            events += [event async for event in watching]
        position = pieces.index(StepRestarted(turn=1, step=1, attempt=1))
        whole = "".join(map(str, pieces[position + 1 :]))
        assert whole == f"{process.pid} " * 40
        resumed = next(
            number for number, event in enumerate(events) if isinstance(event, records.TurnResumed)
        )
        assert events[resumed + 1] == StepRestarted(turn=1, step=1, attempt=1)
        shown = [event.text for event in events[resumed:] if isinstance(event, TextDelta)]
        assert "".join(shown) == whole
    finally:
        await killed(process)

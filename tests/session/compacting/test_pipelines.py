"""Sessions under policies that are made of policies: what goes first, and what is suggested."""

from __future__ import annotations

from llmsession import CompactionConfig, Tool
from llmsession.compaction.policies import StripThinking, pipeline
from llmsession.testing.scripted import Scripted, call, say, think
from llmsession.turns import records as r
from llmsession.turns.request import Request, StepTag
from tests.session.actors import Quick, Stage, settled, stage, texts_of
from tests.session.compacting.conversations import applied, tools

WORDS = "some words that say what is wanted " * 40  # about 400 tokens
HYBRID = CompactionConfig(policy="hybrid_60_80_90", schedule="at_once")


async def warnings(on: Stage) -> list[r.ContextWarned]:
    return [record for record in await on.log() if isinstance(record, r.ContextWarned)]


async def test_the_hybrid_suggests_a_new_session_in_its_record_and_in_one_warning() -> None:
    # Its budget: 0.8 of the window, less the system text, the question and 16,000 for a reply.
    async with stage(
        lambda _, tag: f"answer {tag.turn}", window_tokens=40_000, max_tokens=4_000,
        compaction=HYBRID,
    ) as on:  # fmt: skip
        for number in range(4):
            await on.say(f"message {number} {WORDS}")
        # From below 60 % to above 90 % of it at once.
        await on.say(WORDS * 34)
        await settled()
        await on.say("and on")
        (record, *_) = [one for one in await applied(on) if "suggest_new_session" in one.figures]
        assert record.policy == "hybrid_60_80_90"
        (warning,) = [one for one in await warnings(on) if one.suggests_new_session]
        assert warning.seq > record.seq
        await on.say("and on")
        assert len([one for one in await warnings(on) if one.suggests_new_session]) == 1


async def test_the_hybrid_leaves_out_thinking_and_old_reads_before_messages() -> None:
    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.step == 1 and tag.turn < 9:
            return think("hm " * 400) + call("read_file", {"path": "a.py"}, id=f"c{tag.turn}")
        return say(f"answer {tag.turn}")

    output = "a line of the file\n" * 200
    async with stage(
        script, tools=[Tool(name="read_file", run=Quick(output))],
        window_tokens=40_000, max_tokens=4_000, compaction=HYBRID,
    ) as on:  # fmt: skip
        for number in range(8):
            await on.say(f"message {number}")
            await settled()
        (first, *_) = await applied(on)
        assert first.drops_thinking
        assert len(first.shown_results) >= 4
        assert (first.omitted, first.prefix_summary) == ((), None)
        await on.say("and now?")
        sent = texts_of(on.provider.requests[-1])
        assert "message 0" in sent[0]
        assert sum(output[:50] in body.replace("\\n", "\n") for body in sent) < 8


async def test_a_pipeline_runs_in_a_session_under_its_name() -> None:
    policy = pipeline(StripThinking(threshold=0.3), "mask_consumed", "balanced")
    compaction = CompactionConfig(policy=policy, schedule="at_once")

    def script(request: Request, tag: StepTag) -> Scripted:
        if tag.step == 1:
            return think("hm " * 300) + call("t", id=f"c{tag.turn}")
        return say(f"answer {tag.turn}")

    async with stage(
        script, tools=tools(), window_tokens=40_000, max_tokens=4_000, compaction=compaction
    ) as on:
        for number in range(12):
            await on.say(f"message {number}")
            await settled()
        records = await applied(on)
        assert {record.policy for record in records} == {"pipeline"}
        assert records[0].drops_thinking
        assert "stages: strip_thinking" in records[0].reason

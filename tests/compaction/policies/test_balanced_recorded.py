"""``balanced`` over recorded conversations: what was really said, in windows of every size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmsession.compaction.rules.repair import tool_pair_repair
from llmsession.errors import SessionError
from llmsession.providers.models import CLAUDE, COMPATIBLE, OPENAI
from llmsession.transcripts import Conversation, read
from llmsession.turns.messages import Message
from tests.compaction.lives import ContextLife

KINDS = {
    "bound": CLAUDE["claude-opus-5-5"],
    "free": CLAUDE["claude-opus-4-6"],
    "gpt": OPENAI["gpt-6"],
    "apart": replace(COMPATIBLE, merges_roles=False),
}


def conversations(folder: Path, *, every: int = 1) -> Iterator[Conversation]:
    """Those of each *every*-th file."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths[::every]:
        try:
            found = read(path.read_bytes())
        except SessionError:
            continue  # not one of the formats
        yield from found if isinstance(found, list | tuple) else (found,)


def said(conversation: Conversation) -> tuple[Message, ...]:
    """Its messages, paired, from the first that a user said."""
    messages, _ = tool_pair_repair(conversation.messages)
    first = next((at for at, m in enumerate(messages) if m.is_user and not m.tool_results), 0)
    return messages[first:]


def replay(conversation: Conversation, kind: str, window_tokens: int) -> Counter[str]:
    life = ContextLife(0, KINDS[kind], window_tokens)
    return life.replay(said(conversation))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_recorded_conversations_stays_valid_and_within_its_budget(
    shared_data: Path, kind: str
) -> None:
    seen: Counter[str] = Counter()
    for number, conversation in enumerate(conversations(shared_data, every=11)):
        seen += replay(conversation, kind, (8_000, 32_000)[number % 2])
    print(dict(seen))
    assert seen["requests"] > 200
    assert seen["plans"] > 10
    assert seen["prefix_summaries"] > 5
    assert not seen["found more than 5 %"]
    assert not seen["too large"]


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("window_tokens", [8_000, 32_000, 128_000, 200_000, 1_000_000])
@pytest.mark.parametrize("kind", KINDS)
def test_all_recorded_conversations_in_every_window(
    shared_data: Path, kind: str, window_tokens: int
) -> None:
    seen: Counter[str] = Counter()
    for conversation in conversations(shared_data):
        seen += replay(conversation, kind, window_tokens)
    print(dict(seen))
    assert seen["requests"] > 1_000
    assert not seen["found more than 5 %"]
    assert not seen["too large"]
    if window_tokens <= 128_000:
        assert seen["prefix_summaries"] > 3

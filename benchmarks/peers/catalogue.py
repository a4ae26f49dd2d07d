"""The peers: what is installed for each, and what its adapter is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["ADAPTERS", "BARE", "OURS", "PEERS", "ROOT", "Peer"]

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = Path(__file__).resolve().parent / "adapters"
OURS = "llmsession"
BARE = "openai and a list"
"""No peer: the SDK with a list of messages, which is what all of them stand on."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One peer. ``requirements`` name no versions: the newest releases are installed. The first of
    them is the one whose version names the row; ``protocol`` is how it talks to the model."""

    name: str
    adapter: str
    requirements: tuple[str, ...]
    protocol: Literal["openai", "anthropic"] = "openai"
    least_python: tuple[int, int] = (3, 11)

    @property
    def script(self) -> Path:
        """The adapter's file."""
        return ADAPTERS / self.adapter


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name=OURS,
            adapter="ours.py",
            requirements=(f"{OURS}[openai] @ {ROOT.as_uri()}",),
        ),
        Peer(
            name=BARE,
            adapter="bare.py",
            requirements=("openai",),
        ),
        Peer(
            name="openai-agents",
            adapter="openai_agents.py",
            requirements=("openai-agents",),
        ),
        Peer(
            name="langgraph",
            adapter="langgraph.py",
            requirements=(
                "langgraph",
                "langchain",
                "langchain-openai",
                "langgraph-checkpoint-sqlite",
            ),
        ),
        Peer(
            name="pydantic-ai",
            adapter="pydantic_ai.py",
            requirements=("pydantic-ai-slim[openai]", "pydantic-ai-harness"),
        ),
        Peer(
            name="pydantic-ai-harness",
            adapter="pydantic_ai_harness.py",
            requirements=("pydantic-ai-harness", "pydantic-ai-slim[openai]"),
        ),
        Peer(
            name="autogen-core",
            adapter="autogen_core.py",
            requirements=("autogen-core", "autogen-agentchat", "autogen-ext[openai]"),
        ),
        Peer(
            name="strands-agents",
            adapter="strands_agents.py",
            requirements=("strands-agents[openai,anthropic]",),
        ),
        Peer(
            name="google-adk",
            adapter="google_adk.py",
            requirements=("google-adk[openai,db]",),
        ),
        Peer(
            name="agent-framework",
            adapter="agent_framework.py",
            requirements=("agent-framework-core", "agent-framework-openai"),
        ),
        Peer(
            name="openhands-sdk",
            adapter="openhands_sdk.py",
            requirements=("openhands-sdk",),
            least_python=(3, 12),
        ),
        Peer(
            name="claude-agent-sdk",
            adapter="claude_agent_sdk.py",
            requirements=("claude-agent-sdk",),
            protocol="anthropic",
        ),
    )
}
"""By name: ours, the SDK alone, the peers."""

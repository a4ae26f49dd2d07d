"""The peers: what is installed for each, and what its adapter is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["ADAPTERS", "OURS", "PEERS", "Peer"]

ADAPTERS = Path(__file__).resolve().parent / "adapters"
OURS = "llmsession"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One peer. ``requirements`` name no versions: the newest releases are installed. The first of
    them is the one whose version names the row; ``protocol`` is how it talks to the model."""

    name: str
    adapter: str
    requirements: tuple[str, ...] = ()
    protocol: Literal["openai", "anthropic"] = "openai"

    @property
    def script(self) -> Path:
        """The adapter's file."""
        return ADAPTERS / self.adapter


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(name=OURS, adapter="ours.py"),
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
            name="autogen-core",
            adapter="autogen_core.py",
            requirements=("autogen-core", "autogen-agentchat", "autogen-ext[openai]"),
        ),
        Peer(
            name="strands-agents",
            adapter="strands_agents.py",
            requirements=("strands-agents[openai]",),
        ),
        Peer(
            name="google-adk",
            adapter="google_adk.py",
            requirements=("google-adk", "litellm"),
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
        ),
    )
}
"""By name, ours first."""

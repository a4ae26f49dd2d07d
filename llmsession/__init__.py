"""llmsession: one actor per conversation with a language model.

An LLMSession owns an immutable history, streams replies, drops an interrupted turn whole, and
keeps the context inside the model's window with summaries that were made ahead of time.
"""

from llmsession.compaction.policies import SwapToolResults
from llmsession.errors import (
    ContextTooLarge,
    DuplicateToolResult,
    HeadMoved,
    InvalidConfig,
    InvalidInput,
    InvalidMessage,
    KeyReused,
    Overloaded,
    ProviderError,
    SessionBusy,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionInUse,
    SessionMoved,
    SessionNotFound,
    StoreError,
    TranscriptError,
    TurnAborted,
    TurnFailed,
    TurnNotOpen,
    UnknownToolCall,
)
from llmsession.providers import Provider, ReplayProvider
from llmsession.session.compactor import CompactionOutcome
from llmsession.session.config import (
    CompactionConfig,
    SessionConfig,
    Tool,
    ToolOutput,
    ToolResult,
)
from llmsession.session.hub import Event, Lagged, Subscription
from llmsession.session.manager import SessionManager
from llmsession.session.outcome import (
    Closed,
    InterruptOutcome,
    InterruptResult,
    SessionStatus,
    SessionUsage,
    TurnOutcome,
)
from llmsession.session.session import LLMSession, Turn
from llmsession.store import MemoryStore, Store
from llmsession.turns.ids import TurnCounter, TurnId
from llmsession.turns.machine import TurnLimits
from llmsession.turns.messages import Message, count_turns
from llmsession.turns.previews import TextDelta, ThinkingDelta, ToolInputDelta, ToolUse
from llmsession.turns.usage import Usage

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "CompactionConfig",
    "CompactionOutcome",
    "ContextTooLarge",
    "DuplicateToolResult",
    "Event",
    "HeadMoved",
    "InterruptOutcome",
    "InterruptResult",
    "InvalidConfig",
    "InvalidInput",
    "InvalidMessage",
    "KeyReused",
    "LLMSession",
    "Lagged",
    "MemoryStore",
    "Message",
    "Overloaded",
    "Provider",
    "ProviderError",
    "ReplayProvider",
    "SessionBusy",
    "SessionClosed",
    "SessionConfig",
    "SessionError",
    "SessionExists",
    "SessionInUse",
    "SessionManager",
    "SessionMoved",
    "SessionNotFound",
    "SessionStatus",
    "SessionUsage",
    "Store",
    "StoreError",
    "Subscription",
    "SwapToolResults",
    "TextDelta",
    "ThinkingDelta",
    "Tool",
    "ToolInputDelta",
    "ToolOutput",
    "ToolResult",
    "ToolUse",
    "TranscriptError",
    "Turn",
    "TurnAborted",
    "TurnCounter",
    "TurnFailed",
    "TurnId",
    "TurnLimits",
    "TurnNotOpen",
    "TurnOutcome",
    "UnknownToolCall",
    "Usage",
    "count_turns",
]

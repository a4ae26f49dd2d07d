"""Sessions as actors.

In: commands from handles, events from providers and tools. Out: records to the store, events to
subscribers, answers to callers. Absent: sockets, SQL and provider SDKs.
"""

from .config import (
    CompactionConfig,
    Recovery,
    SessionConfig,
    SummariserConfig,
    Tool,
    ToolCallable,
    ToolOutput,
    ToolResult,
    WhenBusy,
)
from .hub import Event, Lagged, Subscription
from .manager import SessionManager
from .observing import SessionObserver
from .outcome import (
    Closed,
    CompactionOutcome,
    InterruptOutcome,
    InterruptResult,
    ModelUsage,
    SessionPhase,
    SessionStatus,
    SessionUsage,
    TurnOutcome,
)
from .price_file import load_prices
from .retention import Retention, RetentionReport
from .session import LLMSession, Turn

__all__ = [
    "Closed",
    "CompactionConfig",
    "CompactionOutcome",
    "Event",
    "InterruptOutcome",
    "InterruptResult",
    "LLMSession",
    "Lagged",
    "ModelUsage",
    "Recovery",
    "Retention",
    "RetentionReport",
    "SessionConfig",
    "SessionManager",
    "SessionObserver",
    "SessionPhase",
    "SessionStatus",
    "SessionUsage",
    "Subscription",
    "SummariserConfig",
    "Tool",
    "ToolCallable",
    "ToolOutput",
    "ToolResult",
    "Turn",
    "TurnOutcome",
    "WhenBusy",
    "load_prices",
]

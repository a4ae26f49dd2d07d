"""Sessions as actors: the public names of this package and the code behind them.

In: commands from handles, and events from providers and tools. Out: records to the store, events to
subscribers, and answers to callers. Absent: sockets, SQL and provider SDKs.
"""

from .core.observers import SessionObserver
from .core.subscriptions import Event, Lagged, Subscription
from .handles.session import LLMSession, Turn
from .manager import SessionManager
from .operations.search import SearchHit, SearchPage
from .values.config import (
    CompactionConfig,
    Recovery,
    SessionConfig,
    SummariserConfig,
    Tool,
    ToolCallable,
    ToolOutput,
    ToolResult,
    Unbound,
    WhenBusy,
    tool,
)
from .values.history_limits import Forgotten, HistoryLimits
from .values.outcome import (
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
from .values.price_file import load_prices
from .values.retention import Retention, RetentionReport

__all__ = [
    "Closed",
    "CompactionConfig",
    "CompactionOutcome",
    "Event",
    "Forgotten",
    "HistoryLimits",
    "InterruptOutcome",
    "InterruptResult",
    "LLMSession",
    "Lagged",
    "ModelUsage",
    "Recovery",
    "Retention",
    "RetentionReport",
    "SearchHit",
    "SearchPage",
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
    "Unbound",
    "WhenBusy",
    "load_prices",
    "tool",
]

"""The vocabulary of a conversation, and the pure machine that decides what a turn does next.

In: facts about one turn. Out: the next turn and the effects to perform. Absent: async, clocks, I/O
and randomness.

This module exports the names that users, providers and stores share. ``records`` is the module of
the durable events. Only the session imports the machine, from its own modules.
"""

from . import records
from .blocks import (
    Block,
    Content,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .event_choice import OnFailure
from .ids import TurnCounter, TurnId, turn_number
from .machine import TurnLimits
from .messages import Message, Role, count_turns
from .previews import Preview, StepRestarted, TextDelta, ThinkingDelta, ToolInputDelta, ToolUse
from .records import ExceededBudget, InterruptPolicy, ProviderFailure, Record, Seed
from .request import Profile, Request, RequestMessage, StepTag
from .spending.prices import PRICES, Price
from .spending.spending import Spending, SpendingBudget
from .stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
    UsageReported,
)
from .usage import Usage

__all__ = [
    "PRICES",
    "Block",
    "BlockDelta",
    "BlockStarted",
    "BlockStopped",
    "Content",
    "DocumentBlock",
    "ExceededBudget",
    "ImageBlock",
    "InterruptPolicy",
    "Message",
    "OnFailure",
    "OpaqueBlock",
    "Preview",
    "Price",
    "Profile",
    "ProviderFailure",
    "Record",
    "RedactedThinkingBlock",
    "ReplyEnded",
    "ReplyStarted",
    "Request",
    "RequestMessage",
    "Role",
    "Seed",
    "Spending",
    "SpendingBudget",
    "StepRestarted",
    "StepTag",
    "StreamEvent",
    "TextBlock",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingDelta",
    "ToolInputDelta",
    "ToolResultBlock",
    "ToolUse",
    "ToolUseBlock",
    "TurnCounter",
    "TurnId",
    "TurnLimits",
    "Usage",
    "UsageReported",
    "count_turns",
    "records",
    "turn_number",
]

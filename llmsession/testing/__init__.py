"""What tests of llmsession, and of programs that use it, are made of.

In: a script of replies, a store to check. Out: a provider that plays the script and misbehaves
on demand, a store that fails on demand, the contract that every store keeps, and the replay of
recorded conversations through real sessions.
Absent: pytest; the contract is plain asserts in async methods.
"""

from .drive import (
    Driven,
    DriveOptions,
    DriveReport,
    normalised,
    replay_conversation,
    same_history,
)
from .faults import FaultyStore
from .scripted import ScriptedProvider, ScriptedReply, block, call, never, say, think
from .store_contract import StoreContract

__all__ = [
    "DriveOptions",
    "DriveReport",
    "Driven",
    "FaultyStore",
    "ScriptedProvider",
    "ScriptedReply",
    "StoreContract",
    "block",
    "call",
    "never",
    "normalised",
    "replay_conversation",
    "same_history",
    "say",
    "think",
]

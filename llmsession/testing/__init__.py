"""What tests of llmsession, and of programs that use it, are made of.

In: a script of replies, a store to check. Out: a provider that plays the script and misbehaves
on demand, a store that fails on demand, and the contract that every store keeps.
Absent: pytest; the contract is plain asserts in async methods.
"""

from .faults import FaultyStore
from .scripted import ScriptedProvider, ScriptedReply, block, call, never, say, think
from .store_contract import StoreContract

__all__ = [
    "FaultyStore",
    "ScriptedProvider",
    "ScriptedReply",
    "StoreContract",
    "block",
    "call",
    "never",
    "say",
    "think",
]

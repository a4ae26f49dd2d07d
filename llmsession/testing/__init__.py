"""What tests of llmsession, and of programs that use it, are made of.

In: a script of replies, a store to check. Out: a provider that plays the script and misbehaves
on demand, a store that fails on demand, the contract that every store keeps, the replay of
recorded conversations through real sessions, stress with a checker of what was recorded, and
simulation, where a seed decides everything.
Absent: pytest; the contract is plain asserts in async methods.
"""

from .checker.checker import check
from .faulty_store import FaultyStore
from .recording.entries import Recording, decode_lines, encode_lines
from .recording.violation import INVARIANTS, Breach
from .replay.replay import (
    Driven,
    DriveOptions,
    DriveReport,
    normalised,
    replay_conversation,
    same_history,
)
from .scripted import ScriptedProvider, ScriptedReply, block, call, never, say, think
from .simulation.run import run_story
from .simulation.schedule import Story, story_of
from .simulation.search import SimulationPlan, SimulationReport, simulate
from .simulation.user_parts import Cast
from .store_contract.contract import StoreContract
from .stress.run import StressPlan, StressReport, run_stress
from .strict_server.fault_schedule import RandomFaults
from .strict_server.model.faults import WireFault
from .strict_server.model.models import ModelRules
from .strict_server.replies.received import Received
from .strict_server.server import StrictServer

__all__ = [
    "INVARIANTS",
    "Breach",
    "Cast",
    "DriveOptions",
    "DriveReport",
    "Driven",
    "FaultyStore",
    "ModelRules",
    "RandomFaults",
    "Received",
    "Recording",
    "ScriptedProvider",
    "ScriptedReply",
    "SimulationPlan",
    "SimulationReport",
    "StoreContract",
    "Story",
    "StressPlan",
    "StressReport",
    "StrictServer",
    "WireFault",
    "block",
    "call",
    "check",
    "decode_lines",
    "encode_lines",
    "never",
    "normalised",
    "replay_conversation",
    "run_story",
    "run_stress",
    "same_history",
    "say",
    "simulate",
    "story_of",
    "think",
]

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
from .recording.violation import INVARIANTS, Violation
from .replay.replay import (
    Driven,
    DriveOptions,
    DriveReport,
    normalized,
    replay_conversation,
    same_history,
)
from .scripted import ScriptedProvider, ScriptedReply, block, call, never, say, think
from .simulation.run import run_schedule
from .simulation.schedule import Schedule, schedule_of
from .simulation.search import SimulationPlan, SimulationReport, simulate
from .simulation.user_parts import UserParts
from .store_contract.contract import StoreContract
from .stress.run import StressPlan, StressReport, run_stress
from .strict_server.fault_schedule import RandomFaults
from .strict_server.model.faults import WireFault
from .strict_server.model.models import ModelRules
from .strict_server.replies.received import Received
from .strict_server.server import StrictServer

__all__ = [
    "INVARIANTS",
    "DriveOptions",
    "DriveReport",
    "Driven",
    "FaultyStore",
    "ModelRules",
    "RandomFaults",
    "Received",
    "Recording",
    "Schedule",
    "ScriptedProvider",
    "ScriptedReply",
    "SimulationPlan",
    "SimulationReport",
    "StoreContract",
    "StressPlan",
    "StressReport",
    "StrictServer",
    "UserParts",
    "Violation",
    "WireFault",
    "block",
    "call",
    "check",
    "decode_lines",
    "encode_lines",
    "never",
    "normalized",
    "replay_conversation",
    "run_schedule",
    "run_stress",
    "same_history",
    "say",
    "schedule_of",
    "simulate",
    "think",
]

"""What tests of llmsession, and of programs that use it, are made of.

In: a script of replies, a store to check. Out: a provider that plays the script and misbehaves
on demand, a store that fails on demand, the contract that every store keeps, the replay of
recorded conversations through real sessions, stress with a checker of what was recorded, and
simulation, where a seed decides everything.
Absent: pytest; the contract is plain asserts in async methods.
"""

from .breach import INVARIANTS, Breach
from .checker import check
from .drive import (
    Driven,
    DriveOptions,
    DriveReport,
    normalised,
    replay_conversation,
    same_history,
)
from .faults import FaultyStore
from .record import Recording, decode_lines, encode_lines
from .scripted import ScriptedProvider, ScriptedReply, block, call, never, say, think
from .sim_cast import Cast
from .sim_run import run_story
from .sim_story import Story, story_of
from .simulation import SimulationPlan, SimulationReport, simulate
from .store_contract import StoreContract
from .stress import StressPlan, StressReport, run_stress
from .strict_faultbook import RandomFaults
from .strict_faults import WireFault
from .strict_http import StrictServer
from .strict_models import ModelRules
from .strict_received import Received

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

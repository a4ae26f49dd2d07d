"""Tools for testing llmsession, and programs that use it.

- A provider that plays a script and fails on demand.
- A store that fails on demand, and the contract that every store must pass.
- A server that refuses what the real APIs refuse.
- The replay of recorded conversations through real sessions.
- Stress tests, a simulation, and a checker of their recordings.
- Clients that use a service or a cluster, and a checker of the histories of what they observed.

pytest is not needed: the store contract has plain asserts in async methods.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .faulty_store import FaultyStore
from .scripted import ScriptedProvider, ScriptedReply, block, call, never, say, think

if TYPE_CHECKING:
    from .checker.checker import check
    from .checker.histories import (
        Ending,
        History,
        LogRecord,
        Operation,
        SeenRecord,
        SubscriptionHistory,
        check_history,
        log_record,
    )
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
    from .simulation.run import run_schedule
    from .simulation.schedule import Schedule, schedule_of
    from .simulation.search import SimulationPlan, SimulationReport, simulate
    from .simulation.user_parts import UserParts
    from .store_contract.contract import StoreContract
    from .store_contract.counting import CountingContract
    from .stress.client_load import ClientLoad, LoadPlan, read_log
    from .stress.run import StressPlan, StressReport, run_stress
    from .strict_server.model.faults import WireFault
    from .strict_server.model.models import ModelRules
    from .strict_server.replies.received import Received
    from .strict_server.script import RandomFaults
    from .strict_server.server import StrictServer
else:
    # Imported at first use: some need packages that a user of ScriptedProvider may not have.
    _MODULES = {
        "checker.checker": ("check",),
        "checker.histories": (
            "Ending", "History", "LogRecord", "Operation", "SeenRecord", "SubscriptionHistory",
            "check_history", "log_record",
        ),
        "recording.entries": ("Recording", "decode_lines", "encode_lines"),
        "recording.violation": ("INVARIANTS", "Violation"),
        "replay.replay": (
            "DriveOptions", "DriveReport", "Driven", "normalized", "replay_conversation",
            "same_history",
        ),
        "simulation.run": ("run_schedule",),
        "simulation.schedule": ("Schedule", "schedule_of"),
        "simulation.search": ("SimulationPlan", "SimulationReport", "simulate"),
        "simulation.user_parts": ("UserParts",),
        "store_contract.contract": ("StoreContract",),
        "store_contract.counting": ("CountingContract",),
        "stress.client_load": ("ClientLoad", "LoadPlan", "read_log"),
        "stress.run": ("StressPlan", "StressReport", "run_stress"),
        "strict_server.model.faults": ("WireFault",),
        "strict_server.model.models": ("ModelRules",),
        "strict_server.replies.received": ("Received",),
        "strict_server.script": ("RandomFaults",),
        "strict_server.server": ("StrictServer",),
    }  # fmt: skip
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        except ModuleNotFoundError as error:
            install = "pip install 'llmsession[testing]'"
            raise ImportError(f"{name} needs {error.name}: {install}", name=error.name) from error
        globals()[name] = value
        return value


__all__ = [
    "INVARIANTS",
    "ClientLoad",
    "CountingContract",
    "DriveOptions",
    "DriveReport",
    "Driven",
    "Ending",
    "FaultyStore",
    "History",
    "LoadPlan",
    "LogRecord",
    "ModelRules",
    "Operation",
    "RandomFaults",
    "Received",
    "Recording",
    "Schedule",
    "ScriptedProvider",
    "ScriptedReply",
    "SeenRecord",
    "SimulationPlan",
    "SimulationReport",
    "StoreContract",
    "StressPlan",
    "StressReport",
    "StrictServer",
    "SubscriptionHistory",
    "UserParts",
    "Violation",
    "WireFault",
    "block",
    "call",
    "check",
    "check_history",
    "decode_lines",
    "encode_lines",
    "log_record",
    "never",
    "normalized",
    "read_log",
    "replay_conversation",
    "run_schedule",
    "run_stress",
    "same_history",
    "say",
    "schedule_of",
    "simulate",
    "think",
]

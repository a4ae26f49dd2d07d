"""All mutants, by what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from .mutant import Mutant
from .of_command_line import COMMAND_LINE
from .of_commands import COMMANDS, INTERRUPTS, LANES
from .of_contexts import COMPACTION, PROJECTION
from .of_owners import CLUSTERS, OWNERS, STORES
from .of_receipts import RECEIPTS, SPENDING
from .of_records import DURABLE, FOLD, RETENTION, SUBSCRIBERS
from .of_tools import TOOLS
from .of_transcripts import TRANSCRIPTS
from .of_turns import BLOCKS, MACHINE, NAMING
from .of_wire import WIRE

__all__ = ["CATALOGUE", "MUTANTS"]

CATALOGUE: Mapping[str, tuple[Mutant, ...]] = {
    "What a turn does next": MACHINE,
    "Which event it is": NAMING,
    "Blocks, calls and numbers": BLOCKS,
    "Receipts": RECEIPTS,
    "The fold of the log": FOLD,
    "Append, fold, publish, answer": DURABLE,
    "Interrupts, and what does not stop": INTERRUPTS,
    "The mailbox, and modes of sending": LANES,
    "Command ids and refusals": COMMANDS,
    "Subscribers": SUBSCRIBERS,
    "Retention": RETENTION,
    "Owners and recovery": OWNERS,
    "Clusters": CLUSTERS,
    "Stores": STORES,
    "Compaction": COMPACTION,
    "Requests": PROJECTION,
    "Time, tools, works": TOOLS,
    "Budgets": SPENDING,
    "The service": WIRE,
    "The command line": COMMAND_LINE,
    "Recorded files": TRANSCRIPTS,
}
"""By what they are about."""

MUTANTS: tuple[Mutant, ...] = tuple(chain.from_iterable(CATALOGUE.values()))

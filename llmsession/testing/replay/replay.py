"""Drives a real session through a recorded conversation, with interrupts where they are wanted.

No model answers: the replies are the recorded ones, and so are the tool results. What the user
said beside results is sent as steers. A turn that was cut short in the recording is interrupted
where the recording ends, under ``keep_steps``; one that has not a single reply keeps nothing and
is counted as skipped. A recorded call without a result gets a neutral one: from that interrupt
where the turn ends there, else by submission. Texts without text are left out and counted.

A turn that one of our interrupts dropped is sent again from its beginning. One that an interrupt
kept is not: the next recorded turn follows, and what was kept has to be a beginning of it.
"""

from __future__ import annotations

import msgspec

from llmsession.transcripts import Conversation

from .driver import Advanced, Driver
from .history_diff import normalized, same_history
from .report import Driven, DriveOptions, DriveReport

__all__ = [
    "DriveOptions",
    "DriveReport",
    "Driven",
    "drive",
    "normalized",
    "replay_conversation",
    "same_history",
]

DEFAULT = DriveOptions()


async def replay_conversation(
    conversation: Conversation,
    options: DriveOptions = DEFAULT,
    *,
    advanced: Advanced = lambda messages: None,
) -> DriveReport:
    """Replay *conversation*; with interrupts also without them first, and compare.

    The report is that of the last replay; invalid requests, orphans and differences are those of
    both. The two histories have to be equal: under ``drop_turn`` whole, under the other policies
    but for the turns that were cut short. A turn that did not fit into the window in one of the
    two is not compared: receipts take room too, and it is counted as skipped.
    """
    options = options.checked()
    plain = msgspec.structs.replace(options, interrupt_every=None)
    first = await drive(conversation, plain, advanced=advanced)
    if options.interrupt_every is None:
        return first.report
    second = await drive(conversation, options, advanced=advanced)
    report = second.report
    difference = _compare(first, second)
    report.history_equal = difference is None
    if difference is not None:
        report.fault(f"with interrupts the history differs: {difference}")
    report.invalid_requests += first.report.invalid_requests
    report.orphans += first.report.orphans
    report.differences += first.report.differences
    for fault in first.report.faults:
        report.fault(f"without interrupts: {fault}")
    return report


def _compare(first: Driven, second: Driven) -> str | None:
    left_out = first.too_large | second.too_large | second.kept
    for position in sorted((first.turns.keys() | second.turns.keys()) - left_out):
        if position not in first.turns or position not in second.turns:
            which = "first" if position in first.turns else "second"
            return f"recorded turn {position + 1} is only in the {which} history"
        difference = same_history(first.turns[position], second.turns[position])
        if difference is not None:
            return f"recorded turn {position + 1}: {difference}"
    return None


async def drive(
    conversation: Conversation,
    options: DriveOptions = DEFAULT,
    *,
    advanced: Advanced = lambda messages: None,
) -> Driven:
    """Replay *conversation* once, from its first turn to its last. Raises InvalidInput."""
    return await Driver(conversation, options.checked(), advanced).run()

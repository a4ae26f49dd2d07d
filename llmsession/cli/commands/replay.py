"""``llmsession replay``: run recorded conversations through real sessions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from llmsession.compaction.policies import policy_names
from llmsession.errors import InvalidInput
from llmsession.session import CompactionConfig
from llmsession.testing.replay.driver import Advanced
from llmsession.testing.replay.replay import DriveOptions, DriveReport, replay_at
from llmsession.transcripts import Conversation

from ..common.exit_codes import BROKEN_PROMISE, USAGE
from ..common.files import FormatName, RecordedFiles, check_format, print_failure
from ..common.service import CaFile, ConnectTo, ServiceAt, TokenFile, service_at
from ..common.terminal import say_json
from .replay_table import print_table
from .replayed import Drive, ReplayedFile, drive_files

__all__ = ["drive_files", "print_table", "replay"]


class Policy(StrEnum):
    DROP_TURN = "drop_turn"
    KEEP_STEPS = "keep_steps"
    KEEP_TEXT = "keep_text"
    RANDOM = "random"


def replay(
    files: RecordedFiles,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per file.")
    ] = False,
    interrupt_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Interrupt about one step in N; compare with a run without interrupts.",
        ),
    ] = None,
    interrupt_policy: Annotated[
        Policy | None,
        typer.Option(help="The policy of these interrupts. Default: random."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the choice of interrupts. Default: 0.")
    ] = None,
    window: Annotated[
        int, typer.Option(min=2, metavar="TOKENS", help="The model's context window.")
    ] = 200_000,
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="The compaction policy.")
    ] = "balanced",
    delta_chars: Annotated[
        int | None,
        typer.Option(min=1, metavar="CHARS", help="Characters per streamed chunk. Default: 48."),
    ] = None,
    delay_ms: Annotated[
        float | None,
        typer.Option(min=0, metavar="MS", help="Pause before each chunk. Default: 0."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject a file that has a broken line.")
    ] = False,
    format: FormatName = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Run a real session through each recorded conversation. No model is called.

    Sends the recorded user messages, streams the recorded replies and submits the recorded tool
    results. Checks every request, and compares the history with the recording.

    Exits with 1 if a check fails. Exits with 2 if a file could not be read, if nothing in it could
    be replayed, or if more than 1 % of it was left out; stderr names the file, and all other files
    are replayed.

    With --connect the session runs at a service, which must answer from the same file: start it
    with `serve --replay FILE`.
    """
    local = {
        "--interrupt-every": interrupt_every,
        "--interrupt-policy": interrupt_policy,
        "--seed": seed,
        "--delta-chars": delta_chars,
        "--delay-ms": delay_ms,
    }
    service = service_at(connect, token_file, ca, local=local)
    if service is not None and len(files) != 1:
        raise InvalidInput("--connect needs exactly one FILE: a service replays one recording")
    check_format(format)
    if policy not in policy_names():
        known = ", ".join(policy_names())
        raise InvalidInput(f"--policy: unknown policy {policy!r}; known policies: {known}")
    fields: dict[str, Any] = {  # only those that were typed: DriveOptions has the defaults
        "delta_chars": delta_chars,
        "delay_s": None if delay_ms is None else delay_ms / 1000,
        "interrupt_every": interrupt_every,
        "interrupt_policy": None if interrupt_policy is None else interrupt_policy.value,
        "seed": seed,
    }
    options = DriveOptions(
        window_tokens=window,
        compaction=CompactionConfig(policy=policy).checked(),
        **{name: value for name, value in fields.items() if value is not None},
    ).checked()
    replayed = []
    drive: Drive | None = None if service is None else partial(_drive_there, service)
    for result in drive_files(files, options, format=format, strict=strict, drive=drive):
        replayed.append(result)
        if result.error is not None:
            print_failure(result.file, result.error)
        if as_json:
            say_json(result.figures(), flush=True)
    if not as_json:
        print_table(replayed)
    _exit(replayed)


async def _drive_there(
    service: ServiceAt, conversation: Conversation, options: DriveOptions, *, advanced: Advanced
) -> DriveReport:
    async with service.sessions() as sessions:
        return await replay_at(sessions, conversation, options, advanced=advanced)


def _exit(replayed: Sequence[ReplayedFile]) -> None:
    """Exit with the code of the worst result: a failed check is worse than an unreadable file."""
    if any(result.report.is_broken for result in replayed):
        raise typer.Exit(BROKEN_PROMISE)
    if any(result.error is not None or result.left_out.is_too_much for result in replayed):
        raise typer.Exit(USAGE)

"""``llmsession story``: what a session does, told in under a minute. Recorded replies, no model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import typer
from rich.console import Console
from rich.text import Text

from llmsession.compaction.recall import MAX_RECALL_CHARS, RECALL_TOOL_NAME
from llmsession.errors import InvalidInput, TranscriptError
from llmsession.providers import ReplayProvider
from llmsession.session.config import CompactionConfig, SessionConfig, Tool, ToolResult
from llmsession.session.manager import SessionManager
from llmsession.session.session import LLMSession, Turn
from llmsession.transcripts import Conversation, read
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.previews import TextDelta, ToolUse
from llmsession.turns.records import CompactionApplied, StepCompleted, TurnCommitted, TurnFailed

from .exit_codes import BROKEN_PROMISE
from .replay import drive_files, print_table

__all__ = ["story"]

BAR = 40
"""Width of the context bar in characters, where the terminal has room for it."""
BESIDE_BAR = 37
"""What stands left and right of the bar."""
STORY_WINDOW_TOKENS = 48_000
"""Small on purpose, so that the bar fills before the reader's patience ends."""


def story(
    # Typer would refuse the whole call for one file that may not be read.
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Recorded conversations.", readable=False),
    ],
) -> None:
    """Tell what a session does, on recorded conversations. No model, no key, no network.

    Exit code 1: the replay at the end broke a promise; 2: a file cannot be told.
    """
    conversations = [_one(path) for path in files]
    longest = max(conversations, key=lambda conversation: len(_first_turn(conversation)))
    _largest_recallable(_first_turn(longest))
    console = Console(highlight=False)
    console.rule("[bold]llmsession: recorded replies, no model")
    anyio.run(_tell, console, longest)
    console.print("\n[bold]5. The recorded conversations, replayed through real sessions[/]")
    replayed = list(drive_files(files))
    print_table(replayed, console)
    console.print(
        "\nNext: [bold].venv/bin/llmsession replay --interrupt-every 5 --seed 1[/] FILE..."
        "\n      [bold].venv/bin/llmsession stress --seconds 5[/]"
        "\n      README.md, then ARCHITECTURE.md",
        soft_wrap=True,
    )
    if any(found.report.is_broken for found in replayed):
        raise typer.Exit(BROKEN_PROMISE)


def _one(path: Path) -> Conversation:
    try:
        found = read(path.read_bytes())
    except TranscriptError as error:
        raise InvalidInput(f"{path}: {error}") from error
    if not found or not found[0].messages:
        raise InvalidInput(f"{path}: no conversation in it")
    return found[0]


def _first_turn(conversation: Conversation) -> tuple[Message, ...]:
    return conversation.turns[0]


def _results(turn: Sequence[Message]) -> dict[str, str]:
    return {result.tool_use_id: result.text for message in turn for result in message.tool_results}


def _largest_recallable(turn: Sequence[Message]) -> str:
    """The call with the largest result that a single recall returns whole. Raises InvalidInput
    for a turn that part 4 of the story cannot be told with."""
    results = _results(turn)
    called = [call.id for reply in turn if reply.is_assistant for call in reply.tool_calls]
    is_over = turn[-1].is_assistant and not turn[-1].tool_calls
    whole = [call for call in results if len(results[call]) < MAX_RECALL_CHARS * 9 // 10]
    if not whole or not turn[0].text or not is_over or sorted(called) != sorted(results):
        raise InvalidInput(
            "no file has a first turn that ends, with tool calls that are all answered;"
            " the story needs one"
        )
    return max(whole, key=lambda call: len(results[call]))


async def _tell(console: Console, conversation: Conversation) -> None:
    await _interrupted(console)
    await _compacted(console, conversation)


# 1 and 2: a reply streams; an interrupt in the middle of a tool; the same send again.


def _said(turn: int, content: Any) -> Message:
    body = encode_blocks(content)
    return Message(id=f"story/a{turn}", session="story", turn=turn, role="assistant", body=body)


def _called(turn: int, call: str, tool: str, **arguments: Any) -> Message:
    block = {"type": "tool_use", "id": call, "name": tool, "input": arguments}
    return _said(turn, [block])


SCRIPT = (
    _said(1, "Hello. I am a recording: nobody thinks here, but the session around me is real."),
    _called(2, "call_1", "deploy", target="staging"),
    _called(3, "call_1", "deploy", target="staging"),
    _said(3, "The earlier deployment may have gone through; I deployed once more, and it is up."),
)


class _Deployment:
    """A tool that takes long the first time, so that there is time to change one's mind."""

    def __init__(self) -> None:
        self.started = anyio.Event()
        self.runs = 0

    async def __call__(self, target: str) -> str:
        self.runs += 1
        self.started.set()
        if self.runs == 1:
            await anyio.sleep(30)
        return f"deployed to {target}"


async def _interrupted(console: Console) -> None:
    deployment = _Deployment()
    provider = ReplayProvider(SCRIPT, delta_chars=6, delay_s=0.03)
    config = SessionConfig(model="recorded", tools=(Tool(name="deploy", run=deployment),))
    async with SessionManager(provider=provider) as manager:
        session = await manager.create(config)
        console.print("\n[bold]1. A reply streams[/]\n[dim]user:[/] Hello?")
        await _print_stream(console, await session.send("Hello?"))

        console.print("\n[bold]2. An interrupt in the middle of a tool[/]")
        console.print("[dim]user:[/] Deploy to staging.")
        base = session.conversation()
        turn = await session.send("Deploy to staging.")
        await deployment.started.wait()
        console.print("[dim]tool:[/] deploy is running ... [bold red]interrupt![/]")
        asked = anyio.current_time()
        outcome = await session.interrupt()
        took_ms = (anyio.current_time() - asked) * 1000
        console.print(f"answered {outcome.result.value} after {took_ms:.1f} ms")
        console.print(f"history is base: [bold]{session.conversation() is base}[/]")
        dropped = outcome.dropped[0]
        calls = ", ".join(f"{call.name} {call.status}" for call in dropped.calls)
        console.print(f"dropped: turn {turn.id.number}; tools that had started: {calls}")

        console.print("\n[bold]3. The same send again[/]\n[dim]user:[/] Deploy to staging.")
        again = await session.send("Deploy to staging.")
        await _print_stream(console, again)
        first = (await again.outcome()).messages[0]
        console.print("the message that the model got carries the receipt:")
        console.print(Text(_receipt(first), style="yellow"))


def _receipt(message: Message) -> str:
    """The block that the session wrote into the user's message itself."""
    return "".join(str(getattr(message.content[at], "text", "")) for at in message.synthetic)


async def _print_stream(console: Console, turn: Turn) -> None:
    console.print("[dim]assistant:[/] ", end="")
    async for event in turn:
        if isinstance(event, TextDelta):
            console.print(event.text, end="", markup=False)
        elif isinstance(event, ToolUse):
            console.print(f"[dim](calls {event.name})[/] ", end="")
    console.print()


# 4: the context fills, results are swapped, one is recalled whole.


async def _compacted(console: Console, conversation: Conversation) -> None:
    console.print("\n[bold]4. The context fills, and old tool results are swapped[/]")
    first = _first_turn(conversation)
    results, whole = _results(first), _largest_recallable(first)
    replies = [msgspec.structs.replace(reply, turn=1) for reply in first if reply.is_assistant]
    replies += [
        _called(2, "call_recall", RECALL_TOOL_NAME, id=whole),
        _said(2, "There it is, whole: compaction loses nothing."),
    ]
    config = SessionConfig(
        model="recorded",
        tools=(Tool(name="run"),),
        window_tokens=STORY_WINDOW_TOKENS,
        max_tokens=4_000,
        compaction=CompactionConfig(keep_recent_steps=3),
    )
    provider = ReplayProvider(replies, exhausted="fail")
    async with SessionManager(provider=provider) as manager:
        session = await manager.create(config)
        await _print_filling(console, session, first[0].text, results)
        question = "Show me that large output again."
        console.print(f"[dim]user:[/] {question}")
        answered = await (await session.send(question)).outcome()
        shown = answered.messages[-2].tool_results[0].text
        console.print(
            f"recall({whole}): {len(results[whole]):,} characters, returned whole:"
            f" [bold]{results[whole] in shown}[/]"
        )


async def _print_filling(
    console: Console, session: LLMSession, said: str, results: Mapping[str, str]
) -> None:
    """Send *said*, answer the calls, and show the context after each step and each swap."""
    events = session.subscribe()
    await session.send(said)
    last = math.inf
    async for event in events:
        if isinstance(event, ToolUse):
            await session.submit_tool_results([ToolResult(event.id, results[event.id])])
        elif isinstance(event, StepCompleted):
            _print_bar(console, session, f"step {event.step:2}")
        elif isinstance(event, CompactionApplied):
            console.print(
                f"        [bold]swapped {event.results_summarised} old results for their"
                f" summaries: {event.tokens_before:,} → {event.tokens_after:,} tokens[/]"
            )
        elif isinstance(event, TurnFailed):
            raise InvalidInput(f"the recorded turn cannot be told: {event.error}")
        elif isinstance(event, TurnCommitted):
            # The last step may have made a swap due; a job that finds nothing tells nobody.
            while session.status().jobs:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            last = session.status().seq
        if getattr(event, "seq", 0) >= last:
            break
    _print_bar(console, session, "  done ")
    console.print("[dim]A swap counts the texts alone, the bar also the JSON around them.[/]")


def _print_bar(console: Console, session: LLMSession, label: str) -> None:
    status = session.status()
    width = max(1, min(BAR, console.width - BESIDE_BAR))
    filled = min(width, round(width * status.utilisation))
    colour = "red" if status.utilisation > (session.config.compaction.threshold or 1) else "green"
    console.print(
        f"{label} [{colour}]{'█' * filled}[/]{'░' * (width - filled)}"
        f" {status.context_tokens:6,} of {status.budget_tokens:,} tokens"
    )

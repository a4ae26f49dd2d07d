"""Parts 1 to 4 of the story: a reply, an interrupt, a receipt, a context that fills."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import anyio
from rich.console import Console
from rich.text import Text

from llmsession.errors import InvalidInput
from llmsession.session.handles.reply_text import ReplyText
from llmsession.session.values.config import CompactionConfig, SessionConfig, Tool, ToolResult
from llmsession.transport.interface import ManagerInterface, SessionInterface, TurnInterface
from llmsession.turns.messages import Message
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import CompactionApplied, StepCompleted, TurnCommitted, TurnFailed

from .recordings import RECORDED, SCRIPTED, largest_recallable, results_of

__all__ = ["show_compaction", "show_interrupt"]

BAR = 40
"""Width of the context bar in characters, where the terminal has room for it."""
BESIDE_BAR = 37
"""What stands left and right of the bar."""
EVERY = 2
"""Of so many steps one is shown, and the first after each swap."""
STORY_WINDOW_TOKENS = 48_000
"""Small on purpose, so that the bar fills before the reader's patience ends."""


async def show_interrupt(console: Console, sessions: ManagerInterface) -> None:
    """A reply streams; an interrupt in the middle of a tool; the same send again."""
    config = SessionConfig(model=SCRIPTED, tools=(Tool(name="deploy"),))
    session = await sessions.create(config, session_id="story")
    console.print("\n[bold]1. A reply streams[/]\n[dim]user:[/] Hello?")
    await _print_stream(console, session, await session.send("Hello?"))

    console.print("\n[bold]2. An interrupt in the middle of a tool[/]")
    console.print("[dim]user:[/] Deploy to staging.")
    base = await session.read_conversation()
    turn = await session.send("Deploy to staging.")
    async for event in turn:
        if isinstance(event, ToolUse):
            break
    console.print("[dim]tool:[/] deploy is running ... [bold red]interrupt![/]")
    began = anyio.current_time()
    outcome = await session.interrupt()
    took_ms = (anyio.current_time() - began) * 1000
    console.print(f"answered {outcome.result.value} after {took_ms:.1f} ms")
    same = await session.read_conversation() == base
    console.print(f"the history is as it was: [bold]{same}[/]")
    calls = ", ".join(f"{call.name} {call.status}" for call in outcome.dropped[0].calls)
    console.print(f"dropped: turn {turn.id.number}; tools that had started: {calls}")

    console.print("\n[bold]3. The same send again[/]\n[dim]user:[/] Deploy to staging.")
    again = await session.send("Deploy to staging.")
    await _print_stream(console, session, again)
    first = (await again.outcome()).messages[0]
    console.print("the message that the model got carries the receipt:")
    console.print(Text(_receipt(first), style="yellow"))


def _receipt(message: Message) -> str:
    """The block that the session wrote into the user's message itself."""
    return "".join(str(getattr(message.content[at], "text", "")) for at in message.synthetic)


async def _print_stream(console: Console, session: SessionInterface, turn: TurnInterface) -> None:
    console.print("[dim]assistant:[/] ", end="")
    text = ReplyText()
    async for event in turn:
        for piece in text.read(event):
            console.print(piece, end="", markup=False)
        if isinstance(event, ToolUse):
            console.print(f"[dim](calls {event.name})[/] ", end="")
            await session.submit_tool_results([ToolResult(event.id, "deployed to staging")])
    console.print()


async def show_compaction(
    console: Console, sessions: ManagerInterface, turn: Sequence[Message]
) -> None:
    """The context fills, results are swapped, one is recalled whole."""
    console.print("\n[bold]4. The context fills, and old tool results are swapped[/]")
    results, whole = results_of(turn), largest_recallable(turn)
    config = SessionConfig(
        model=RECORDED,
        tools=(Tool(name="run"),),
        window_tokens=STORY_WINDOW_TOKENS,
        max_tokens=4_000,
        compaction=CompactionConfig(keep_recent_steps=3),
    )
    session = await sessions.create(config, session_id="recorded")
    await _print_filling(console, session, turn[0].text, results)
    question = "Show me that large output again."
    console.print(f"[dim]user:[/] {question}")
    answered = await (await session.send(question)).outcome()
    shown = answered.messages[-2].tool_results[0].text
    console.print(
        f"recall({whole}): {len(results[whole]):,} characters, returned whole:"
        f" [bold]{results[whole] in shown}[/]"
    )


async def _print_filling(
    console: Console, session: SessionInterface, said: str, results: Mapping[str, str]
) -> None:
    """Send *said*, answer the calls, and show the context after each step and each swap."""
    events = session.subscribe(after=0)
    await session.send(said)
    last, swapped = math.inf, False
    async for event in events:
        if isinstance(event, ToolUse):
            await session.submit_tool_results([ToolResult(event.id, results[event.id])])
        elif isinstance(event, StepCompleted):
            if event.step % EVERY == 1 or swapped:
                await _print_bar(console, session, f"step {event.step:2}")
            swapped = False
        elif isinstance(event, CompactionApplied):
            swapped = True
            console.print(
                f"        [bold]swapped {event.results_summarised} old results for their"
                f" summaries: {event.tokens_before:,} → {event.tokens_after:,} tokens[/]"
            )
        elif isinstance(event, TurnFailed):
            raise InvalidInput(f"the recorded turn cannot be told: {event.error}")
        elif isinstance(event, TurnCommitted):
            # The last step may have made a swap due; a job that finds nothing tells nobody.
            while (status := await session.read_status()).jobs:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            last = status.seq
        if getattr(event, "seq", 0) >= last:
            break
    events.close()
    await _print_bar(console, session, "  done ")
    console.print("[dim]A swap counts the texts alone, the bar also the JSON around them.[/]")


async def _print_bar(console: Console, session: SessionInterface, label: str) -> None:
    status = await session.read_status()
    width = max(1, min(BAR, console.width - BESIDE_BAR))
    filled = min(width, round(width * status.utilisation))
    colour = "red" if status.utilisation > 0.8 else "green"
    console.print(
        f"{label} [{colour}]{'█' * filled}[/]{'░' * (width - filled)}"
        f" {status.context_tokens:6,} of {status.budget_tokens:,} tokens"
    )

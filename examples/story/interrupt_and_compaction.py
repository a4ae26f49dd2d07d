"""Parts 1 to 4: a reply, an interrupt, the receipt of an interrupted tool, a context that fills."""

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
"""Width of the context bar in characters, if the terminal is wide enough."""
BESIDE_BAR = 37
"""Characters that are printed to the left and right of the bar."""
EVERY = 2
"""Every second step is printed, and the first one after each compaction."""
STORY_WINDOW_TOKENS = 48_000
"""A small window, so that the bar fills within seconds."""


async def show_interrupt(console: Console, sessions: ManagerInterface) -> None:
    """Stream a reply, interrupt a turn while its tool runs, and send the same message again."""
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
    console.print(f"the interrupt returned after {took_ms:.1f} ms: {outcome.result.value}")
    same = await session.read_conversation() == base
    console.print(f"the history is unchanged: [bold]{same}[/]")
    calls = ", ".join(f"{call.name} ({call.status})" for call in outcome.dropped[0].calls)
    console.print(f"turn {turn.id.number} was dropped; tools that had started: {calls}")

    console.print("\n[bold]3. The same send again[/]\n[dim]user:[/] Deploy to staging.")
    again = await session.send("Deploy to staging.")
    await _print_stream(console, session, again)
    first = (await again.outcome()).messages[0]
    console.print("the message to the model now says what had started (the receipt):")
    console.print(Text(_receipt(first), style="yellow"))


def _receipt(message: Message) -> str:
    """The block that the session has added to the user's message."""
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
    """Let the context fill, so that results are replaced by summaries, and recall one of them."""
    console.print("\n[bold]4. The context fills, and summaries replace old tool results[/]")
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
        f"recall({whole}): all {len(results[whole]):,} characters returned:"
        f" [bold]{results[whole] in shown}[/]"
    )


async def _print_filling(
    console: Console, session: SessionInterface, said: str, results: Mapping[str, str]
) -> None:
    """Send *said*, answer the tool calls, and print the context while it fills."""
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
                f"        [bold]replaced {event.results_summarised} old results by summaries:"
                f" {event.tokens_before:,} → {event.tokens_after:,} tokens[/]"
            )
        elif isinstance(event, TurnFailed):
            raise InvalidInput(f"the recorded turn cannot be replayed: {event.error}")
        elif isinstance(event, TurnCommitted):
            # The last step may have started a compaction. One that changes nothing has no event, so
            # the only way to learn that it has ended is to poll the status.
            while (status := await session.read_status()).jobs:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            last = status.seq
        if getattr(event, "seq", 0) >= last:
            break
    events.close()
    await _print_bar(console, session, "  done ")
    console.print("[dim]Replacements count only the texts; the bar also counts the JSON.[/]")


async def _print_bar(console: Console, session: SessionInterface, label: str) -> None:
    status = await session.read_status()
    width = max(1, min(BAR, console.width - BESIDE_BAR))
    filled = min(width, round(width * status.utilisation))
    colour = "red" if status.utilisation > 0.8 else "green"
    console.print(
        f"{label} [{colour}]{'█' * filled}[/]{'░' * (width - filled)}"
        f" {status.context_tokens:6,} of {status.budget_tokens:,} tokens"
    )

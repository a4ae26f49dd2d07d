"""What ``llmsession chat`` prints of a turn and of a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from llmsession.session.handles.reply_text import ReplyText
from llmsession.session.values.outcome import SessionStatus, SessionUsage, TurnOutcome
from llmsession.turns import records as r
from llmsession.turns.blocks import ThinkingBlock
from llmsession.turns.messages import Message
from llmsession.turns.previews import StepRestarted, ThinkingDelta, ToolUse
from llmsession.turns.spending.prices import dollars
from llmsession.turns.usage import Usage

from ..common.formatting import bar, cost_line
from ..common.terminal import neutral

__all__ = [
    "TurnView",
    "context_line",
    "print_conversation",
    "print_markdown",
    "split_paragraphs",
    "usage_lines",
]

BRIEF = 100
"""How many characters of a call's input and of a result are printed."""


class TurnView:
    """Prints the events of one turn as they arrive.

    Unless *thinking* is true, thinking is replaced by a line with its length. On a terminal text is
    rendered as Markdown, one paragraph at a time. Within ``live`` the incomplete paragraph is shown
    below, together with what the turn is waiting for. Elsewhere text is printed as it arrives.
    """

    def __init__(self, console: Console, *, thinking: bool) -> None:
        self._console = console
        self._unfolded = thinking
        self._thought = 0
        self._open = False  # whether the current output line is unfinished
        self._text = ReplyText()
        self._paragraph = ""
        self._attempt = (1, 1)
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """While the context is open, show on a terminal what the turn is waiting for."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, transient=True, get_renderable=self.waiting) as live:
            self._live = live
            try:
                yield
            finally:
                self.close()
                self._live = None

    def waiting(self) -> RenderableType:
        """The last lines of the incomplete paragraph, and what the turn is waiting for."""
        step, attempt = self._attempt
        label = f"step {step}" + (f", attempt {attempt}" if attempt > 1 else "")
        if self._thought and not self._unfolded:
            label += f", thought for {self._thought:,} characters"
        self._spinner.update(text=f"[dim]{label}[/]")
        if not self._paragraph:
            return self._spinner
        room = max(1, self._console.height - 3)
        lines = Text(neutral(self._paragraph)).wrap(self._console, self._console.width)
        return Group(Text("\n").join(lines[-room:]), self._spinner)

    @cached_property
    def _spinner(self) -> Spinner:
        return Spinner("dots")

    def show(self, event: Any) -> None:
        """Print what *event* adds. Most events add nothing."""
        attempt = getattr(event, "attempt", None)
        if attempt is not None:
            self._attempt = (event.step, attempt)
        for piece in self._text.read(event):
            self._close_thinking()
            if isinstance(piece, StepRestarted):
                self._paragraph = ""
                self._line("[dim]the step was restarted; ignore its text above[/]")
            else:
                self._write(piece)
        match event:
            case ThinkingDelta(text=text):
                self._think(text)
            case ToolUse():
                self._line(f"[cyan]→ {escape(event.name)}[/] {_brief_json(event.input)}")
            case r.ToolsAnswered():
                self._attempt = (event.step + 1, 1)
                for answer in event.answers:
                    mark = "[red]✗[/]" if answer.is_error else "[green]←[/]"
                    self._line(f"{mark} {_brief_result(answer.content)}")
            case r.CompactionApplied(trigger="injection"):
                self._line(f"[dim]injected: {escape(event.reason)}[/]")
            case r.CompactionApplied():
                freed = event.tokens_before - event.tokens_after
                self._line(f"[dim]compacted: {freed:,} tokens freed ({escape(event.reason)})[/]")
            case r.ContextWarned():
                share = event.tokens * 100 // event.budget_tokens
                self._line(f"[yellow]the context is {share} % full[/]")
                if event.suggests_new_session:
                    self._line("[yellow]the policy suggests to continue in a new session[/]")
            case r.StepCompleted() | r.TurnCommitted():
                self.close()

    def _think(self, text: str) -> None:
        self._thought += len(text)
        if self._unfolded:
            self._raw(text, style="dim italic")

    def _close_thinking(self) -> None:
        if self._thought:
            if not self._unfolded:
                self._line(f"[dim italic]thought for {self._thought:,} characters[/]")
            else:
                self.close()
            self._thought = 0

    def _write(self, text: str) -> None:
        if self._live is None:
            self._raw(text)
            return
        whole, self._paragraph = split_paragraphs(self._paragraph + text)
        if whole.strip():
            print_markdown(self._console, whole)

    def _raw(self, text: str, style: str | None = None) -> None:
        # Written directly, because text has to be printed exactly as it was generated.
        self._console.print(
            text, end="", style=style, markup=False, highlight=False, soft_wrap=True
        )
        if text:
            self._open = not text.endswith("\n")

    def _line(self, markup: str) -> None:
        self.close()
        self._console.print(markup, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """End an unfinished line or paragraph."""
        paragraph, self._paragraph = self._paragraph, ""
        if paragraph.strip():
            print_markdown(self._console, paragraph)
        if self._open:
            self._console.print()
            self._open = False

    def end(self, outcome: TurnOutcome) -> None:
        """Print how the turn ended, unless it ended normally."""
        self._close_thinking()
        self.close()
        if outcome.status == "aborted":
            self._line("[yellow]interrupted; nothing of this turn is kept[/]")
            ran = [f"{call.name} ({call.status})" for call in outcome.calls]
            if ran:
                self._line(f"[yellow]tools had started: {escape(', '.join(ran))}[/]")
        elif outcome.status == "failed":
            self._line(
                f"[red]failed ({escape(outcome.stop_reason)}): {escape(outcome.error or '')}[/]"
            )
        elif outcome.stop_reason not in ("end_turn", "stop_sequence"):
            self._line(f"[yellow]stopped: {escape(outcome.stop_reason)}[/]")
        if outcome.still_running:
            self._line(f"[yellow]still running: {escape(', '.join(outcome.still_running))}[/]")


def split_paragraphs(text: str) -> tuple[str, str]:
    """*text* up to its last blank line outside a code block, and the rest. Only the first part may
    be rendered: text that is still to come cannot change it."""
    end, position, fence = 0, 0, ""
    for line in text.splitlines(keepends=True):
        position += len(line)
        mark = line.strip()[:3]
        if fence:
            fence = "" if mark == fence else fence
        elif mark in ("```", "~~~"):
            fence = mark
        elif not line.strip() and line.endswith("\n"):
            end = position
    return text[:end], text[end:]


def print_markdown(console: Console, text: str) -> None:
    """Print *text* as Markdown, wrapped at words. A link is printed with its URL, so that a reader
    sees where it leads."""
    console.print(Markdown(neutral(text), hyperlinks=False))


def _brief_json(value: Any) -> str:
    return _brief(msgspec.json.encode(value).decode())


def _brief_result(content: msgspec.Raw) -> str:
    value = msgspec.json.decode(content)
    if isinstance(value, list):
        value = "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in value)
    lines = str(value).splitlines() or [""]
    more = f" [dim](+{len(lines) - 1:,} lines)[/]" if len(lines) > 1 else ""
    return _brief(lines[0]) + more


def _brief(text: str) -> str:
    return escape(text if len(text) <= BRIEF else f"{text[: BRIEF - 3]}...")


def context_line(status: SessionStatus) -> str:
    """One line that says how full the context is."""
    return (
        f"context {bar(status.utilisation)} {status.utilisation:.0%} of"
        f" {status.budget_tokens:,} tokens · {status.turns} turns"
        + (" · compacting" if status.jobs else "")
    )


def usage_lines(usage: SessionUsage) -> list[str]:
    """The tokens used in total and by the last turns, and their cost."""
    recent_turns = sorted(usage.turns.items())[-5:]
    lines = [f"total    {_usage(usage.total)}"]
    lines += [
        f"turn {number:<4}{_usage(spent)}{_cost(usage.turn_costs_nano_usd.get(number))}"
        for number, spent in recent_turns
    ]
    return [*lines, escape(cost_line(usage))] if usage.models else lines


def _cost(nano_usd: int | None) -> str:
    return "" if nano_usd is None else f" {dollars(nano_usd):>10}"


def _usage(usage: Usage) -> str:
    return (
        f"{usage.prompt_tokens:>9,} in ({usage.cache_read_tokens:,} read from the cache,"
        f" {usage.cache_write_tokens:,} written to it) {usage.output_tokens:>8,} out"
    )


def print_conversation(console: Console, messages: tuple[Message, ...], *, thinking: bool) -> None:
    """Print the earlier messages briefly, for a session that is opened again."""
    for message in messages:
        if message.is_user and message.text:
            console.print(f"[bold]> {escape(message.text)}[/]", highlight=False)
        if message.is_assistant:
            for block in message.content:
                if thinking and isinstance(block, ThinkingBlock):
                    console.print(block.thinking, style="dim italic", markup=False)
            for call in message.tool_calls:
                console.print(f"[cyan]→ {escape(call.name)}[/] {_brief_json(call.input)}")
            if message.text and console.is_terminal:
                print_markdown(console, message.text)
            elif message.text:
                console.print(message.text, markup=False, highlight=False, soft_wrap=True)

"""The commands of ``llmsession chat``: lines that begin with a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape

from llmsession.errors import SessionError
from llmsession.transport.interface import SessionInterface

from .view import context_line, usage_lines

__all__ = ["COMMANDS", "Talk", "obey"]


class Talk:
    """The current session and how it is shown. After ``/fork`` the fork is the current session."""

    def __init__(self, session: SessionInterface, console: Console) -> None:
        self.session = session
        self.console = console
        self.thinking = False
        self.over = False
        self.failed = False
        """Whether a prompt was not answered."""
        self.draft = ""
        """The text that the next input line is filled with."""
        self.rewound: Callable[[int], None] = lambda turns: None
        """Called with the number of turns that are left after a rewind or a clear."""

    def say(self, markup: str) -> None:
        """Print one line for the user."""
        self.console.print(markup, highlight=False, soft_wrap=True)


Command: TypeAlias = Callable[[Talk, str], Awaitable[None]]


async def _context(talk: Talk, _: str) -> None:
    status = await talk.session.read_status()
    request = await talk.session.read_context()
    talk.say(context_line(status))
    talk.say(
        f"the request holds {len(request.messages)} of {status.messages} messages,"
        f" {status.context_tokens:,} tokens; tool results in the first"
        f" {status.compacted_before} messages are compacted"
    )


async def _usage(talk: Talk, _: str) -> None:
    for line in usage_lines(await talk.session.read_usage()):
        talk.say(line)


async def _compact(talk: Talk, _: str) -> None:
    done = await talk.session.compact()
    if done.applied:
        talk.say(f"compacted {done.tokens_before:,} tokens to {done.tokens_after:,}")
    else:
        talk.say(f"nothing was compacted: {escape(done.reason)}")


async def _clear(talk: Talk, _: str) -> None:
    await talk.session.clear()
    talk.rewound(0)
    talk.say("the conversation is empty; the log keeps the earlier messages")


async def _fork(talk: Talk, turn: str) -> None:
    before = talk.session.id
    talk.session = await talk.session.fork(turn or None)
    talk.rewound((await talk.session.read_status()).turns)
    talk.say(f"now in the fork {escape(talk.session.id)}; {escape(before)} is unchanged")


async def _rewind(talk: Talk, to: str) -> None:
    messages = await talk.session.read_conversation()
    turns = list(dict.fromkeys(message.turn for message in messages))
    if not to and not turns:
        talk.say("there is no turn to take back")
        return
    # Without an argument the last turn is taken back, and its prompt is offered again.
    target: int | str = to or (turns[-2] if len(turns) > 1 else 0)
    await talk.session.rewind(target)
    remaining = await talk.session.read_conversation()
    gone = [message for message in messages[len(remaining) :] if message.is_user and message.text]
    talk.draft = gone[0].text if gone else ""
    status = await talk.session.read_status()
    talk.rewound(status.turns)
    talk.say(f"back to {status.head or 'the beginning'}; the log keeps the later turns")


async def _model(talk: Talk, name: str) -> None:
    if name:
        await talk.session.configure(model=name)
    talk.say(f"model {escape((await talk.session.read_context()).model)}")


async def _thinking(talk: Talk, _: str) -> None:
    talk.thinking = not talk.thinking
    talk.say("thinking is shown" if talk.thinking else "thinking is hidden")


async def _quit(talk: Talk, _: str) -> None:
    talk.over = True


async def _help(talk: Talk, _: str) -> None:
    for name, (_command, description) in COMMANDS.items():
        talk.say(f"[bold]/{name:<9}[/] {description}")
    talk.say("Esc or Ctrl-C stops a reply; your prompt is then offered again.")


COMMANDS: dict[str, tuple[Command, str]] = {
    "context": (_context, "show how full the context is"),
    "usage": (_usage, "show the tokens used"),
    "compact": (_compact, "replace old tool results by summaries now"),
    "clear": (_clear, "start an empty conversation"),
    "fork": (_fork, "continue in a copy: /fork, or /fork a3 for a copy up to turn a3"),
    "rewind": (_rewind, "take the last turn back, or all turns after one: /rewind a3"),
    "model": (_model, "show the model, or change it: /model NAME"),
    "thinking": (_thinking, "show or hide the model's thinking"),
    "help": (_help, "list the commands"),
    "quit": (_quit, "leave; so does Ctrl-D"),
}


async def obey(talk: Talk, line: str) -> None:
    """Run the command in *line*. If it is refused, print the reason and continue."""
    name, _, rest = line[1:].strip().partition(" ")
    if name not in COMMANDS:
        talk.say(f"[yellow]unknown command /{escape(name)}; /help lists the commands[/]")
        return
    command, _told = COMMANDS[name]
    try:
        await command(talk, rest.strip())
    except SessionError as error:
        talk.say(f"[yellow]{escape(str(error))}[/]")

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
    """The session that is talked to, and how it is shown. A fork becomes the session."""

    def __init__(self, session: SessionInterface, console: Console) -> None:
        self.session = session
        self.console = console
        self.thinking = False
        self.over = False
        self.failed = False
        """Was a prompt not answered?"""
        self.draft = ""
        """What the next input line begins with."""
        self.rewound: Callable[[int], None] = lambda turns: None
        """Told how many turns are left after a rewind or a clear."""

    def say(self, markup: str) -> None:
        """One line to the user."""
        self.console.print(markup, highlight=False, soft_wrap=True)


Command: TypeAlias = Callable[[Talk, str], Awaitable[None]]


async def _context(talk: Talk, _: str) -> None:
    status = await talk.session.read_status()
    request = await talk.session.read_context()
    talk.say(context_line(status))
    talk.say(
        f"the model is sent {len(request.messages)} of {status.messages} messages,"
        f" {status.context_tokens:,} tokens; results of the first"
        f" {status.compacted_before} are compact"
    )


async def _usage(talk: Talk, _: str) -> None:
    for line in usage_lines(await talk.session.read_usage()):
        talk.say(line)


async def _compact(talk: Talk, _: str) -> None:
    done = await talk.session.compact()
    if done.applied:
        talk.say(f"{done.tokens_before:,} tokens became {done.tokens_after:,}")
    else:
        talk.say(f"nothing was compacted: {escape(done.reason)}")


async def _clear(talk: Talk, _: str) -> None:
    await talk.session.clear()
    talk.rewound(0)
    talk.say("the conversation is empty; the log keeps what was said")


async def _fork(talk: Talk, turn: str) -> None:
    before = talk.session.id
    talk.session = await talk.session.fork(turn or None)
    talk.rewound((await talk.session.read_status()).turns)
    talk.say(f"this is a fork now: {escape(talk.session.id)}; {escape(before)} stays as it was")


async def _rewind(talk: Talk, to: str) -> None:
    messages = await talk.session.read_conversation()
    turns = list(dict.fromkeys(message.turn for message in messages))
    if not to and not turns:
        talk.say("there is nothing to take back")
        return
    # Without a turn: the last one is taken back, and its line can be said again.
    target: int | str = to or (turns[-2] if len(turns) > 1 else 0)
    await talk.session.rewind(target)
    remaining = await talk.session.read_conversation()
    gone = [message for message in messages[len(remaining) :] if message.is_user and message.text]
    talk.draft = gone[0].text if gone else ""
    status = await talk.session.read_status()
    talk.rewound(status.turns)
    talk.say(f"back to {status.head or 'the beginning'}; the log keeps what came after")


async def _model(talk: Talk, name: str) -> None:
    if name:
        await talk.session.configure(model=name)
    talk.say(f"model {escape((await talk.session.read_context()).model)}")


async def _thinking(talk: Talk, _: str) -> None:
    talk.thinking = not talk.thinking
    talk.say("thinking is shown" if talk.thinking else "thinking is folded")


async def _quit(talk: Talk, _: str) -> None:
    talk.over = True


async def _help(talk: Talk, _: str) -> None:
    for name, (_command, description) in COMMANDS.items():
        talk.say(f"[bold]/{name:<9}[/] {description}")
    talk.say("Esc or Ctrl-C stops a reply; what you said is in the line again.")


COMMANDS: dict[str, tuple[Command, str]] = {
    "context": (_context, "how full the context is, and what the model is sent"),
    "usage": (_usage, "tokens spent"),
    "compact": (_compact, "swap old tool results for summaries now"),
    "clear": (_clear, "begin anew"),
    "fork": (_fork, "go on in a copy: /fork, or /fork a3 as of that turn"),
    "rewind": (_rewind, "take the last turn back, or go back to one: /rewind a3"),
    "model": (_model, "which model, or another one: /model NAME"),
    "thinking": (_thinking, "show or fold the model's thinking"),
    "help": (_help, "this list"),
    "quit": (_quit, "leave; so does Ctrl-D"),
}


async def obey(talk: Talk, line: str) -> None:
    """Perform the command in *line*. What it refuses is said, and the talk goes on."""
    name, _, rest = line[1:].strip().partition(" ")
    if name not in COMMANDS:
        talk.say(f"[yellow]no command /{escape(name)}; /help names them[/]")
        return
    command, _told = COMMANDS[name]
    try:
        await command(talk, rest.strip())
    except SessionError as error:
        talk.say(f"[yellow]{escape(str(error))}[/]")

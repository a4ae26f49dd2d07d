"""Every command, argument and option of ``llmsession``, as the command line itself has them."""

from __future__ import annotations

from enum import Enum
from typing import Any

from typer.main import get_command

from docs.tables.markdown import table, text
from llmsession.cli.app import app
from llmsession.cli.chat.commands import COMMANDS as CHAT_COMMANDS
from llmsession.cli.common import exit_codes

__all__ = ["chat_lines", "commands", "overview", "sections"]


def commands() -> dict[str, Any]:
    """The commands by name, in the order of the help; a command's own commands by both names."""
    group: Any = get_command(app)
    found = dict[str, Any]()
    for name, command in dict(group.commands).items():
        below = getattr(command, "commands", None)
        found |= {name: command} if below is None else {f"{name} {n}": c for n, c in below.items()}
    return found


def overview() -> str:
    rows = (
        (f"[`llmsession {name}`](#llmsession-{name.replace(' ', '-')})", _summary(command))
        for name, command in commands().items()
    )
    return table(("command", "what it does"), rows)


def _summary(command: Any) -> str:
    return text(command.help.partition("\n\n")[0])


def sections() -> str:
    """A section for each command: its help, its arguments and its options."""
    return "\n".join(_section(name, command) for name, command in commands().items())


def _section(name: str, command: Any) -> str:
    words = "\n\n".join(text(paragraph) for paragraph in command.help.split("\n\n"))
    rows = [
        (_usage(parameter), text(parameter.help or ""), _default(parameter))
        for parameter in command.params
        if not parameter.hidden
    ]
    arguments = table(("argument or option", "meaning", "default"), rows) if rows else ""
    return f"### llmsession {name}\n\n{words}\n\n{arguments}"


def _usage(parameter: Any) -> str:
    """A parameter as it is typed, with the value that it takes."""
    names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("-")]
    if not names:
        return f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`"
    value = "" if parameter.is_flag else f" {parameter.metavar or _choices(parameter)}"
    repeated = " ..." if parameter.multiple else ""
    return f"`{', '.join(names)}{value}`{repeated}"


def _choices(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return str(parameter.name).upper()


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value in (None, False, (), []) or callable(value):
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def chat_lines() -> str:
    """The lines that ``llmsession chat`` obeys."""
    rows = ((f"`/{name}`", words) for name, (_, words) in CHAT_COMMANDS.items())
    return table(("line", "what it does"), rows)


def codes() -> str:
    """What a command may exit with."""
    meanings = {
        0: "done",
        exit_codes.FAILED: "an invariant is violated, a store is damaged, or a turn failed",
        exit_codes.USAGE: "wrong usage or input; one line on stderr says what",
        exit_codes.INTERRUPTED: "Ctrl-C",
        exit_codes.HUNG_UP: "the reader of the output went away",
    }
    return table(("exit code", "meaning"), ((f"`{c}`", words) for c, words in meanings.items()))

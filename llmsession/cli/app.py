"""The command line: lists the commands, and turns an error into one line and an exit code.

Only the module of the command that runs is imported, together with what it needs. ``llmsession
--help`` imports all of them, because it prints their descriptions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from llmsession import __version__
from llmsession.errors import SessionError

from .common.exit_codes import HUNG_UP, INTERRUPTED, USAGE
from .common.options import message_of
from .common.terminal import complain, say

__all__ = ["main", "run"]

_PLACES = {
    "serve": ("commands.serve", "serve"),
    "chat": ("chat.chat", "chat"),
    "replay": ("commands.replay", "replay"),
    "calibrate": ("commands.calibrate", "calibrate"),
    "lab": ("commands.lab", "lab"),
    "stress": ("commands.stress", "stress"),
    "check": ("commands.check", "check_record"),
    "top": ("commands.top", "top"),
    "cluster": ("cluster.cluster", "commands"),
    "list": ("commands.sessions", "list_sessions"),
    "search": ("commands.sessions", "search"),
    "show": ("commands.sessions", "show"),
    "label": ("commands.sessions", "label"),
    "delete": ("commands.sessions", "delete"),
    "import": ("commands.transfer", "import_files"),
    "export": ("commands.transfer", "export_sessions"),
    "integrity": ("commands.upkeep", "integrity"),
    "vacuum": ("commands.upkeep", "vacuum"),
    "vocabulary": ("commands.vocabulary", "vocabulary"),
    "schema": ("commands.serve", "schema"),
}
"""The module of each command, and its function or its own commands, in the order of the help."""


class _Commands(Mapping[str, Any]):
    """The commands by name. A command's module is imported when the command is looked up."""

    def __getitem__(self, name: str) -> Any:
        place, function = _PLACES[name]
        found = getattr(import_module(f".{place}", __package__), function)
        if isinstance(found, typer.Typer):  # it has commands of its own
            return get_command(found)
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        return get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class _Group(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Commands()})


app = typer.Typer(
    name="llmsession",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"llmsession {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run conversations with language models, one actor per session."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``llmsession`` command and exit: see ``run``."""
    run(app, "llmsession", arguments)


def run(commands: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> None:
    """Run *commands* as the program *name*, with *arguments* or those of the process, and exit.

    A user's mistake (a SessionError, an OSError or an invalid option) is printed as one line on
    stderr, and the exit code is 2.
    """
    command = get_command(commands)
    options = list(arguments) if arguments is not None else None
    try:
        code = command(args=options, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        # Python flushes stdout once more when it exits, and would fail on the same closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(HUNG_UP)
    except TyperException as error:
        message = str(getattr(error, "format_message", error.__str__)())
        # Without a command, the help was printed already and the error has no message.
        if message.strip():
            complain(f"{name}: {' '.join(message.split())}")
        sys.exit(USAGE)
    except (SessionError, OSError) as error:
        complain(f"{name}: {message_of(error)}")
        sys.exit(USAGE)
    except SystemExit as leaving:
        # Typer and rich both exit with 1 on a closed pipe. In this program 1 means that an
        # invariant is violated, so it has to be replaced.
        if isinstance(leaving.__context__, BrokenPipeError):
            sys.exit(HUNG_UP)
        raise
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        sys.exit(INTERRUPTED)

"""The command line: registers the commands, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from llmsession import __version__
from llmsession.errors import SessionError

from .chat.chat import chat
from .commands.calibrate import calibrate
from .commands.check import check_record
from .commands.lab import lab
from .commands.replay import replay
from .commands.serve import schema, serve
from .commands.sessions import delete, label, list_sessions, search, show
from .commands.stress import stress
from .commands.top import top
from .commands.transfer import export_sessions, import_files
from .commands.upkeep import integrity, vacuum
from .commands.vocabulary import vocabulary
from .common.exit_codes import HUNG_UP, INTERRUPTED, USAGE
from .common.terminal import complain, say

__all__ = ["main", "run"]

app = typer.Typer(
    name="llmsession",
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
    """Conversations with language models, one actor each."""


app.command()(serve)
app.command()(chat)
app.command()(replay)
app.command()(calibrate)
app.command()(lab)
app.command()(stress)
app.command("check")(check_record)
app.command()(top)
app.command("list")(list_sessions)
app.command()(search)
app.command()(show)
app.command()(label)
app.command()(delete)
app.command("import")(import_files)
app.command("export")(export_sessions)
app.command()(integrity)
app.command()(vacuum)
app.command()(vocabulary)
app.command()(schema)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``llmsession`` command and exit: see ``run``."""
    run(app, "llmsession", arguments)


def run(commands: typer.Typer, name: str, arguments: Sequence[str] | None = None) -> None:
    """Run *commands* as the program *name* and exit. *arguments* are those of the process unless
    they are given. A user's mistake is one line on stderr and exit code 2."""
    command = get_command(commands)
    options = list(arguments) if arguments is not None else None
    try:
        code = command(args=options, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except BrokenPipeError:
        # Python flushes stdout once more when it ends, and would complain about the same pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(HUNG_UP)
    except TyperException as error:
        message = str(getattr(error, "format_message", error.__str__)())
        # A bare command has printed its help already, and its error has no message.
        if message.strip():
            complain(f"{name}: {' '.join(message.split())}")
        sys.exit(USAGE)
    except (SessionError, OSError) as error:
        complain(f"{name}: {_message(error)}")
        sys.exit(USAGE)
    except SystemExit as leaving:
        # Typer and rich both leave with 1 here, which would say that a promise was broken.
        if isinstance(leaving.__context__, BrokenPipeError):
            sys.exit(HUNG_UP)
        raise
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        sys.exit(INTERRUPTED)


def _message(error: Exception) -> str:
    message = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
        message = reason if error.filename is None else f"{error.filename}: {reason}"
    return " ".join(message.split()) or type(error).__name__

"""The command line's frame: its commands, and what becomes of errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from llmsession.errors import SessionError

from .replay import replay
from .story import story
from .stress import stress

__all__ = ["BROKEN_PROMISE", "USAGE", "main"]

BROKEN_PROMISE = 1
USAGE = 2

app = typer.Typer(
    name="llmsession",
    help="Conversations with language models, one actor each.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(replay)
app.command()(stress)
app.command()(story)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. A user's mistake is one line on stderr and exit code 2."""
    command = get_command(app)
    try:
        command(args=list(arguments) if arguments is not None else None, prog_name="llmsession")
    except (SessionError, OSError) as error:
        told = " ".join(str(error).split()) or type(error).__name__
        print(f"llmsession: {told}", file=sys.stderr)
        sys.exit(USAGE)
    except KeyboardInterrupt:
        sys.exit(130)

"""The ``llmsession`` command.

In: arguments and files. Out: text, or JSON with ``--json``, and an exit code: 0 for success, 1 for
a violated invariant, 2 for bad usage or bad input. Absent: logic that a user of the library would
want.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. If a package of the extra ``cli`` is missing, print one line
    that says how to install it, and exit with 2."""
    try:
        _run(arguments)
    except KeyboardInterrupt:  # Ctrl-C may also arrive during the imports, which take a moment
        sys.exit(130)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        from .app import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "llmsession":
            raise  # a missing module of this package is a bug, not a missing extra
        print(
            f"llmsession: the command needs {error.name}: pip install 'llmsession[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run(arguments)

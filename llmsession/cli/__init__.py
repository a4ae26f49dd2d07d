"""The ``llmsession`` command.

In: arguments and files. Out: text, or JSON with ``--json``, and an exit code: 0 done, 1 a checked
promise was broken, 2 bad usage or bad input. Absent: logic that a user of the library would want.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Without the packages of the extra ``cli`` it says in one
    line how to install them, and exits with 2."""
    try:
        _run(arguments)
    except KeyboardInterrupt:  # also while packages are imported, which takes a moment
        sys.exit(130)


def _run(arguments: Sequence[str] | None) -> None:
    try:
        from .app import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "llmsession":
            raise  # a fault of ours, and no package that is not installed
        print(
            f"llmsession: the command needs {error.name}: pip install 'llmsession[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    run(arguments)

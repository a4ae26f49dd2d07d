"""The ``llmsession`` command.

In: arguments and files. Out: text, or JSON with ``--json``, and an exit code: 0 done, 1 a checked
promise was broken, 2 bad usage or bad input. Absent: logic that a user of the library would want.
"""

from .app import main

__all__ = ["main"]

"""Where replies come from.

In: a Request and the tag of the step that it is for. Out: a stream of events.
Absent: history; a provider sees what it is sent.
"""

from .protocol import Provider
from .replay import ReplayProvider

__all__ = ["Provider", "ReplayProvider"]

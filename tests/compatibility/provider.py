"""The model that answers where a release is recorded and where the recording is played again.

What it says depends on the newest message alone. The recordings of earlier releases ask for the
same words, so a rule here is added and never changed.
"""

from __future__ import annotations

import msgspec

from llmsession.errors import ProviderError
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted, think
from llmsession.turns.request import Request, StepTag
from llmsession.turns.usage import Usage

__all__ = ["answering"]

USAGE = Usage(input_tokens=120, output_tokens=30)


def answering() -> ScriptedProvider:
    """A provider that obeys the first word of the newest message."""
    return ScriptedProvider(_reply, name="scripted")


def _reply(request: Request, tag: StepTag) -> Scripted:
    blocks = msgspec.json.decode(request.messages[-1].body)
    if any(block["type"] == "tool_result" for block in blocks):
        return say("The tool has answered.").costing(USAGE)
    words = blocks[-1].get("text", "").split() or ["nothing"]  # behind a seed and a receipt
    match words[0]:
        case "call":
            use = call(words[1], {"path": "notes.txt"}, id=f"c{tag.turn}_{tag.step}")
            return (say("Let me look.") + use).costing(USAGE)
        case "think":
            return (think("A thought.", "signed") + say("I have thought.")).costing(USAGE)
        case "hang":
            return say("This never ends").hanging(at=3)
        case "again" if tag.attempt == 1:
            broken = ProviderError("the line was cut", kind="retryable", delay_s=0.001)
            return say("This breaks off").raising(broken, at=3)
        case "fail":
            return say("").raising(ProviderError("no such model", kind="fatal", status=404))
    return say(f"You said: {' '.join(words)[:80]}").costing(USAGE)

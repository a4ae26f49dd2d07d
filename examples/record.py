"""Records the example conversations: the tool outputs are real, the model's side is scripted.

Run it at the root of the repository: ``python examples/record.py``. It runs each command below
there. The output of a command becomes a tool result. No model is called: the assistant's texts are
in this file, and the recordings have no usage, no thinking and no signatures. The header of each
recording says so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmsession.transcripts import Conversation, write_own
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, message_id

__all__ = ["Script", "record"]

SOURCE = "scripted model, real tool outputs; no model was asked"
FOLDER = Path(__file__).parent / "recordings"

Step = tuple[str, Sequence[str]]
"""The model's text, and the commands that it calls in parallel."""
Script = Sequence[tuple[str, Sequence[Step], str]]
"""Turns: the user's text, the steps, and the model's final text."""


def run(command: str) -> dict[str, Any]:
    """Run *command*, and return its output as the content of a tool result."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode:
        return {"content": f"{output}exit code {done.returncode}", "is_error": True}
    return {"content": output}


class _Speaker:
    """Creates the messages of one turn. Each role's messages are numbered from 0."""

    def __init__(self, session: str, turn: int) -> None:
        self._session = session
        self._turn = turn
        self._positions: dict[Role, int] = {"user": 0, "assistant": 0}

    def __call__(self, role: Role, content: Any) -> Message:
        speaker = TurnId("u" if role == "user" else "a", self._turn)
        position = self._positions[role]
        self._positions[role] += 1
        return Message(
            id=message_id(self._session, speaker, position),
            session=self._session,
            turn=self._turn,
            role=role,
            body=encode_blocks(content),
        )


def _messages(name: str, script: Script) -> Iterator[Message]:
    calls = 0
    for number, (asked, steps, answer) in enumerate(script, start=1):
        message = _Speaker(name, number)
        yield message("user", asked)
        for says, commands in steps:
            blocks: list[dict[str, Any]] = [{"type": "text", "text": says}] if says else []
            results: list[dict[str, Any]] = []
            for command in commands:
                calls += 1
                call_id = f"call_{calls:03}"
                blocks.append(
                    {
                        "type": "tool_use",
                        "id": call_id,
                        "name": "run",
                        "input": {"command": command},
                    }
                )
                results.append({"type": "tool_result", "tool_use_id": call_id, **run(command)})
            yield message("assistant", blocks)
            yield message("user", results)
        yield message("assistant", answer)


def record(name: str, title: str, script: Script) -> Path:
    """Run the commands of *script*, write the conversation, and return the path of the file."""
    conversation = Conversation(
        id=name,
        format="own",
        title=title,
        source=SOURCE,
        labels={"recorded": "on this repository"},
        messages=tuple(_messages(name, script)),
    )
    path = FOLDER / f"{name}.jsonl"
    path.write_bytes(write_own(conversation))
    return path


WALK: Script = [
    (
        "Walk through this repository and tell me how a turn travels through it.",
        [
            (
                "I start with the map.",
                ["ls llmsession llmsession/turns llmsession/session", "wc -l llmsession/*/*.py"],
            ),
            ("The table of the machine first.", ["sed -n 1,190p llmsession/turns/machine.py"]),
            (
                "",
                [
                    "sed -n 190,400p llmsession/turns/machine.py",
                    "cat llmsession/turns/event_choice.py",
                ],
            ),
            ("Its events and effects.", ["cat llmsession/turns/events.py"]),
            ("Now the shell around it.", ["cat llmsession/session/actor/turn_runner.py"]),
            (
                "",
                [
                    "cat llmsession/session/actor/turn_queue.py",
                    "cat llmsession/session/actor/mailbox.py",
                ],
            ),
            ("The state is a fold of the log.", ["cat llmsession/session/log/state.py"]),
            ("", ["cat llmsession/turns/records.py"]),
            ("How is the request made?", ["cat llmsession/compaction/view/projection.py"]),
            (
                "",
                [
                    "cat llmsession/compaction/view/view.py",
                    "cat llmsession/compaction/view/plan.py",
                ],
            ),
            ("And what may be sent.", ["cat llmsession/compaction/rules/structure.py"]),
            ("Who publishes?", ["cat llmsession/session/core/subscriptions.py"]),
            ("", ["cat llmsession/session/actor/actor.py"]),
            ("Last, the handle.", ["cat llmsession/session/handles/session.py"]),
        ],
        "A send becomes a numbered command in the mailbox, the actor journals its acceptance,"
        " and the machine says what to do next: build the context, open the stream, journal the"
        " calls before any tool starts, build again, and at the end write one record that makes"
        " the whole turn part of the history.",
    ),
    (
        "Which phases can an interrupt still win in?",
        [("", ["grep -n 'DropRequested' llmsession/turns/machine.py"])],
        "In every phase before the decision: accepted, building, streaming, journaling, tools and"
        " stopping. In committing, aborting and failing it changes nothing.",
    ),
]

COUNTS: Script = [
    (
        "How large is the code, and how much of it is tests?",
        [
            (
                "I count both sides at once.",
                [
                    "find llmsession -name '*.py' | xargs cat | wc -l",
                    "find tests -name '*.py' | xargs cat | wc -l",
                    "grep -rhE '^ *(async )?def test_' tests | wc -l",
                ],
            )
        ],
        "The three numbers above: lines of the package, lines of tests, and test functions.",
    ),
    (
        "Is there a file called handler or utils?",
        [
            (
                "",
                [
                    "find llmsession -name '*handler*' -o -name '*utils*' -o -name '*helper*'",
                    "ls llmsession/utils",
                ],
            )
        ],
        "No: the search printed nothing, and there is no such folder.",
    ),
    ("Thank you.", [], "You are welcome."),
]

ERRORS: Script = [
    (
        "What does the error tree look like, and does it hold what it says?",
        [
            ("", ["sed -n 1,45p llmsession/errors.py"]),
            (
                "I check it against the classes.",
                [
                    "python -c \"import llmsession.errors as e; print(len(e.__all__), 'names')\"",
                    "grep -c '^class ' llmsession/errors.py",
                ],
            ),
            ("And a turn id that is none.", ["python -c 'import llmsession.turns.nothing'"]),
            (
                "",
                [
                    'python -c "'
                    "from llmsession.turns.ids import TurnId; print(TurnId.parse('u7'),"
                    " TurnId.parse('a7').number)\""
                ],
            ),
        ],
        "Every class of the tree is exported, and one command failed on purpose: its error came"
        " back as a result, and the conversation went on.",
    )
]

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    record("walk", "A walk through the repository, in one long turn", WALK)
    record("counts", "Parallel calls, a failing one, a turn without tools", COUNTS)
    record("errors", "An error result in the middle of a turn", ERRORS)

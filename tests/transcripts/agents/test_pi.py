from __future__ import annotations

from typing import Any

import pytest

from llmsession.transcripts import read, write
from llmsession.turns.usage import Usage

from ..shapes import Case, case, check, every
from .sources import at, lines, pi, rows_of, text


def entry(id: str, parent: str | None, **message: Any) -> dict[str, Any]:
    return {
        "type": "message", "id": id, "parentId": parent, "timestamp": at(20), "message": message,
    }  # fmt: skip


def user(content: Any, id: str = "e9", parent: str | None = "e8") -> dict[str, Any]:
    return entry(id, parent, role="user", content=content)


def reply(
    *content: dict[str, Any], stop: str = "stop", id: str = "e10", parent: str = "e9", **fields: Any
) -> dict[str, Any]:
    usage = {"input": 1, "output": 1}
    made = {"provider": "anthropic", "model": "claude-x", "stopReason": stop, "usage": usage}
    return entry(id, parent, role="assistant", content=list(content), **made | fields)


def thought(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "thinkingSignature": signature}


def without_ids() -> bytes:
    head, *rows = rows_of(pi())
    return lines(head, *({k: row[k] for k in row.keys() - {"id", "parentId"}} for row in rows))


ROWS = rows_of(pi())
SAID = ["read both", "I will.", "and hurry", "Both read.", "thanks", "Welcome."]
IDS = [f"e{n}" for n in range(1, 9)]
CUT_CALL = {"type": "toolCall", "id": "c9", "name": "run", "arguments": {}, "partialJson": "{"}
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
CUSTOM = {
    "type": "custom_message", "id": "e10", "parentId": "e9", "timestamp": at(21),
    "customType": "note", "content": "by the way", "display": True,
}  # fmt: skip
SUMMARY = {"type": "compaction", "id": "x1", "parentId": "e8", "timestamp": at(9)}
LABEL = {"type": "label", "id": "l1", "parentId": "e8", "timestamp": at(30)}
OTHER = [
    user("no thanks", "b1", "e6"), reply(text("As you like."), id="b2", parent="b1"),
]  # fmt: skip

CASES = {
    "entries keep their ids usage thinking and errors and results stand behind their reply": case(
        pi(), ids=IDS, said=SAID, shape="u1:t a1:ktcc u1:r u1:r u1:t a1:t u2:t a2:t",
        usages=[Usage(3, 5, 10, 1)] * 3, thoughts=[("hm", "sig")], notes=[], unanswered=(),
        results=[("c1", "one", False), ("c2", "no such file", True)],
        models=[None, "claude-x", None, None, None, "claude-x", None, "claude-x"],
    ),
    "files without ids are read in their order": case(without_ids(), said=SAID, notes=[]),
    "an aborted reply ends its turn and its unsigned thinking is kept beside": case(
        pi(
            user("go"),
            reply(thought("half a thou", ""), text("I beg"), CUT_CALL, stop="aborted",
                  errorMessage="aborted"),
            user("stop", "e11", "e10"),
        ),
        said=[*SAID, "go", "I beg", "stop"], errors=["aborted"], interrupted=(3,),
        unanswered=("c9",), beside={-2: b"half a thou"},
        notes=["11 unsigned_thinking", "11 unanswered_call"],
    ),
    "of a call that was cut its rest is kept beside": case(
        pi(user("go"), reply(CUT_CALL, stop="aborted")), beside={-1: b"partialJson"}
    ),
    **{
        f"a reply with the stop {stop} without calls interrupts its turn too": case(
            pi(
                user("go"), reply(text("I beg"), stop=stop), user("again", "e11", "e10"),
                reply(stop=stop, id="e12", parent="e11"),
            ),
            interrupted=(3, 4),
        )
        for stop in ("aborted", "error")
    },
    "thinking of another vendor is never passed off as signed": case(
        pi(user("go"), reply(thought("hm", '{"id":"rs_1"}'), text("yes"), provider="openai")),
        said=[*SAID, "go", "yes"], thoughts=[("hm", "sig")], beside={-1: b"rs_1"},
    ),
    "a shell command of the user is the users text": case(
        pi(entry("e9", "e8", role="bashExecution", command="ls", output="a.py", exitCode=0)),
        said=[*SAID, "Ran `ls`\n```\na.py\n```"], notes=["10 bash_execution"],
    ),
    "a compaction is the summary and nothing is left out for it": case(
        pi(SUMMARY | {"summary": "So far."}), summary="So far.", ids=IDS, notes=["10 compaction!"],
    ),
    "another leaf is a branch that shares its messages": case(
        lines(*ROWS[:-2], *OTHER, *ROWS[-2:]), id="s1", ids=IDS,
        branches=[
            {"id": "s1/b2", "parent": "s1", "shared_turns": 1, "ids": [*IDS[:6], "b1", "b2"]}
        ],
    ),
    "the last entry says which path is active also if the trunk is all of it": case(
        pi(user("more", "b1"), LABEL), ids=IDS, branches=[{"ids": [*IDS, "b1"]}]
    ),
    "an entry whose parent is missing follows the one before it": case(
        pi(user("more", parent="gone")), said=[*SAID, "more"], noted=["9 missing_parent!"]
    ),
    "a circle of parents ends": case(
        lines(ROWS[0], ROWS[1] | {"parentId": "e8"}, *ROWS[2:]), ids=IDS
    ),
    "images and custom messages are read and written": case(
        pi(user([IMAGE]), CUSTOM), said=[*SAID, "by the way"],
        images=[{"type": "base64", "media_type": "image/png", "data": "aGk="}],
        shape="u1:t a1:ktcc u1:r u1:r u1:t a1:t u2:t a2:t u3:i u3:t",
    ),
    "a message of an unknown role is noted or refused with its line": case(
        pi(entry("e9", "e8", role="narrator", content="meanwhile")), noted=["10 bad_line!"],
        refused=r"^line 10: .*'narrator'",
    ),
}  # fmt: skip


@every(CASES)
def test_a_session_is_read_and_still_so_once_it_is_written(case: Case) -> None:
    check(case, "pi")
    found = read(case.raw, "pi")
    again = read(write(found, "pi"), "pi")
    assert [one.messages for one in again] == [one.messages for one in found]


@pytest.mark.parametrize(("stop", "reason"), [("stop", "end_turn"), ("aborted", "cancelled")])
def test_stop_reasons_are_in_our_words_and_the_provider_is_kept(stop: str, reason: str) -> None:
    cut = read(pi(user("go"), reply(text("I beg"), stop=stop)))[0].messages[-1]
    assert (cut.provider, cut.stop_reason) == ("anthropic", reason)


def test_a_branch_shares_the_message_objects() -> None:
    main, branch = read(lines(*ROWS[:-2], *OTHER, *ROWS[-2:]), strict=True)
    assert all(a is b for a, b in zip(main.messages[:6], branch.messages[:6], strict=True))
    assert read(without_ids())[0].messages[0].id == "s1/u1.0"

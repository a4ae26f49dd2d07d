from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from llmsession.transcripts import detect, read
from llmsession.transcripts.agents.cline_sdk import prefix_hash
from llmsession.transcripts.common.record import Record
from llmsession.turns.usage import Usage

from ..shapes import Case, case, check, every
from .sources import cline_sdk, dump, text

PATH = "s1/s1.messages.json"


def transcript() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cline_sdk()[PATH])
    return document


def hash_of(messages: list[dict[str, Any]]) -> str:
    """As the format's specification has it, for messages without anything special in them."""
    names = ("agent", "sessionId", "metadata", "modelInfo", "metrics")
    digest = hashlib.sha256(f"cline-session-compaction-source-v2\n{len(messages)}\n".encode())
    for message in messages:
        rows = [["role", message["role"]], ["content", message["content"]]]
        rows += [[name, message.get(name)] for name in names]
        line = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
        digest.update(line.encode() + b"\n")
    return f"sha256:{digest.hexdigest()}"


def compacted(**more: Any) -> dict[str, bytes]:
    messages = transcript()["messages"]
    summary = {
        "id": "sum", "role": "user", "content": [text("Context summary:\n\nread both")],
        "metadata": {"kind": "compaction_summary", "summary": "read both"},
    }  # fmt: skip
    sidecar = {
        "version": 1, "updated_at": "2026-01-01T00:00:00.000Z", "source_message_count": 4,
        "source_prefix_hash": hash_of(messages[:4]), "messages": [summary],
    }  # fmt: skip
    return {"s1/s1.compaction.json": dump(sidecar | more)}


def changed(change: Callable[[list[Any]], object]) -> dict[str, bytes]:
    """The transcript with a *change* of its messages."""
    document = transcript()
    change(document["messages"])
    return {PATH: dump(document)}


def renamed(messages: list[Any]) -> None:
    for message in messages:
        message |= {"id": "new" + message["id"], "ts": 1}


IDS = [f"msg_{n}" for n in range(6)]
NAMED = changed(lambda messages: messages[2]["content"][0].update(name="read"))
MANIFEST = {"s1/s1.json": dump({"version": 1, "metadata": {"title": "T"}})}
SHOWN: dict[str, Any] = {
    "said": ["Context summary:\n\nread both", "thanks", "Welcome."],
    "branches": [{"id": "s1/full", "parent": "s1", "summary": "read both", "ids": IDS}],
}
STALE: dict[str, Any] = {"ids": IDS, "notes": ["1 stale_sidecar"]}

CASES = {
    "a transcript alone is one conversation": case(
        {"": cline_sdk()[PATH]}, id="s1", system="Be short.", ids=IDS, usages=[Usage(9, 4, 2)]
    ),
    "a sidecar stands for the messages that its hash knows": case(
        cline_sdk(**compacted()), **SHOWN
    ),
    "a sidecar of other messages does not count": case(
        compacted() | changed(lambda messages: messages[0].update(content="read one")), **STALE
    ),
    **{
        f"a sidecar with {odd} does not count": case(cline_sdk(**compacted(**odd)), **STALE)
        for odd in (
            {"version": 2}, {"source_message_count": 99}, {"source_prefix_hash": None},
            {"source_prefix_hash": None, "source_last_message_key": "id:msg_2"},
        )
    },
    "a sidecar without messages hides those that it stands for": case(
        cline_sdk(**compacted(messages=3)), said=["thanks", "Welcome."], branches=[{}]
    ),
    "a sidecar without a hash is known by the key of its last message": case(
        cline_sdk(**compacted(source_prefix_hash=None, source_last_message_key="id:msg_3")),
        **SHOWN,
    ),
    "ids and times are no part of the hash": case(
        compacted() | changed(renamed), said=SHOWN["said"], branches=[{}]
    ),
    "fields of results that no provider takes are kept beside": case(
        NAMED, beside={2: b'{"results":{"c1":{"name":"read"}}}'},
    ),
    "the manifest is kept": case(cline_sdk(**MANIFEST), title="T", extra=b'"title":"T"'),
    "a broken manifest is noted": case(
        cline_sdk(**{"s1/s1.json": b"{"}), notes=["1 bad_file!"]
    ),
}  # fmt: skip


def test_fields_of_results_that_no_provider_takes_are_not_sent() -> None:
    assert b'"name"' not in bytes(read(NAMED)[0].messages[2].body)


@every(CASES)
def test_a_session_is_detected_and_read(case: Case) -> None:
    assert detect(case.raw) == "cline-sdk"
    check(case, "cline-sdk")


@pytest.mark.parametrize(
    ("wrapped", "typed"),
    [
        ("<user_input mode=\"act\">fix it</user_input>", "fix it"),
        ("  fix it\n", "fix it"),
        ("<mode_notice>now in act</mode_notice>fix it", "fix it"),
        ('<user_command slash="plan">fix it</user_command>', "/plan fix it"),
        (
            '<user_command slash="team">spawn a team of agents for the following task: go'
            "</user_command>",
            "/team go",
        ),
        ('<user_command slash="team">Spawn a team of agents for the following task:</user_command>',
         "/team"),
    ],
)  # fmt: skip
def test_what_is_wrapped_around_the_users_text_is_no_part_of_the_hash(
    wrapped: str, typed: str
) -> None:
    def record(content: Any) -> Record:
        return Record.of(dump({"role": "user", "content": content}))

    plain = hash_of([{"role": "user", "content": typed}])
    assert prefix_hash([record(wrapped)]) == plain
    assert prefix_hash([record([text(wrapped)])]) == hash_of(
        [{"role": "user", "content": [text(typed)]}]
    )


def test_numbers_are_hashed_as_javascript_writes_them() -> None:
    one = Record.of(b'{"role":"assistant","content":[],"metrics":{"cost":1.0,"n":2}}')
    two = Record.of(b'{"role":"assistant","content":[],"metrics":{"cost":1,"n":2}}')
    assert prefix_hash([one]) == prefix_hash([two])

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from llmsession.transcripts import detect, read
from llmsession.transcripts.agents.cline_sdk import prefix_hash
from llmsession.transcripts.common.record import Record
from llmsession.turns.usage import Usage

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


def test_a_transcript_alone_is_one_conversation() -> None:
    (found,) = read(cline_sdk(), strict=True)
    assert (found.id, found.system) == ("s1", "Be short.")
    assert [message.id for message in found.messages] == [f"msg_{n}" for n in range(6)]
    assert found.messages[1].usage == Usage(9, 4, 2)
    assert detect(cline_sdk()[PATH]) == "cline-sdk"


def test_a_sidecar_stands_for_the_messages_that_its_hash_knows() -> None:
    shown, full = read(cline_sdk(**compacted()), strict=True)
    assert [message.text for message in shown.messages] == [
        "Context summary:\n\nread both", "thanks", "Welcome.",
    ]  # fmt: skip
    assert len(full.messages) == 6
    assert (full.id, full.parent, full.summary) == ("s1/full", "s1", "read both")


def test_a_sidecar_of_other_messages_does_not_count() -> None:
    changed = transcript()
    changed["messages"][0]["content"] = "read one"
    files = cline_sdk(**compacted()) | {PATH: dump(changed)}
    (found,) = read(files, strict=True)
    assert len(found.messages) == 6
    assert found.count_notes() == {"stale_sidecar": 1}


@pytest.mark.parametrize(
    "odd",
    [{"version": 2}, {"source_message_count": 99}, {"source_prefix_hash": None}, {"messages": 3}],
    ids=repr,
)
def test_a_sidecar_that_says_too_little_does_not_count(odd: dict[str, Any]) -> None:
    found = read(cline_sdk(**compacted(**odd)), strict=True)
    if odd == {"messages": 3}:
        assert [message.text for message in found[0].messages] == ["thanks", "Welcome."]
    else:
        assert found[0].count_notes() == {"stale_sidecar": 1}


def test_ids_and_times_are_no_part_of_the_hash() -> None:
    changed = transcript()
    for message in changed["messages"]:
        message |= {"id": "new" + message["id"], "ts": 1}
    assert len(read(cline_sdk(**compacted()) | {PATH: dump(changed)}, strict=True)) == 2


def test_a_sidecar_without_a_hash_is_known_by_the_key_of_its_last_message() -> None:
    old = compacted(source_prefix_hash=None, source_last_message_key="id:msg_3")
    assert len(read(cline_sdk(**old), strict=True)) == 2
    other = compacted(source_prefix_hash=None, source_last_message_key="id:msg_2")
    assert len(read(cline_sdk(**other), strict=True)) == 1


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


def test_fields_of_results_that_no_provider_takes_are_kept_beside() -> None:
    changed = transcript()
    changed["messages"][2]["content"][0]["name"] = "read"
    (found,) = read({PATH: dump(changed)}, strict=True)
    assert b'"name"' not in bytes(found.messages[2].body)
    assert bytes(found.messages[2].extra or b"") == b'{"results":{"c1":{"name":"read"}}}'


def test_the_manifest_is_kept_and_a_broken_one_is_noted() -> None:
    manifest = {"s1/s1.json": dump({"version": 1, "metadata": {"title": "T"}})}
    (found,) = read(cline_sdk(**manifest), strict=True)
    assert found.title == "T"
    assert b'"title":"T"' in bytes(found.extra["manifest"])
    (found,) = read(cline_sdk(**{"s1/s1.json": b"{"}), strict=True)
    assert found.count_notes() == {"bad_file": 1}

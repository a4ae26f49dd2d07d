"""A small file with a summary for each system that keeps one: three turns, of which the summary
stands for the first, if the file says so."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from llmsession.transcripts.agents.cline_sdk import prefix_hash
from llmsession.transcripts.common.record import Record

from .agents import sources
from .chats.records import dumped, libre, librechat, lobe, neuro, neurolink

SUMMARY = "They chose SQLite."
SAID = ["one?", "One.", "two?", "Two.", "three?", "Three."]
ROLES = ["user", "assistant"] * 3


class Kept(NamedTuple):
    """A file that keeps ``SUMMARY`` for the first ``upto`` of its messages. Of several
    conversations in it the one at ``place`` is looked at."""

    format: str
    files: bytes | dict[str, bytes]
    upto: int
    said: list[str] = SAID
    place: int = 0


def plain(count: int = 6) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in zip(ROLES[:count], SAID[:count], strict=True)
    ]


def of_claude() -> bytes:
    rows: list[dict[str, Any]] = []

    def line(kind: str, **fields: Any) -> None:
        above = rows[-1]["uuid"] if rows else None
        place = {"type": kind, "uuid": f"l{len(rows)}", "parentUuid": above, "sessionId": "s1"}
        rows.append({**place, "isSidechain": False, "timestamp": sources.at(len(rows)), **fields})

    for index, message in enumerate(plain()):
        if index == 2:
            line("system", subtype="compact_boundary", parentUuid=None, logicalParentUuid="l1")
            line("user", message={"role": "user", "content": SUMMARY}, isCompactSummary=True)
        more = {"id": f"r{index}", "model": "claude-x"} if index % 2 else {}
        line(message["role"], message=message | more)
    return sources.lines(*rows)


def of_codex() -> bytes:
    def said(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        payload = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        return {"timestamp": sources.at(1), "type": "response_item", "payload": payload}

    rows = [said(role, text) for role, text in zip(ROLES, SAID, strict=True)]
    compacted = {"message": SUMMARY, "replacement_history": [{}]}
    meta = {"timestamp": sources.at(0), "type": "session_meta", "payload": {"id": "s1"}}
    mark = {"timestamp": sources.at(2), "type": "compacted", "payload": compacted}
    return sources.lines(meta, *rows[:2], mark, *rows[2:])


def of_pi() -> bytes:
    rows: list[dict[str, Any]] = [{"type": "session", "id": "s1", "version": 3}]
    for index, (role, text) in enumerate(zip(ROLES, SAID, strict=True)):
        parent = f"e{index - 1}" if index else None
        if index == 4:  # it stands behind what it keeps
            rows.append({
                "type": "compaction", "id": "x", "parentId": "e3", "summary": SUMMARY,
                "firstKeptEntryId": "e2", "timestamp": sources.at(4),
            })  # fmt: skip
            parent = "x"
        message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text}]}
        if role == "assistant":
            message |= {"provider": "anthropic", "model": "claude-x", "stopReason": "stop"}
        place = {"id": f"e{index}", "parentId": parent, "timestamp": sources.at(index)}
        rows.append({"type": "message", **place, "message": message})
    return sources.lines(*rows)


def of_continue() -> bytes:
    history: list[dict[str, Any]] = [
        {"message": {"role": role, "content": text}, "contextItems": []}
        for role, text in zip(ROLES, SAID, strict=True)
    ]
    history[1]["conversationSummary"] = SUMMARY
    return dumped({"sessionId": "s1", "title": "T", "history": history})


def of_cline() -> dict[str, bytes]:
    messages = [{"id": f"m{n}", **message} for n, message in enumerate(plain())]
    text = f"Context summary:\n\n{SUMMARY}"
    summary = {
        "id": "sum", "role": "user", "content": [{"type": "text", "text": text}],
        "metadata": {"kind": "compaction_summary", "summary": SUMMARY},
    }  # fmt: skip
    sidecar = {
        "version": 1, "source_message_count": 2,
        "source_prefix_hash": prefix_hash([Record.of(dumped(row)) for row in messages[:2]]),
        "messages": [summary],
    }  # fmt: skip
    whole = {"sessionId": "s1", "messages": messages}
    return {"s1.messages.json": dumped(whole), "s1.compaction.json": dumped(sidecar)}


def of_roo() -> dict[str, bytes]:
    first, second, *rest = plain()
    hidden = {"condenseParent": "X"}
    summary = {"role": "user", "content": SUMMARY, "isSummary": True, "condenseId": "X"}
    rows = [first | hidden, second | hidden, summary, *rest]
    return {"tasks/t1/api_conversation_history.json": dumped(rows)}


def of_librechat(place: str) -> bytes:
    rows: list[dict[str, Any]] = []
    for index, (role, text) in enumerate(zip(ROLES, SAID, strict=True)):
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if index == 3:
            part: dict[str, Any] = {
                "type": "summary",
                "content": [{"type": "text", "text": SUMMARY}],
            }
            content = [part | {"coverage": {"retainedFromMessageId": place}}, *content]
        above = f"m{index - 1}" if index else None
        rows.append(libre(
            f"m{index}", above, user=role == "user", second=index, content=content,
        ))  # fmt: skip
    return librechat(*rows)


def of_open_webui() -> bytes:
    messages: dict[str, Any] = {}
    for index, (role, text) in enumerate(zip(ROLES, SAID, strict=True)):
        parent = f"m{index - 1}" if index else None
        messages[f"m{index}"] = {
            "id": f"m{index}", "parentId": parent, "role": role, "content": text, "done": True,
            "timestamp": 1_767_225_600 + index,
            "childrenIds": [f"m{index + 1}"] if index < 5 else [],
        }  # fmt: skip
    messages["m2"]["contextSummary"] = SUMMARY
    history = {"messages": messages, "currentId": "m5"}
    return dumped([{"id": "c1", "title": "T", "chat": {"title": "T", "history": history}}])


def of_lobechat() -> bytes:
    group = {
        "id": "g", "role": "compressedGroup", "content": SUMMARY, "topicId": "tpc",
        "createdAt": 1_767_225_600_000, "pinnedMessages": [], "lastMessageId": "gone",
    }  # fmt: skip
    rows = [
        lobe(f"m{index}", f"m{index - 1}" if index > 2 else "g", ROLES[index], index, content=text)
        for index, text in list(enumerate(SAID))[2:]
    ]
    return dumped({"messages": [group, *rows]})


def of_neurolink(pointer: str) -> bytes:
    rows = [neuro(f"m{index}", role, SAID[index]) for index, role in enumerate(ROLES)]
    return neurolink(*rows, summarizedUpToMessageId=pointer, summarizedMessage=SUMMARY)


def of_neurolink_stage() -> bytes:
    summary = neuro(
        "s", "user", f"[Previous conversation summary]:\n\n{SUMMARY}", metadata={"isSummary": True}
    )
    rows = [neuro(f"m{index}", ROLES[index], SAID[index]) for index in range(2, 6)]
    return neurolink(summary, *rows, summarizedUpToMessageId=None, summarizedMessage=None)


def of_chainreview() -> bytes:
    return dumped(
        {"id": "r1", "repoPath": "/w", "apiHistory": plain(), "condensedSummary": SUMMARY}
    )


def of_codebuddy() -> bytes:
    about = (
        "INSERT INTO chat_summaries (agent_id, summary, timestamp) VALUES"
        f" ('agentId', '{SUMMARY}', '2026-01-01')"
    )
    kinds = ["user", "bot"] * 3
    rows = [
        (text, kind, sources.at(n), "s1")
        for n, (text, kind) in enumerate(zip(SAID, kinds, strict=True))
    ]
    return sources.codebuddy(*rows, script=about)


def of_own() -> bytes:
    head = {"llmsession": 1, "session": "s1", "summary": SUMMARY, "summary_upto": 2}
    rows = [
        {"id": f"m{n}", "session": "s1", "turn": n // 2 + 1, **message}
        for n, message in enumerate(plain())
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in (head, *rows))


FULL_CLINE = ["Context summary:\n\n" + SUMMARY, *SAID[2:]]
KEPT: dict[str, Kept] = {
    "claude code, at a compact boundary": Kept("claude-code", of_claude(), 2),
    "codex": Kept("codex", of_codex(), 2),
    "pi": Kept("pi", of_pi(), 2),
    "continue": Kept("continue", of_continue(), 2),
    "cline, what the model is sent": Kept("cline-sdk", of_cline(), 1, FULL_CLINE),
    "cline, the whole transcript": Kept("cline-sdk", of_cline(), 2, SAID, 1),
    "roo, what the model is sent": Kept("roo-code", of_roo(), 1, [SUMMARY, *SAID[2:]]),
    "roo, the whole history": Kept(
        "roo-code", of_roo(), 3, [*SAID[:2], SUMMARY, *SAID[2:]], 1
    ),
    "librechat, from the message it retains": Kept("librechat", of_librechat("m2"), 2),
    "librechat, from its own message": Kept("librechat", of_librechat("gone"), 3),
    "open webui": Kept("open-webui", of_open_webui(), 2),
    "lobechat, a compressed group whose messages are gone": Kept(
        "lobechat", of_lobechat(), 0, SAID[2:]
    ),
    "neurolink, up to its pointer": Kept("neurolink", of_neurolink("m1"), 2),
    "neurolink, all messages": Kept("neurolink", of_neurolink("m5"), 6),
    "neurolink, with a pointer to nothing": Kept("neurolink", of_neurolink("gone"), 0),
    "neurolink, as a message in place of others": Kept(
        "neurolink", of_neurolink_stage(), 0, SAID[2:]
    ),
    "chainreview": Kept("chainreview", of_chainreview(), 0),
    "codebuddy": Kept("codebuddy", of_codebuddy(), 0),
    "our own": Kept("own", of_own(), 2),
}  # fmt: skip

"""A small file in each format, scripted: two turns, and a tool loop with parallel calls."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any


def dump(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def rows_of(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(row) for row in raw.split(b"\n") if row.strip()]


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}.500Z"


def codex(*more: dict[str, Any]) -> bytes:
    def item(second: int, **payload: Any) -> dict[str, Any]:
        return {"timestamp": at(second), "type": "response_item", "payload": payload}

    def event(second: int, **payload: Any) -> dict[str, Any]:
        return {"timestamp": at(second), "type": "event_msg", "payload": payload}

    def said(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    def count(second: int, total: int) -> dict[str, Any]:
        last = {"input_tokens": 100, "cached_input_tokens": 40, "output_tokens": 7}
        info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last}
        return event(second, type="token_count", info=info)

    return lines(
        {
            "timestamp": at(0),
            "type": "session_meta",
            "payload": {"id": "s1", "cwd": "/w", "base_instructions": {"text": "Be short."}},
        },
        event(0, type="task_started", turn_id="t1"),
        item(0, **said("developer", "Permissions.")),
        {"timestamp": at(0), "type": "turn_context", "payload": {"model": "gpt-x"}},
        item(1, **said("user", "read both")),
        event(1, type="token_count", info=None),
        item(2, type="reasoning", summary=[], encrypted_content="abc"),
        item(2, **said("assistant", "I will.")),
        item(3, type="function_call", call_id="c1", name="run", arguments='{"cmd": "ls"}'),
        item(3, type="custom_tool_call", call_id="c2", name="patch", input="*** Begin"),
        count(3, 107),
        item(4, type="function_call_output", call_id="c1", output="a.py"),
        item(5, type="custom_tool_call_output", call_id="c2", output="ok"),
        count(5, 107),
        item(6, **said("user", "<notice>a sub-agent is done</notice>")),
        item(7, **said("assistant", "Both read.")),
        count(7, 214),
        event(7, type="task_complete", turn_id="t1"),
        event(8, type="task_started", turn_id="t2"),
        item(8, **said("user", "thanks")),
        item(9, **said("assistant", "Welcome.")),
        count(9, 321),
        *more,
    )


def pi(*more: dict[str, Any]) -> bytes:
    def entry(id: str, parent: str | None, second: int, **message: Any) -> dict[str, Any]:
        place = {"id": id, "parentId": parent, "timestamp": at(second)}
        return {"type": "message", **place, "message": message | {"timestamp": 1767225600000}}

    def reply(*content: dict[str, Any], stop: str = "stop") -> dict[str, Any]:
        usage = {"input": 3, "output": 5, "cacheRead": 10, "cacheWrite": 1}
        told = {"provider": "anthropic", "model": "claude-x", "usage": usage, "stopReason": stop}
        return {"role": "assistant", "content": list(content), **told}

    def result(call: str, text: str, **more: Any) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        fields = {"role": "toolResult", "toolCallId": call, "toolName": "read", "content": content}
        return fields | {"isError": False} | more

    thought = {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}
    calls = [
        {"type": "toolCall", "id": f"c{n}", "name": "read", "arguments": {"path": f"{n}.py"}}
        for n in (1, 2)
    ]
    return lines(
        {"type": "session", "version": 3, "id": "s1", "timestamp": at(0), "cwd": "/w"},
        entry("e1", None, 1, role="user", content="read both"),
        entry("e2", "e1", 2, **reply(thought, {"type": "text", "text": "I will."}, *calls)),
        entry("e3", "e2", 3, **result("c1", "one")),
        entry("e4", "e3", 4, **result("c2", "no such file", isError=True)),
        entry("e5", "e4", 5, role="user", content=[{"type": "text", "text": "and hurry"}]),
        entry("e6", "e5", 6, **reply({"type": "text", "text": "Both read."})),
        entry("e7", "e6", 7, role="user", content="thanks"),
        entry("e8", "e7", 8, **reply({"type": "text", "text": "Welcome."})),
        *more,
    )


def gemini(**more: Any) -> bytes:
    def call(id: str, output: str, status: str = "success") -> dict[str, Any]:
        told = {"id": id, "name": "run", "response": {"output": output}}
        return {
            "id": id, "name": "run", "args": {"cmd": id}, "status": status,
            "result": [{"functionResponse": told}], "displayName": "Run",
        }  # fmt: skip

    def message(id: str, kind: str, content: str, **more: Any) -> dict[str, Any]:
        return {"id": id, "timestamp": at(1), "type": kind, "content": content} | more

    tokens = {"input": 100, "output": 5, "cached": 40, "thoughts": 2, "tool": 0, "total": 107}
    told = {"tokens": tokens, "model": "gemini-x"}
    thoughts = [{"subject": "Plan", "description": "…", "timestamp": at(1)}]
    return dump(
        {
            "sessionId": "s1",
            "projectHash": "h",
            "startTime": at(0),
            "lastUpdated": at(9),
            "messages": [
                message("m1", "user", "read both"),
                message(
                    "m2",
                    "gemini",
                    "I will.",
                    thoughts=thoughts,
                    **told,
                    toolCalls=[call("c1", "one"), call("c2", "denied", "error")],
                ),
                message("m3", "info", "update available"),
                message("m4", "gemini", "Both read.", **told),
                message("m5", "user", "thanks"),
                message("m6", "gemini", "Welcome.", **told),
            ],
        }
        | more
    )


def openai_chat(*more: dict[str, Any]) -> bytes:
    def call(id: str, arguments: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "run", "arguments": arguments}}

    return dump(
        [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "read both"},
            {
                "role": "assistant",
                "content": "I will.",
                "tool_calls": [call("c1", '{"path": "a"}'), call("c2", '{"path": "b"}')],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "run", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "name": "run", "content": "two"},
            {"role": "assistant", "content": "Both read."},
            {"role": "user", "content": [{"type": "text", "text": "thanks"}]},
            {"role": "assistant", "content": "Welcome."},
            *more,
        ]
    )


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def tool_use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "read", "input": {"path": id}}


def tool_result(id: str, said: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": said} | more


def conversation(**fields: Any) -> list[dict[str, Any]]:
    """Anthropic messages; *fields* go into each."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    told: list[tuple[str, Any]] = [
        ("user", "read both"),
        ("assistant", [thought, text("I will."), tool_use("c1"), tool_use("c2")]),
        ("user", [tool_result("c1", "one"), tool_result("c2", [text("two")]), text("and hurry")]),
        ("assistant", [text("Both read.")]),
        ("user", [text("thanks")]),
        ("assistant", [text("Welcome.")]),
    ]
    return [{"role": role, "content": content} | fields for role, content in told]


def anthropic_list(*more: dict[str, Any]) -> bytes:
    return dump([*conversation(), *more])


def cassette() -> bytes:
    request = {"model": "claude-x", "max_tokens": 10, "system": "Be short."}
    usage = {"input_tokens": 12, "output_tokens": 3}
    answer = {
        "id": "msg_1", "role": "assistant", "model": "claude-x", "stop_reason": "end_turn",
        "content": [text("Welcome again.")], "usage": usage,
    }  # fmt: skip
    messages = [*conversation(), {"role": "user", "content": "bye"}]
    interaction = {
        "request": {
            "method": "POST", "uri": "https://api.anthropic.com/v1/messages",
            "parsed_body": request | {"messages": messages},
        },
        "response": {"status": {"code": 200}, "parsed_body": answer},
    }  # fmt: skip
    # JSON is YAML, but for the key at the top, which a cassette begins with.
    return b"interactions:\n- " + json.dumps(interaction).encode() + b"\nversion: 1\n"


def continue_session(*more: dict[str, Any], **fields: Any) -> bytes:
    def item(role: str, content: Any, **more: Any) -> dict[str, Any]:
        message = {"role": role, "content": content} | more.pop("message", {})
        return {"message": message, "contextItems": []} | more

    def called(id: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}

    def state(id: str, said: str | None, status: str = "done") -> dict[str, Any]:
        output = [] if said is None else [{"name": "f", "description": "", "content": said}]
        held = {"toolCallId": id, "toolCall": called(id), "status": status, "parsedArgs": {}}
        return held | ({"output": output} if said is not None else {})

    context = [{"name": "a.py", "description": "src/a.py", "content": "print()"}]
    return dump(
        {
            "sessionId": "s1",
            "title": "Read",
            "workspaceDirectory": "file:///w",
            "history": [
                item("user", "read both", contextItems=context),
                item("thinking", "hm", message={"signature": "sig"}),
                item(
                    "assistant",
                    "I will.",
                    message={"toolCalls": [called("c1"), called("c2")]},
                    toolCallStates=[state("c1", "one"), state("c2", None, "canceled")],
                ),
                item("user", "thanks"),
                item("assistant", "Welcome."),
                *more,
            ],
        }
        | fields
    )


def cline_classic(**more: bytes) -> dict[str, bytes]:
    history = conversation(ts=1767225600000)
    history[1] |= {
        "modelInfo": {"modelId": "claude-x", "providerId": "anthropic"},
        "metrics": {"tokens": {"prompt": 9, "completion": 4, "cached": 2}, "cost": 0},
    }
    item = {"id": "t1", "ts": 1767225600000, "task": "Read", "tokensIn": 1, "tokensOut": 1}
    return {
        "tasks/t1/api_conversation_history.json": dump(history),
        "tasks/t1/ui_messages.json": b"[]",
        "state/taskHistory.json": dump([item]),
    } | more


def cline_sdk(**more: bytes) -> dict[str, bytes]:
    messages = [
        message | {"id": f"msg_{n}", "ts": 1767225600000 + n}
        for n, message in enumerate(conversation())
    ]
    messages[1] |= {
        "modelInfo": {"id": "claude-x", "provider": "anthropic"},
        "metrics": {"inputTokens": 9, "outputTokens": 4, "cacheReadTokens": 2, "cost": 0.5},
    }
    document = {
        "version": 1, "updated_at": at(9), "agent": "lead", "sessionId": "s1", "origin": {},
        "system_prompt": "Be short.", "messages": messages,
    }  # fmt: skip
    return {"s1/s1.messages.json": dump(document)} | more


def roo(history: Any = None, **more: bytes) -> dict[str, bytes]:
    messages = [
        message | {"ts": 1767225600000 + n} for n, message in enumerate(history or conversation())
    ]
    item = {"id": "t1", "number": 1, "ts": 1767225600000, "task": "Read"}
    return {
        "tasks/t1/api_conversation_history.json": dump(messages),
        "tasks/t1/history_item.json": dump(item),
    } | more


SCHEMA = """
CREATE TABLE chat_history (id INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT NOT NULL,
  message_content TEXT NOT NULL, message_type TEXT NOT NULL,
  timestamp DATETIME DEFAULT CURRENT_TIMESTAMP, session_id TEXT, metadata TEXT);
CREATE TABLE chat_summaries (id INTEGER PRIMARY KEY, agent_id TEXT, summary TEXT,
  timestamp DATETIME);
CREATE TABLE chat_sessions (id INTEGER PRIMARY KEY, session_id TEXT UNIQUE, agent_id TEXT,
  title TEXT);
"""


def codebuddy(*rows: tuple[str, str, Any, str], script: str = "") -> bytes:
    """Rows of text, type, timestamp and session."""
    told: Sequence[tuple[str, str, Any, str]] = rows or (
        ("read both", "user", at(1), "s1"),
        ("Both read.", "bot", at(2), "s1"),
        ("thanks", "user", at(3), "s1"),
        ("Welcome.", "bot", at(4), "s1"),
    )
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(SCHEMA + script)
        database.executemany(
            "INSERT INTO chat_history (agent_id, message_content, message_type, timestamp,"
            " session_id) VALUES ('agentId', ?, ?, ?, ?)",
            told,
        )
        database.commit()
        return database.serialize()
    finally:
        database.close()


SOURCES: dict[str, dict[str, bytes]] = {
    "codex": {"a.jsonl": codex()},
    "pi": {"a.jsonl": pi()},
    "gemini-cli": {"a.json": gemini()},
    "continue": {"a.json": continue_session()},
    "cline-sdk": cline_sdk(),
    "roo-code": roo(),
    "cline-classic": cline_classic(),
    "codebuddy": {"a.db": codebuddy()},
    "cassette": {"a.yaml": cassette()},
    "anthropic-messages": {"a.json": anthropic_list()},
    "openai-chat": {"a.json": openai_chat()},
}
"""By the name of its format: all formats of the folder, in the order that they are asked in."""

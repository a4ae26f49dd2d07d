"""Records of each chat application's format, written after its description, none recorded."""

from __future__ import annotations

import json
from typing import Any

START_S = 1767225600
"""2026-01-01T00:00:00Z."""


def iso(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}.000Z"


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


# LibreChat.


def libre(id: str, parent: str | None, *, user: bool, second: int, **fields: Any) -> dict[str, Any]:
    return {
        "messageId": id,
        "parentMessageId": parent or "00000000-0000-0000-0000-000000000000",
        "conversationId": "lc1",
        "sender": "User" if user else "GPT-4o",
        "text": "",
        "isCreatedByUser": user,
        "createdAt": iso(second),
        "xNew": {"kept": id},
    } | fields


def libre_call(id: str, output: str | None = "18 degrees", **fields: Any) -> dict[str, Any]:
    call = {"id": id, "name": "weather", "args": '{"city":"Rome"}', "progress": 1}
    told = {} if output is None else {"output": output}
    return {"type": "tool_call", "tool_call": call | told | {"type": "tool_call"} | fields}


def librechat(*messages: dict[str, Any], **fields: Any) -> bytes:
    head = {
        "conversationId": "lc1",
        "endpoint": "openAI",
        "title": "Weather",
        "exportAt": "12:00:00 GMT+0000",
        "branches": True,
        "recursive": False,
        "options": {"model": "gpt-4o", "promptPrefix": "Be brief."},
    }
    return dumped(head | {"messages": messages} | fields)


# Open WebUI.


def webui(id: str, parent: str | None, role: str, second: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "parentId": parent,
        "childrenIds": [],
        "role": role,
        "content": "",
        "timestamp": START_S + second,
        "xNew": {"kept": id},
    } | fields


def webui_chat(*messages: dict[str, Any], current: str | None, **fields: Any) -> dict[str, Any]:
    rows = {message["id"]: message for message in messages}
    for message in messages:
        if message["parentId"] in rows:
            rows[message["parentId"]]["childrenIds"].append(message["id"])
    chat = {
        "title": "Weather",
        "models": ["gpt-4o"],
        "params": {"system": "Be brief."},
        "history": {"currentId": current, "messages": rows},
        "messages": [],
    }
    outer = {"id": "c1", "user_id": "u1", "title": "Weather", "chat": chat, "archived": False}
    return outer | {"created_at": START_S, "updated_at": START_S + 9, "xNew": 1} | fields


def webui_output(*results: tuple[str, str]) -> list[dict[str, Any]]:
    calls = [
        {"type": "function_call", "call_id": id, "name": "weather", "arguments": '{"city":"Rome"}'}
        for id, _ in results
    ]
    outputs = [
        {
            "type": "function_call_output",
            "call_id": id,
            "output": [{"type": "input_text", "text": text}],
            "status": "completed",
        }
        for id, text in results
    ]
    return [*calls, *outputs]


# ChatGPT.


def gpt(
    id: str, parent: str, role: str, content: Any, second: float, **fields: Any
) -> dict[str, Any]:
    if isinstance(content, str):
        content = {"content_type": "text", "parts": [content]}
    author = fields.pop("author", {"role": role, "name": None, "metadata": {}})
    message = {
        "id": id,
        "author": author,
        "create_time": START_S + second,
        "update_time": None,
        "content": content,
        "status": "finished_successfully",
        "weight": 1.0,
        "metadata": {"xNew": id},
        "recipient": "all",
    }
    return {"id": id, "message": message | fields, "parent": parent, "children": []}


def gpt_tool(id: str, parent: str, name: str, text: str, second: float) -> dict[str, Any]:
    content = {"content_type": "execution_output", "text": text}
    author = {"role": "tool", "name": name, "metadata": {}}
    return gpt(id, parent, "tool", content, second, author=author)


def gpt_call(id: str, parent: str, tool: str, code: str, second: float) -> dict[str, Any]:
    content = {"content_type": "code", "language": "unknown", "text": code}
    return gpt(id, parent, "assistant", content, second, recipient=tool)


def gpt_chat(*nodes: dict[str, Any], current: str | None, **fields: Any) -> dict[str, Any]:
    root: dict[str, Any] = {"id": "root", "message": None, "parent": None, "children": []}
    mapping = {node["id"]: node for node in (root, *nodes)}
    for node in nodes:
        if node["parent"] in mapping:
            mapping[node["parent"]]["children"].append(node["id"])
    return {
        "title": "Sums",
        "create_time": START_S + 0.25,
        "update_time": START_S + 9.5,
        "mapping": mapping,
        "current_node": current,
        "conversation_id": "g1",
        "xNew": 1,
    } | fields


# LobeChat.


def lobe(id: str, parent: str | None, role: str, second: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": id,
        "role": role,
        "content": "",
        "parentId": parent,
        "topicId": "tpc",
        "createdAt": (START_S + second) * 1000,
        "xNew": {"kept": id},
    } | fields


def lobe_tools(*ids: str) -> list[dict[str, Any]]:
    return [
        {
            "id": id,
            "identifier": "weather",
            "apiName": "getWeather",
            "arguments": json.dumps({"city": id}),
            "type": "default",
        }
        for id in ids
    ]


def lobe_answer(id: str, parent: str, call: str, text: str, second: int) -> dict[str, Any]:
    return lobe(id, parent, "tool", second, tool_call_id=call, content=text, pluginState={})


# Chatbot UI.


def chatbot_row(number: int, role: str, text: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"row-{number}",
        "chat_id": "77e",
        "user_id": "u",
        "role": role,
        "content": text,
        "sequence_number": number,
        "model": "gpt-4o",
        "image_paths": [],
        "created_at": f"2026-01-01T00:00:{number:02}Z",
    } | fields


# Jan.


def jan(id: str, role: str, second: int, *parts: Any, **fields: Any) -> dict[str, Any]:
    content = [
        {"type": "text", "text": {"value": part, "annotations": []}}
        if isinstance(part, str)
        else part
        for part in parts
    ]
    return {
        "id": id,
        "object": "thread.message",
        "thread_id": "t1",
        "role": role,
        "status": "ready",
        "type": "text",
        "content": content,
        "created_at": (START_S + second) * 1000,
        "completed_at": (START_S + second) * 1000 + 500,
        "xNew": {"kept": id},
    } | fields


def jan_reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "text": {"value": text, "annotations": []}}


def jan_call(id: str, output: Any = "found") -> dict[str, Any]:
    call = {"type": "tool_call", "tool_call_id": id, "tool_name": "search", "input": {"q": "x"}}
    return call if output is None else call | {"output": output}


def jan_thread(**fields: Any) -> bytes:
    assistant = {"assistant_id": "jan", "model": {"id": "llama"}, "instructions": "Be brief."}
    thread = {
        "id": "t1",
        "object": "thread",
        "title": "Search",
        "assistants": [assistant],
        "created": START_S,
        "updated": START_S + 9,
        "metadata": {"xNew": 1},
    }
    return json.dumps(thread | fields, indent=2).encode()


def jan_lines(*messages: dict[str, Any]) -> bytes:
    return b"".join(dumped(message) + b"\n" for message in messages)


def linked(parent: str | None, child: str | None = None) -> dict[str, Any]:
    return {"metadata": {"parentId": parent, "activeChildId": child}}


# MiniSearch.

RUN = "1767225600000-k3j9x0abc"


def mini(id: int, role: str, text: str, run: str = RUN) -> dict[str, Any]:
    row = {"id": id, "role": role, "content": text, "conversationId": run, "xNew": id}
    return row | {"timestamp": (START_S + id) * 1000}


# NeuroLink.


def neuro(id: str, role: str, content: str = "", **fields: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, "timestamp": iso(1), "xNew": id} | fields


def neurolink(*messages: dict[str, Any], **fields: Any) -> bytes:
    session = {
        "id": "uuid",
        "title": "Files",
        "sessionId": "s1",
        "userId": "u1",
        "createdAt": iso(0),
        "updatedAt": iso(9),
        "summarizedUpToMessageId": "m1",
        "summarizedMessage": "They read files.",
        "tokenThreshold": 100000,
        "lastTokenCount": 81234,
        "messages": messages,
    }
    return dumped(session | fields)

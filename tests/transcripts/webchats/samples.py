"""Small files of each chat application's format, written after its description, none recorded.

Every one holds two or more turns, fields that no reader knows (``xNew``), and what its format
has of branches, calls and summaries.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from llmsession.transcripts import Files

__all__ = ["SAMPLES", "Sample", "as_sample", "documents"]

Sample: TypeAlias = bytes | Files

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


LIBRECHAT = librechat(
    libre("a", None, user=True, second=0, text="hi"),
    libre("b", "a", user=False, second=1, content=[{"type": "text", "text": "hello"}]),
    libre("c", "b", user=True, second=2, text="weather in Rome?"),
    libre(
        "d", "c", user=False, second=3, model="gpt-4o",
        content=[
            {"type": "think", "think": "look it up"},
            {"type": "text", "text": {"value": "Looking."}},
            libre_call("call_1"),
            libre_call("call_2", "rain"),
            {"type": "text", "text": "18 degrees and rain."},
        ],
    ),
    libre("c2", "b", user=True, second=1, text="tell a joke"),
    libre("d2", "c2", user=False, second=2, text="no"),
)  # fmt: skip


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


OPEN_WEBUI = dumped(
    [
        webui_chat(
            webui("m1", None, "user", 0, content="weather?", models=["gpt-4o"]),
            webui(
                "m2", "m1", "assistant", 1, content="rain", model="gpt-4o", done=True,
                usage={"input_tokens": 10, "output_tokens": 3},
                output=[
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                    *webui_output(("f1", "18"), ("f2", "rain")),
                    {"type": "message", "role": "assistant",
                     "content": [{"type": "output_text", "text": "rain"}]},
                ],
            ),
            webui("m3", "m2", "user", 2, content="and now?", contextSummary="They ask of rain."),
            webui("m4", "m3", "assistant", 3, content="sun", done=True),
            webui("m5", "m3", "assistant", 4, content="still rain", done=True),
            current="m4",
        ),
        webui_chat(
            webui("n1", None, "user", 5, content="hi"),
            webui("n2", "n1", "assistant", 6, content="hello", done=True),
            current="n2", id="c2", title="Greeting",
        ),
    ]
)  # fmt: skip


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


CHATGPT = dumped(
    [
        gpt_chat(
            gpt("s", "root", "system", "You are ChatGPT.", 0,
                metadata={"is_visually_hidden_from_conversation": True}),
            gpt("u1", "s", "user", "what is 2+2?", 1.5),
            gpt_call("c1", "u1", "python", "print(2+2)", 2.5),
            gpt_tool("t1", "c1", "python", "4", 3.5),
            gpt("a1", "t1", "assistant", "It is 4.", 4.5, metadata={"model_slug": "gpt-4o"}),
            gpt("u2", "a1", "user",
                {"content_type": "multimodal_text",
                 "parts": [{"content_type": "image_asset_pointer", "asset_pointer": "x"}, "and?"]},
                5.5),
            gpt("a2", "u2", "assistant", "Nothing.", 6.5),
            gpt("a3", "u2", "assistant", "A cat.", 7.5),
            current="a3",
        )
    ]
)  # fmt: skip


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


LOBE_ROWS = [
    lobe("msg-1", None, "user", 0, content="weather?"),
    lobe("msg-2", "msg-1", "assistant", 1, content="Let me check.", tools=lobe_tools("sf", "bj"),
         metadata={"totalInputTokens": 28, "totalOutputTokens": 45, "cost": 0.0002}),
    lobe_answer("msg-3", "msg-2", "sf", '{"temperature": 18}', 2),
    lobe_answer("msg-4", "msg-2", "bj", '{"temperature": 12}', 3),
    lobe("msg-5", "msg-3", "assistant", 4, content="18 and 12.", model="gpt-4o", provider="openai"),
    lobe("msg-6", "msg-5", "user", 5, content="thanks"),
    lobe("msg-7", "msg-6", "assistant", 6, content="welcome",
         reasoning={"content": "polite", "duration": 5, "signature": "sig"}),
    lobe("msg-8", "msg-5", "user", 7, content="other question"),
    lobe("msg-9", "msg-8", "assistant", 8, content="other answer"),
]  # fmt: skip
LOBECHAT = dumped(
    {
        "messages": LOBE_ROWS,
        "topics": [{"id": "tpc", "title": "Weather", "historySummary": "rain", "favorite": True}],
    }
)


# Chatbot UI.

CHATBOT_UI = dumped(
    {
        "version": 4,
        "history": [
            {
                "id": "7c9f",
                "name": "Title",
                "messages": [
                    {"role": "user", "content": "hi", "xNew": 1},
                    {"role": "assistant", "content": "hello"},
                    {"role": "user", "content": "bye"},
                    {"role": "assistant", "content": "bye"},
                ],
                "model": {"id": "gpt-3.5-turbo", "name": "GPT-3.5", "maxLength": 12000},
                "prompt": "You are kind.",
                "temperature": 0.5,
                "folderId": "f1",
                "xNew": 1,
            },
            {"id": "8d", "name": "Two", "messages": [{"role": "user", "content": "?"}]},
        ],
        "folders": [{"id": "f1", "name": "Folder", "type": "chat"}],
        "prompts": [{"id": "p1"}],
    }
)


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


CHATBOT_UI_ROWS = dumped(
    {
        "chats": [{"id": "77e", "name": "Chat", "prompt": "You are kind.", "context_length": 4096}],
        "messages": [
            chatbot_row(1, "assistant", "Hi!"),
            chatbot_row(0, "user", "hello", xNew=1),
            chatbot_row(3, "assistant", "Fine."),
            chatbot_row(2, "user", "how?"),
        ],
    }
)


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


JAN: dict[str, bytes] = {
    "threads/t1/thread.json": jan_thread(),
    "threads/t1/messages.jsonl": jan_lines(
        jan("m1", "user", 0, "find x", **linked(None, "m2")),
        jan("m2", "assistant", 1, jan_reasoning("hm"), jan_call("k1"), jan_call("k2", {"n": 1}),
            "There it is.", **linked("m1", "m3")),
        jan("m3", "user", 2, "more", **linked("m2", "m4")),
        jan("m4", "assistant", 3, "No more.", **linked("m3")),
        jan("m5", "user", 4, "other", **linked("m2", "m6")),
        jan("m6", "assistant", 5, "Also no.", **linked("m5")),
    ),
}  # fmt: skip


# MiniSearch.

RUN = "1767225600000-k3j9x0abc"


def mini(id: int, role: str, text: str, run: str = RUN) -> dict[str, Any]:
    row = {"id": id, "role": role, "content": text, "conversationId": run, "xNew": id}
    return row | {"timestamp": (START_S + id) * 1000}


MINISEARCH = dumped(
    {
        "searches": [
            {
                "id": 1,
                "searchRunId": RUN,
                "query": "what is rain",
                "timestamp": START_S * 1000,
                "pinned": True,
                "source": "user",
                "textResults": {"type": "text", "items": [{"title": "t", "url": "u"}]},
            }
        ],
        "llmResponses": [
            {"searchRunId": RUN, "prompt": "p", "response": "water", "model": "m", "xNew": 1}
        ],
        "chatHistory": [
            mini(3, "user", "and snow?"),
            mini(1, "user", "what is rain"),
            mini(2, "assistant", "water"),
            mini(4, "assistant", "cold water"),
        ],
    }
)


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


NEUROLINK = neurolink(
    neuro("m1", "user", "read a and b"),
    neuro("m2", "tool_call", tool="readFile", args={"path": "a"}),
    neuro("m3", "tool_call", tool="readFile", args={"path": "b"}),
    neuro("m4", "tool_result", "A", tool="readFile", result={"text": "A"}),
    neuro("m5", "tool_result", "B", tool="readFile", metadata={"originalSize": 99999}),
    neuro("m6", "assistant", "A and B", metadata={"thoughtSignature": "x"}),
    neuro("m7", "user", "thanks"),
    neuro("m8", "assistant", "welcome"),
)


# ChainReview.

CHAINREVIEW = dumped(
    {
        "id": "r1",
        "createdAt": iso(0),
        "updatedAt": iso(9),
        "repoPath": "/repo",
        "apiHistory": [
            {"role": "user", "content": "review"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"p": "a"}},
                    {"type": "tool_use", "id": "toolu_2", "name": "read", "input": {"p": "b"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "A"},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "B"},
                ],
                "xNew": 1,
            },
            {"role": "assistant", "content": "Fine."},
        ],
        "condensedSummary": "A review.",
        "tokenCount": 1234,
        "xNew": 1,
    }
)

SAMPLES: dict[str, Sample] = {
    "librechat": LIBRECHAT,
    "open-webui": OPEN_WEBUI,
    "chatgpt": CHATGPT,
    "lobechat": LOBECHAT,
    "chatbot-ui": CHATBOT_UI,
    "chatbot-ui-rows": CHATBOT_UI_ROWS,
    "jan": JAN,
    "minisearch": MINISEARCH,
    "neurolink": NEUROLINK,
    "chainreview": CHAINREVIEW,
}


def documents(sample: Sample) -> dict[str, bytes]:
    """The files of *sample*, each with a name."""
    return {"": sample} if isinstance(sample, bytes) else dict(sample)


def as_sample(sample: Sample, name: str, raw: bytes) -> Sample:
    """*sample* with *raw* as its file *name*."""
    return raw if isinstance(sample, bytes) else {**sample, name: raw}

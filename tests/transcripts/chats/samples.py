"""A small file of each chat application's format, none recorded.

Every one holds two or more turns, fields that no reader knows (``xNew``), and what its format
has of branches, calls and summaries.
"""

from __future__ import annotations

from typing import TypeAlias

from llmsession.transcripts import Files
from tests.transcripts.chats.records import (
    RUN,
    START_S,
    chatbot_row,
    dumped,
    gpt,
    gpt_call,
    gpt_chat,
    gpt_tool,
    iso,
    jan,
    jan_call,
    jan_lines,
    jan_reasoning,
    jan_thread,
    libre,
    libre_call,
    librechat,
    linked,
    lobe,
    lobe_answer,
    lobe_tools,
    mini,
    neuro,
    neurolink,
    webui,
    webui_chat,
    webui_output,
)

Sample: TypeAlias = bytes | Files


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

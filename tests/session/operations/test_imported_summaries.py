"""A summary in a file is the beginning of the imported session's context."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession import SessionConfig, Tool
from llmsession.compaction.view.summary_wording import introduced
from llmsession.transcripts import Conversation, read, read_own, write, write_own
from llmsession.turns import records as r
from tests.session.actors import Quick, same_as_its_log, stage
from tests.session.operations.test_import_export import CONFIG, message, result, talk, use
from tests.transcripts.summaries import KEPT, SUMMARY

SHOWN = introduced(SUMMARY)
# Here: a database is read with calls that an event loop must not make.
READ = {name: read(kept.files)[kept.place] for name, kept in KEPT.items()}


def said(request: Any) -> list[str]:
    return [message.text for message in request.messages]


@pytest.mark.parametrize("name", KEPT)
async def test_it_is_shown_and_sent_in_place_of_what_it_stands_for(name: str) -> None:
    kept = KEPT[name]
    conversation = READ[name]
    async with stage(["next"]) as on:
        session = await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        assert [message.text for message in session.conversation()] == kept.said
        assert SUMMARY in session.summary()
        shown = session.context()
        assert SHOWN in shown.messages[0].text
        turn = await session.send("go on")
        await turn.text()
        sent = on.provider.requests[-1]
        texts = "\n".join(said(sent))
        assert texts.startswith(SHOWN)
        assert texts.endswith("go on")
        for index, text in enumerate(kept.said):
            assert (text in texts.removeprefix(SHOWN)) == (index >= kept.upto), text
        await same_as_its_log(on, session)


@pytest.mark.parametrize("name", KEPT)
async def test_it_survives_an_export_and_an_import(name: str) -> None:
    kept = KEPT[name]
    conversation = READ[name]
    async with stage(["next"]) as on:
        await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        exported = await on.manager.export_conversation("new")
        assert (exported.summary, exported.summary_upto) == (SUMMARY, kept.upto)
        again = read_own(write_own(exported))
        session = await on.manager.import_conversation(again, CONFIG, session_id="again")
        assert session.context().messages[0].text.startswith(SHOWN)


@pytest.mark.parametrize("format", ["codex", "pi", "gemini-cli"])
@pytest.mark.parametrize("name", KEPT)
async def test_an_export_to_any_format_holds_all_that_was_said(name: str, format: str) -> None:
    async with stage() as on:
        await on.manager.import_conversation(READ[name], CONFIG, session_id="new")
        exported = await on.manager.export_conversation("new")
    files = write([exported], format)
    (again,) = read(files, format)
    assert [message.text for message in again.messages] == KEPT[name].said
    if format == "codex" and exported.summary_upto:
        assert (again.summary, again.summary_upto) == (SUMMARY, exported.summary_upto)
    assert not [note for note in again.notes if note.what == "unknown_type"]


async def test_a_rewind_to_before_it_shows_the_history_again() -> None:
    conversation = msgspec.structs.replace(READ["open webui"], summary_upto=4)
    async with stage(["next", "other"]) as on:
        session = await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        await session.rewind("u2")
        assert session.context().messages[0].text.startswith(SHOWN)
        await session.rewind("u1")
        assert SUMMARY not in str(session.context())
        exported = await on.manager.export_conversation("new")
        assert (exported.summary, exported.summary_upto) == ("", 0)


async def test_one_whose_messages_are_gone_stays_in_front_after_any_rewind() -> None:
    conversation = READ["neurolink, as a message in place of others"]
    async with stage(["next"]) as on:
        session = await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        await session.rewind("u1")
        await (await session.send("again")).text()
        assert said(on.provider.requests[-1])[0].startswith(SHOWN)


async def test_a_file_that_begins_with_a_summary_as_a_message_shows_it_once() -> None:
    rows = [
        {"type": "user", "uuid": "a", "sessionId": "s1", "isCompactSummary": True,
         "message": {"role": "user", "content": SUMMARY}},
        {"type": "assistant", "uuid": "b", "parentUuid": "a", "sessionId": "s1",
         "message": {"id": "m", "role": "assistant", "model": "x",
                     "content": [{"type": "text", "text": "Go on."}]}},
    ]  # fmt: skip
    (conversation,) = read(b"\n".join(map(msgspec.json.encode, rows)), "claude-code")
    async with stage(["next"]) as on:
        session = await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        texts = [message.text for message in session.context().messages]
        assert texts == [SUMMARY, "Go on."]
        assert SUMMARY in session.summary()


async def test_the_log_says_where_it_comes_from() -> None:
    conversation = READ["pi"]
    async with stage() as on:
        await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        applied = [x for x in await on.log("new") if isinstance(x, r.CompactionApplied)]
        assert [(x.policy, x.trigger) for x in applied] == [("imported", "caller")]
        assert (
            applied[0].reason == "the summary of the first 2 messages, from a file of the format pi"
        )
        assert applied[0].prefix_summary == r.PrefixSummary(2, SHOWN, "caller")


async def test_no_call_is_cut_off_from_its_result_by_it() -> None:
    whole = talk(
        message(1, "user", "go"), message(1, "assistant", use("a")),
        message(1, "user", result("a"), n=1), message(1, "assistant", "done", n=1),
    )  # fmt: skip
    shown = {1: 1, 2: 1, 3: 3, 4: 4}
    for count, upto in shown.items():
        conversation = msgspec.structs.replace(whole, summary=SUMMARY, summary_upto=count)
        async with stage(["next"]) as on:
            await on.manager.import_conversation(conversation, CONFIG, session_id="new")
            applied = [x for x in await on.log("new") if isinstance(x, r.CompactionApplied)]
            assert [x.prefix_summary.upto for x in applied if x.prefix_summary] == [upto]


async def test_it_stands_for_the_same_messages_where_the_import_repairs_those_before() -> None:
    # The first turn has no user message and gets one; the second is empty and left out.
    conversation = msgspec.structs.replace(
        talk(
            message(1, "assistant", "One."), message(2, "user"), message(3, "user", "three?"),
            message(3, "assistant", "Three."),
        ),
        summary=SUMMARY, summary_upto=2,
    )  # fmt: skip
    async with stage(["next"]) as on:
        session = await on.manager.import_conversation(conversation, CONFIG, session_id="new")
        assert len(session.conversation()) == 4
        texts = [message.text for message in session.context().messages]
        assert "three?" in texts[0]
        assert "One." not in str(texts)


async def test_one_that_is_too_long_is_shortened_and_the_source_has_it_whole() -> None:
    long = "A fact that matters. " * 10_000
    conversation = msgspec.structs.replace(READ["codex"], summary=long)
    config = SessionConfig(model="m", window_tokens=20_000, max_tokens=2_000, tools=CONFIG.tools)
    async with stage(["next"]) as on:
        session = await on.manager.import_conversation(conversation, config, session_id="new")
        created = (await on.log("new"))[0]
        assert isinstance(created, r.SessionCreated)
        assert created.source is not None
        assert created.source.summary == long
        assert any("shortened, because" in line for line in created.source.repairs)
        await (await session.send("go on")).text()
        assert session.status().context_tokens < 12_000


async def test_each_branch_of_a_tree_has_its_own() -> None:
    tool = Tool(name="t", run=Quick())
    raw = KEPT["open webui"].files
    assert isinstance(raw, bytes)
    chats = msgspec.json.decode(raw)
    messages = chats[0]["chat"]["history"]["messages"]
    messages["b4"] = {**messages["m4"], "id": "b4", "content": "else?", "childrenIds": ["b5"]}
    messages["b5"] = {**messages["m5"], "id": "b5", "parentId": "b4", "content": "Else."}
    messages["m3"]["childrenIds"] = ["m4", "b4"]
    messages["m4"]["contextSummary"] = "Later."
    conversations = read(msgspec.json.encode(chats))
    placed = [(each.summary, each.summary_upto) for each in conversations]
    assert placed == [("Later.", 4), (SUMMARY, 2)]
    async with stage() as on:
        config = SessionConfig(model="m", tools=[tool])
        ids = await on.manager.import_conversations(conversations, config)
        for id, (text, upto) in zip(ids, placed, strict=True):
            exported: Conversation = await on.manager.export_conversation(id)
            assert (exported.summary, exported.summary_upto) == (text, upto)

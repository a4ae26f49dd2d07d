"""Lists of sessions: their titles, and which of them are archived."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from llmsession import InvalidInput, MemoryStore, SessionConfig, SessionFilter, SqliteStore
from llmsession.session.values.labels import title_from
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.transcripts import Conversation
from llmsession.transcripts.own import read_own, write_own
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from tests.session.actors import Stage, stage

CONFIG = SessionConfig(model="m")
LONG = "please look at the file that holds the settings of the build and tell me what it does"


async def titles(on: Stage, archived: bool | None = False) -> dict[str, str]:
    rows = await on.manager.list(titles=True, archived=archived)
    return {row.session: row.title for row in rows}


def conversation(**fields: object) -> Conversation:
    message = Message(id="m1", session="x", turn=1, role="user", body=encode_blocks("words said"))
    whole = Conversation(id="i", format="own", messages=(message,))
    return msgspec.structs.replace(whole, **fields)


def test_a_title_is_on_one_line_and_cut_at_a_word() -> None:
    assert title_from("  two\nlines ") == "two lines"
    assert title_from(LONG) == "please look at the file that holds the settings of the…"
    assert title_from("x" * 100) == "x" * 59 + "…"
    assert title_from("") == ""
    chance = random.Random(3)
    for _ in range(300):
        text = "".join(chance.choice("ab \n\u4e00") for _ in range(chance.randint(0, 200)))
        title = title_from(text)
        assert len(title) <= 60
        assert " ".join(text.split()).startswith(title.rstrip("…"))


async def test_a_session_has_the_title_that_it_was_given_or_that_of_its_first_request() -> None:
    async with stage(["a", "b"]) as on:
        assert await titles(on) == {"s": ""}
        await on.say(LONG, "more")
        assert await titles(on) == {"s": title_from(LONG)} == {"s": on.session.title}
        await on.session.label({"user": "7"}, title=" My\ntitle ")
        await on.session.label({"user": "8"})
        assert await titles(on) == {"s": "My title"} == {"s": on.session.title}
        assert on.session.labels == {"user": "8", "llmsession.title": "My title"}
        await on.session.label(title="")
        assert on.session.labels == {"user": "8"}
        assert await titles(on) == {"s": title_from(LONG)}
        assert [row.title for row in await on.manager.list()] == [""]  # nobody asked


async def test_what_is_forgotten_is_no_title() -> None:
    async with stage(["a", "b"]) as on:
        await on.say("secret", "other")
        await on.session.forget(2)
        assert await titles(on) == {"s": "other"} == {"s": on.session.title}
        await on.session.clear(purge=True)
        assert await titles(on) == {"s": ""} == {"s": on.session.title}


async def test_an_archived_session_is_listed_if_it_is_asked_for_and_works_as_before() -> None:
    async with stage(["a", "b"]) as on:
        await on.say("hello")
        await on.manager.create(CONFIG, session_id="other")
        await on.session.label(archived=True)
        assert set(await titles(on)) == {"other"}
        assert set(await titles(on, archived=True)) == {"s"}
        assert set(await titles(on, archived=None)) == {"s", "other"}
        assert await on.say("again") == "b"
        fork = await on.session.fork(session_id="f")
        assert fork.labels == {}
        await on.session.label(archived=False)
        assert set(await titles(on)) == {"f", "other", "s"}
        del fork


async def test_a_fork_with_labels_of_its_own_has_no_title_of_its_parents() -> None:
    async with stage(["a"]) as on:
        await on.say("hello")
        await on.session.label({"user": "7"}, title="mine", archived=True)
        same = await on.session.fork(session_id="f")
        own = await on.session.fork(session_id="g", labels={"user": "8"})
        assert same.labels == {"user": "7", "llmsession.title": "mine"}
        assert own.labels == {"user": "8"}
        assert own.title == "hello"
        del same, own


async def test_a_command_id_of_a_label_is_one_of_its_title_too() -> None:
    async with stage([]) as on:
        await on.session.label(title="one", command_id="k")
        await on.session.label(title="two")
        await on.session.label(title="one", command_id="k")  # it was done: nothing happens
        assert on.session.title == "two"


@pytest.mark.parametrize(
    "wrong", [{}, {"title": "x" * 201}, {"title": 3}, {"archived": "no"}, {"labels": "x"}]
)
async def test_a_label_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    async with stage([]) as on:
        with pytest.raises(InvalidInput):
            await on.session.label(**wrong)  # type: ignore[arg-type]  # what is tested


async def test_an_imported_conversation_keeps_its_title_and_that_it_is_archived() -> None:
    async with stage([]) as on:
        whole = conversation(title="The title there", archived=True)
        await on.manager.import_conversation(whole, CONFIG)
        assert await titles(on, archived=True) == {"i": "The title there"}
        exported = await on.manager.export_conversation("i")
        assert (exported.title, exported.archived) == ("The title there", True)
        assert exported.labels == {}
        assert read_own(write_own(exported)) == exported
        session = await on.manager.open("i")
        await session.label(title="mine", archived=False)
        exported = await on.manager.export_conversation("i")
        assert (exported.title, exported.archived) == ("mine", False)
        del session


@pytest.mark.real_time
async def test_a_search_finds_titles_that_were_given_and_those_of_imports(tmp_path: Path) -> None:
    provider = ScriptedProvider(lambda request, tag: say("fine"))
    async with stage(provider=provider, store=SqliteStore(tmp_path / "s.db")) as on:
        await on.say("hello")
        assert (await on.manager.search("zebra")).hits == ()
        await on.session.label(title="About the zebra")
        await on.manager.import_conversation(conversation(title="Zebra and words"), CONFIG)
        imported, labelled = (await on.manager.search("zebra")).hits
        assert (imported.session, imported.messages, imported.in_title) == ("i", 0, True)
        assert labelled.excerpt == "About the zebra"
        (hit,) = (await on.manager.search("words")).hits
        assert (hit.messages, hit.in_title) == (1, True)
        await on.session.label(title="")
        assert [hit.session for hit in (await on.manager.search("zebra")).hits] == ["i"]


async def test_a_filter_may_say_which_label_a_session_must_not_have() -> None:
    store = MemoryStore()
    async with stage([], store=store) as on:
        await on.manager.create(CONFIG, session_id="t", labels={"user": "7"})
        rows = await on.manager.list(filter=SessionFilter(without=("user",)))
        assert [row.session for row in rows] == ["s"]
        with pytest.raises(InvalidInput):
            await on.manager.list(filter=SessionFilter(without=("x",) * 65))

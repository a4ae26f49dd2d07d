from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import detect
from llmsession.transcripts.chats.minisearch import read_minisearch
from tests.transcripts.chats.records import RUN, START_S, dumped, mini
from tests.transcripts.chats.samples import MINISEARCH
from tests.transcripts.shapes import ids, said

SEARCH = {"id": 1, "searchRunId": RUN, "query": "what is rain", "timestamp": START_S * 1000}
ANSWER = {"searchRunId": RUN, "response": "water", "model": "m", "timestamp": START_S * 1000 + 1}


def tables(**rows: list[dict[str, Any]]) -> bytes:
    return dumped({"searches": [], "llmResponses": [], "chatHistory": []} | rows)


def test_the_conversations_id_is_that_of_the_search_run_and_rows_stand_by_time() -> None:
    (conversation,) = read_minisearch(MINISEARCH, strict=True)
    assert (conversation.id, conversation.title) == (RUN, "what is rain")
    assert ids(conversation) == ["1", "2", "3", "4"]
    assert said(conversation) == ["what is rain", "water", "and snow?", "cold water"]


def test_a_dump_of_dexie_is_the_same_database() -> None:
    rows = [{"tableName": name, "rows": rows} for name, rows in json.loads(MINISEARCH).items()]
    dump = dumped({"formatName": "dexie", "formatVersion": 1, "data": {"data": rows}})
    assert detect(dump) == "minisearch"
    assert read_minisearch(dump)[0].messages == read_minisearch(MINISEARCH)[0].messages


def test_two_runs_are_two_conversations_though_they_began_alike() -> None:
    rows = [mini(1, "user", "same"), mini(2, "user", "same", "other-run")]
    assert [each.id for each in read_minisearch(tables(chatHistory=rows))] == [RUN, "other-run"]


def test_without_a_history_the_searchs_own_chat_counts() -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (conversation,) = read_minisearch(tables(searches=[{**SEARCH, "chatMessages": chat}]))
    assert said(conversation) == ["q", "a"]


def test_without_any_chat_the_query_and_its_answer_are_the_conversation() -> None:
    (conversation,) = read_minisearch(tables(searches=[SEARCH], llmResponses=[ANSWER]))
    assert said(conversation) == ["what is rain", "water"]
    assert conversation.messages[1].model == "m"

from __future__ import annotations

import json
from typing import Any

from llmsession.transcripts import detect
from tests.transcripts.chats.records import RUN, START_S, dumped, mini
from tests.transcripts.chats.samples import MINISEARCH
from tests.transcripts.shapes import Case, case, check, every

SEARCH = {"id": 1, "searchRunId": RUN, "query": "what is rain", "timestamp": START_S * 1000}
ANSWER = {"searchRunId": RUN, "response": "water", "model": "m", "timestamp": START_S * 1000 + 1}
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
DEXIE_ROWS = [{"tableName": name, "rows": rows} for name, rows in json.loads(MINISEARCH).items()]
WHOLE: dict[str, Any] = {
    "id": RUN, "title": "what is rain", "ids": ["1", "2", "3", "4"],
    "said": ["what is rain", "water", "and snow?", "cold water"],
}  # fmt: skip


def tables(**rows: list[dict[str, Any]]) -> bytes:
    return dumped({"searches": [], "llmResponses": [], "chatHistory": []} | rows)


CASES = {
    "the conversations id is that of the search run and rows stand by time": case(
        MINISEARCH, **WHOLE
    ),
    "a dump of dexie is the same database": case(
        dumped({"formatName": "dexie", "formatVersion": 1, "data": {"data": DEXIE_ROWS}}), **WHOLE
    ),
    "two runs are two conversations though they began alike": case(
        tables(chatHistory=[mini(1, "user", "same"), mini(2, "user", "same", "other-run")]),
        id=RUN, branches=[{"id": "other-run"}],
    ),
    "without a history the searchs own chat counts": case(
        tables(searches=[{**SEARCH, "chatMessages": CHAT}]), said=["q", "a"]
    ),
    "without any chat the query and its answer are the conversation": case(
        tables(searches=[SEARCH], llmResponses=[ANSWER]),
        said=["what is rain", "water"], models=[None, "m"],
    ),
}  # fmt: skip


@every(CASES)
def test_a_database_is_detected_and_read(case: Case) -> None:
    assert detect(case.raw) == "minisearch"
    check(case, "minisearch")

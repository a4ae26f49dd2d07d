"""Of every release the stores open, the recordings are read, and the clients are answered as they
were. ``releases/`` has a folder for each; the release process makes it."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from llmsession.store import SqliteStore
from llmsession.transport.v1.session_pb2 import Command, Envelope
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import decode_from_client, decode_from_server
from llmsession.turns import records as r
from llmsession.turns.request import Request
from tests.compatibility.__main__ import MAX_BYTES, RELEASES, make_artefacts
from tests.compatibility.conversations import differences, key_of, replay_calls, say
from tests.compatibility.stores import KEY, KINDS, summary_of

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

VERSIONS = sorted(folder.name for folder in RELEASES.iterdir() if folder.is_dir())
BODIES: dict[str, Any] = {w.tag_of(kind): w.body_type(kind) for kind in w.COMMANDS}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=VERSIONS)
def release(request: pytest.FixtureRequest) -> Path:
    return RELEASES / str(request.param)


def lines_of(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_there_is_a_release_and_none_of_its_files_is_large() -> None:
    assert VERSIONS
    for version in VERSIONS:
        files = {file.name: file.stat().st_size for file in (RELEASES / version).iterdir()}
        assert files.keys() == {
            "store.sqlite", "store-encrypted.sqlite", "store.json", "wire.jsonl", "grpc.jsonl",
            "records.jsonl",
        }  # fmt: skip
        assert max(files.values()) <= MAX_BYTES


# Stores.


@pytest.mark.parametrize(("name", "key"), [("store.sqlite", None), ("store-encrypted.sqlite", KEY)])
async def test_a_store_of_an_earlier_release_is_opened_searched_exported_and_goes_on(
    release: Path, tmp_path: Path, name: str, key: bytes | None
) -> None:
    path = shutil.copy(release / name, tmp_path / name)
    with_kinds = await summary_of(lambda: SqliteStore(path, key=key))
    assert with_kinds == json.loads((release / "store.json").read_text("utf-8"))


async def test_a_record_of_an_earlier_release_keeps_all_that_it_says(release: Path) -> None:
    for line in (release / "records.jsonl").read_bytes().splitlines():
        again = r.encode_record(r.decode_record(line))
        assert differences(json.loads(line), json.loads(again)) == []


# The wire.


def test_every_recorded_frame_is_read(release: Path) -> None:
    asked: dict[int, str] = {}
    for line in lines_of(release / "wire.jsonl"):
        raw = msgspec.json.encode(line["frame"])
        if line["from"] == "client":
            message = decode_from_client(raw)
            asked[line["frame"].get("id")] = line["frame"]["type"]
            if isinstance(message, w.Error):
                assert "colour" in message.message  # the field that never was
            continue
        answer = decode_from_server(raw)
        if isinstance(answer, w.Reply):
            body = BODIES[asked[answer.id]]
            if body is not Request:  # a client only prints it
                msgspec.json.decode(answer.body, type=body)
        elif isinstance(answer, w.Event) and answer.seq:
            assert r.decode_record(bytes(answer.body)).seq == answer.seq


@pytest.mark.timeout(600)
async def test_a_client_of_an_earlier_release_reads_the_answers_of_this_one(
    release: Path, tmp_path: Path
) -> None:
    recorded = [line for line in lines_of(release / "wire.jsonl") if not line.get("made")]
    today = await say(recorded, tmp_path)
    answers = frames_by_key(today)
    wrong = []
    for key, frame in frames_by_key(recorded).items():
        if key in answers:
            wrong += differences(frame, answers[key], f"{key}")
        elif key[0] != "preview":  # a preview may be lost
            wrong.append(f"no {key}")
    assert wrong == []


def frames_by_key(lines: list[Any]) -> dict[Any, Any]:
    """The first frame of each key, of those that the service sent."""
    frames: dict[Any, Any] = {}
    for line in lines:
        if line["from"] == "server":
            frames.setdefault(key_of(line["frame"]), line["frame"])
    return frames


async def test_calls_over_grpc_of_an_earlier_release_are_answered_as_they_were(
    release: Path, tmp_path: Path
) -> None:
    recorded = lines_of(release / "grpc.jsonl")
    today = await replay_calls(recorded, tmp_path)
    for before, after in zip(recorded, today, strict=True):
        assert Command.FromString(base64.b64decode(before["request"])) is not None
        assert (after["method"], after["code"]) == (before["method"], before["code"])
        pairs = zip(before["answers"], after["answers"], strict=True)
        for then, now in pairs:
            assert differences(envelope(then), envelope(now)) == []


def envelope(encoded: str) -> dict[str, Any]:
    answer = Envelope.FromString(base64.b64decode(encoded))
    body = json.loads(answer.body or b"null")
    return {"kind": answer.kind, "session": answer.session, "turn": answer.turn, "body": body}


# Making them.


def test_what_a_release_leaves_is_made_the_same_again_and_misses_no_kind(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_artefacts(tmp_path / name)
    one, two = tmp_path / "one", tmp_path / "two"
    assert (one / "store.json").read_text("utf-8") == (two / "store.json").read_text("utf-8")
    assert sent(one) == sent(two)
    summary = json.loads((one / "store.json").read_text("utf-8"))
    kinds = Counter(kind for s in summary["sessions"].values() for kind in s["kinds"])
    assert kinds.keys() == KINDS == {record_kind(kind) for kind in get_args(r.Record)}
    assert not {session["why_damaged"] for session in summary["sessions"].values()} - {""}
    received = {line["frame"]["type"] for line in lines_of(one / "wire.jsonl")}
    types = {kind.__struct_config__.tag for kind in get_args(w.FromServer)}
    assert received >= types


def record_kind(kind: type[msgspec.Struct]) -> Any:
    return kind.__struct_config__.tag


def sent(folder: Path) -> list[Any]:
    lines: Iterator[Any] = iter(lines_of(folder / "wire.jsonl"))
    return [line["frame"] for line in lines if line["from"] == "client"]


# Comparing.


def test_a_field_that_goes_or_changes_its_type_is_a_difference_and_a_new_one_is_none() -> None:
    before = {"kind": "a", "n": 1, "list": [{"x": "one"}], "gone": 1, "none": None}
    after = {"kind": "b", "n": 2, "list": [{"x": 1, "y": 2}, {}], "new": 1, "none": "text"}
    assert differences(before, after) == [
        ".kind: 'a' became 'b'",
        ".list[0].x: 'one' became 1",
        ".gone: it is gone",
        ".none: None became 'text'",
    ]
    assert differences(before, {**before, "new": [1]}) == []
    assert differences([1, 2], [1]) != []
    assert differences({}, None) != []

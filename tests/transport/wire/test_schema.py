"""The JSON Schema and the tables of fields are those of the structs, and fit what is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmsession import MemoryStore, SessionConfig, SessionManager
from llmsession.testing import ScriptedProvider, say
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.schema import field_tables, wire_schema
from tests.cli.stores import run as run_command

ROOT = Path(__file__).resolve().parents[3]
V1 = ROOT / "llmsession" / "transport" / "v1"
SCHEMA = wire_schema()


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Is *value* as *schema* says? Knows the words that ours are made of."""
    if "$ref" in schema:
        return fits(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "anyOf" in schema:
        return any(fits(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return bool(value == schema["const"])
    kinds: dict[str, tuple[type, ...]] = {
        "object": (dict,), "array": (list,), "string": (str,), "integer": (int,),
        "number": (int, float), "boolean": (bool,), "null": (type(None),),
    }  # fmt: skip
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        return (
            all(name in value for name in schema["required"])
            and all(fits(value[name], known[name]) for name in value if name in known)
            and (schema.get("additionalProperties", True) is not False or {*value} <= {*known})
        )
    if isinstance(value, list) and "items" in schema and "prefixItems" not in schema:
        return all(fits(each, schema["items"]) for each in value)
    return True


def test_what_is_committed_is_read_from_the_structs() -> None:
    schema = msgspec.json.decode((V1 / "wire.schema.json").read_bytes())
    assert schema == SCHEMA, "llmsession schema > llmsession/transport/v1/wire.schema.json"
    page = (ROOT / "docs" / "reference" / "records.md").read_text("utf-8")
    assert page.rstrip() == field_tables().rstrip(), (
        "llmsession schema --markdown > docs/reference/records.md"
    )
    proto = ROOT / "proto" / "llmsession" / "v1" / "session.proto"
    assert (V1 / "session.proto").read_bytes() == proto.read_bytes(), f"cp {proto} {V1}"


async def test_every_record_and_status_of_a_session_fits_the_schema() -> None:
    store = MemoryStore()
    async with SessionManager(provider=ScriptedProvider([say("yes")]), store=store) as manager:
        session = await manager.create(SessionConfig(model="m"), labels={"a": "b"})
        turn = await session.send("hello")
        await turn.text()
        for value, name in (
            (await turn.outcome(), "answer.outcome"),
            (await session.read_status(), "answer.status"),
            (await session.read_usage(), "answer.usage"),
            (await manager.list(), "answer.list"),
        ):
            sent = msgspec.json.decode(msgspec.json.encode(value))
            assert fits(sent, SCHEMA["$defs"][name]), name
        records = [msgspec.json.decode(each.body) for each in await store.read(session.id)]
    assert len(records) >= 3
    for record in records:
        assert fits(record, SCHEMA["$defs"]["record"]), record
        assert not fits({**record, "kind": "nothing"}, SCHEMA["$defs"]["record"])


@pytest.mark.parametrize(
    ("frame", "is_sent"),
    [
        (w.Hello(versions=(2,)), True),
        (w.Send(id=1, session="s", content=msgspec.Raw(b'"hi"')), True),
        ({"type": "send", "id": 1, "session": "s"}, False),
        ({"type": "send", "id": 1, "session": "s", "content": "hi", "contents": 1}, False),
        ({"type": "nothing"}, False),
    ],
)
def test_a_frame_of_a_client_fits_or_does_not(frame: Any, is_sent: bool) -> None:
    value = frame if isinstance(frame, dict) else msgspec.json.decode(msgspec.json.encode(frame))
    assert fits(value, SCHEMA["$defs"]["fromClient"]) is is_sent


def test_the_command_prints_schema_tables_and_proto(capsys: pytest.CaptureFixture[str]) -> None:
    assert msgspec.json.decode(run_command(capsys, "schema").out) == SCHEMA
    assert run_command(capsys, "schema", "--markdown").out.startswith("# Records")
    assert "service SessionService" in run_command(capsys, "schema", "--proto").out
    assert run_command(capsys, "schema", "--proto", "--markdown").code == 2

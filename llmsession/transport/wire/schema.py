"""The wire as data, read from its structs: a JSON Schema, and the tables of fields in the docs.

``llmsession schema`` prints the first, ``llmsession schema --markdown`` the second. Both are
committed, in ``llmsession/transport/v1`` and docs/reference/records.md, and a test keeps them
current.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, get_args

from msgspec import inspect as m

from llmsession.session import (
    Closed,
    CompactionOutcome,
    InterruptOutcome,
    SessionStatus,
    SessionUsage,
    TurnOutcome,
)
from llmsession.turns import previews as p
from llmsession.turns import records as r

from . import messages as w

__all__ = ["field_tables", "wire_schema"]

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
_FROM_CLIENT = (w.Hello, w.Ping, w.Pong, w.Goodbye)
RECORDS: tuple[type, ...] = get_args(r.Record)
PREVIEWS: tuple[type, ...] = (*get_args(p.Preview), p.StepRestarted, p.ToolUse)
ANSWERS: tuple[type, ...] = (
    w.Opened, w.Accepted, w.Subscribed, w.Page, TurnOutcome, InterruptOutcome, CompactionOutcome,
    Closed, SessionStatus, SessionUsage, w.ServiceSnapshot,
)  # fmt: skip

PAGE = """\
# Records, answers and status

What the bodies of [the protocol](wire.md) hold, field by field. This page is read from the
code: `llmsession schema --markdown > docs/reference/records.md`. `llmsession schema` prints a JSON
Schema of every frame, for generators of code; `llmsession schema --proto` prints the gRPC service.
Both are files of the package, in `llmsession/transport/v1`.

A record stands in the log, and in the `body` of an event: a JSON object whose `kind` is the title
of its table. Readers ignore fields that they do not know. A field that may be left out has its
default then: 0, false, null or empty, if the text says nothing else.
"""
_SIMPLE: dict[type, dict[str, Any]] = {
    m.AnyType: {},
    m.RawType: {},
    m.NoneType: {"type": "null"},
    m.BoolType: {"type": "boolean"},
    m.IntType: {"type": "integer"},
    m.FloatType: {"type": "number"},
    m.StrType: {"type": "string"},
    m.BytesType: {"type": "string", "contentEncoding": "base64"},
}


def wire_schema() -> dict[str, Any]:
    """The JSON Schema of every frame: ``fromClient`` and ``fromServer`` under ``$defs``, with the
    records, previews and answers that stand in their bodies."""
    definitions = _Definitions()
    sent: tuple[type, ...] = (*_FROM_CLIENT, *w.COMMANDS)
    received: tuple[type, ...] = get_args(w.FromServer)
    for name, kinds in (
        ("fromClient", sent), ("fromServer", received), ("record", RECORDS), ("preview", PREVIEWS)
    ):  # fmt: skip
        definitions.of[name] = {"anyOf": [definitions.reference(kind) for kind in kinds]}
    for kind in ANSWERS:
        definitions.reference(kind)
    for command in w.COMMANDS:
        body = definitions.schema(m.type_info(w.body_type(command)))
        definitions.of[f"answer.{w.tag_of(command)}"] = body
    return {
        "$schema": SCHEMA_ID,
        "title": f"Frames of llmsession, version {w.VERSION}",
        "anyOf": [{"$ref": "#/$defs/fromClient"}, {"$ref": "#/$defs/fromServer"}],
        "$defs": dict(sorted(definitions.of.items())),
    }


class _Definitions:
    """Schemas by name; a struct is one definition, however often it is used."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        self._names: dict[type, str] = {}

    def reference(self, struct: type) -> dict[str, Any]:
        """A reference to the schema of *struct*, which is made if it is not there."""
        name = self._names.get(struct)
        if name is None:
            name = struct.__name__
            while name in self.of:  # two structs of one name
                name = f"{struct.__module__.rpartition('.')[2]}.{name}"
            self._names[struct] = name
            self.of[name] = {}
            self.of[name] = self._struct(m.type_info(struct))
        return {"$ref": f"#/$defs/{name}"}

    def _struct(self, info: Any) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required = [field.encode_name for field in info.fields if field.required]
        if getattr(info, "tag_field", None) is not None:
            properties[info.tag_field] = {"const": info.tag}
            required.insert(0, info.tag_field)
        for field in info.fields:
            properties[field.encode_name] = self.schema(field.type)
        made: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
        description = _first_sentence(info.cls)
        if description:
            made["description"] = description
        if getattr(info, "forbid_unknown_fields", False):
            made["additionalProperties"] = False
        return made

    def schema(self, info: Any) -> dict[str, Any]:
        """The schema of a type that msgspec has inspected."""
        simple = _SIMPLE.get(type(info))
        if simple is not None:
            return dict(simple)
        match info:
            case m.NamedTupleType() | m.StructType(array_like=True):
                items = [self.schema(field.type) for field in info.fields]
                return {"type": "array", "prefixItems": items}
            case m.StructType() | m.DataclassType() | m.TypedDictType():
                return self.reference(info.cls)
            case m.UnionType():
                return {"anyOf": [self.schema(each) for each in info.types]}
            case m.LiteralType():
                return {"enum": list(info.values)}
            case m.EnumType():
                return {"enum": [each.value for each in info.cls]}
            case m.TupleType():
                items = [self.schema(each) for each in info.item_types]
                return {"type": "array", "prefixItems": items, "items": False}
            case m.DictType():
                return {"type": "object", "additionalProperties": self.schema(info.value_type)}
            case m.Metadata():
                return self.schema(info.type)
            case m.CollectionType():
                return {"type": "array", "items": self.schema(info.item_type)}
            case _:
                return {}


def field_tables() -> str:
    """The page of docs with the fields of every record, preview, answer and status."""
    return "\n".join(
        (
            PAGE,
            *_section("Records", RECORDS),
            *_section("Previews and calls", PREVIEWS),
            *_section("Answers, outcomes and status", ANSWERS),
            *_section("Values in them", _values((*RECORDS, *PREVIEWS, *ANSWERS))),
        )
    )


def _values(structs: Iterable[type]) -> list[type]:
    """The structs that fields of *structs* hold, and those in them, by name."""
    seen, waiting = set(structs), [m.type_info(struct) for struct in structs]
    found: list[type] = []
    while waiting:
        info = waiting.pop()
        if isinstance(info, m.StructType):
            if info.cls not in seen:
                seen.add(info.cls)
                found.append(info.cls)
            elif info.cls in found:
                continue
            waiting += [field.type for field in info.fields]
            seen.add(info.cls)
        waiting += [each for each in _parts(info) if not _is_known(each, seen)]
    return sorted(found, key=lambda struct: struct.__name__)


def _parts(info: Any) -> Sequence[Any]:
    many = [getattr(info, name, ()) for name in ("types", "item_types")]
    one = [getattr(info, name, None) for name in ("item_type", "value_type", "key_type")]
    return [*(each for group in many for each in group), *(each for each in one if each)]


def _is_known(info: Any, seen: set[type]) -> bool:
    return isinstance(info, m.StructType) and info.cls in seen


def _section(title: str, structs: Iterable[type]) -> Iterable[str]:
    yield f"## {title}\n"
    for struct in structs:
        info: Any = m.type_info(struct)
        name = f"`{info.tag}`" if getattr(info, "tag", None) is not None else f"`{struct.__name__}`"
        yield f"### {name}\n"
        description = " ".join((inspect.getdoc(struct) or "").split())
        if description and not description.startswith(f"{struct.__name__}("):
            yield f"{description}\n"
        if info.fields:
            texts = _field_texts(struct)
            yield "| field | type | | |\n| --- | --- | --- | --- |"
            for field in info.fields:
                need = "" if field.required else "may be left out"
                text = texts.get(field.name, "")
                yield f"| `{field.encode_name}` | {_type_text(field.type)} | {need} | {text} |"
            yield ""


def _field_texts(struct: type) -> dict[str, str]:
    """The docstrings below the fields of *struct* and of its bases, each on one line."""
    texts: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.partition(".")[0] != "llmsession":
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)  # the source of a class is a class
        for field, below in pairwise(definition.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(text.split()).replace("|", "\\|")
    return texts


def _type_text(info: Any) -> str:
    match info:
        case m.StructType():
            return f"`{info.tag if info.tag is not None else info.cls.__name__}`"
        case m.UnionType():
            return " or ".join(dict.fromkeys(_type_text(each) for each in info.types))
        case m.LiteralType():
            return " or ".join(f'`"{value}"`' for value in info.values)
        case m.EnumType():
            return " or ".join(f'`"{each.value}"`' for each in info.cls)
        case m.DictType():
            return f"object of {_type_text(info.value_type)}"
        case m.TupleType():
            return f"[{', '.join(map(_type_text, info.item_types))}]"
        case m.CollectionType():
            return f"list of {_type_text(info.item_type)}"
        case m.AnyType() | m.RawType():
            return "JSON"
        case _:
            return str(_SIMPLE.get(type(info), {}).get("type", "JSON"))


def _first_sentence(struct: type) -> str:
    text = " ".join((inspect.getdoc(struct) or "").split())
    return "" if text.startswith(f"{struct.__name__}(") else text.partition(". ")[0].rstrip(".")

"""Tools of functions: the definition that a model is told, and the arguments of a call."""

from __future__ import annotations

import enum
import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from llmsession import (
    InvalidConfig,
    InvalidInput,
    SessionConfig,
    SessionManager,
    Tool,
    ToolCallable,
    tool,
)
from llmsession.testing import ScriptedProvider
from llmsession.testing.scripted import call
from tests.session.actors import stage


@dataclass
class Place:
    city: str
    country: str = "FR"


class Size(TypedDict):
    width: int


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: Annotated[float, msgspec.Meta(ge=0)]


@tool
def forecast(
    place: Place,
    days: Annotated[int, "how many days from today"] = 3,
    *,
    units: Literal["C", "F"] = "C",
) -> str:
    """The weather of the next days."""
    assert isinstance(place, Place)
    return f"{days} days in {place.city} ({place.country}), in {units}"


def test_name_description_and_schema_come_from_the_function() -> None:
    assert (forecast.name, forecast.description) == (
        "forecast",
        "The weather of the next days.",
    )
    assert forecast.input_schema == {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "days": {"type": "integer", "description": "how many days from today", "default": 3},
            "units": {"enum": ["C", "F"], "default": "C"},
        },
        "required": ["place"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "title": "Place",
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "country": {"type": "string", "default": "FR"},
                },
                "required": ["city"],
            }
        },
    }


@pytest.mark.real_time
async def test_the_model_gets_the_definition_and_the_function_converted_arguments() -> None:
    script = [call("forecast", {"place": {"city": "Lyon"}, "units": "F"}, id="c"), "ok"]
    async with stage(script, tools=[forecast]) as on:
        await on.say("go")
        (definition,) = on.provider.requests[0].tools[:1]
        assert msgspec.json.decode(definition)["input_schema"] == forecast.input_schema
        (result,) = on.session.conversation()[2].tool_results
        assert (result.text, result.is_error or False) == ("3 days in Lyon (FR), in F", False)


async def test_arguments_that_do_not_fit_go_to_the_model_as_an_error_and_nothing_is_called() -> (
    None
):
    called: list[int] = []

    @tool(name="add", description="Adds.", deadline_s=5.0)
    async def plus(number: int) -> None:
        called.append(number)

    assert (plus.name, plus.description, plus.deadline_s) == ("add", "Adds.", 5.0)
    calls = call("add", {"number": "many"}, id="a") + call("add", {}, id="b")
    calls += call("add", {"number": 1, "other": 2}, id="c") + call("add", {"number": 7}, id="d")
    async with stage([calls, "ok"], tools=[plus]) as on:
        await on.say("go")
        results = on.session.conversation()[2].tool_results
        assert [bool(result.is_error) for result in results] == [True, True, True, False]
        assert "Expected `int`, got `str` - at `$.number`" in results[0].text
        assert "missing required field `number`" in results[1].text
        assert "unknown field `other`" in results[2].text
        assert called == [7]


def test_what_msgspec_can_read_is_converted() -> None:
    def takes(size: Size, colour: Colour, point: Point, by: dict[int, list[str]]) -> Any:
        return size, colour, point, by

    made = Tool.of(takes)
    assert made.run is not None
    given = {"size": {"width": 2}, "colour": "red", "point": {"x": 1}, "by": {"1": ["a"]}}
    assert made.run(**given) == ({"width": 2}, Colour.RED, Point(1.0), {1: ["a"]})
    with pytest.raises(InvalidInput, match=r"'takes' are invalid: .* `\$.point.x`"):
        made.run(**{**given, "point": {"x": -1}})


def test_a_default_is_the_functions_own_also_where_json_cannot_carry_it() -> None:
    missing = object()

    def takes(first: str, /, items: list[int] = [], marker: Any = missing) -> Any:  # noqa: B006
        return first, items, marker

    made = Tool.of(takes)
    assert made.run is not None
    assert made.run(first="a") == ("a", [], missing)
    assert "default" not in made.input_schema["properties"]["marker"]
    assert made.input_schema["properties"]["items"]["default"] == []


def test_methods_partials_and_objects_that_can_be_called_are_tools_too() -> None:
    class Shop:
        """A shop."""

        def stock(self, fruit: str) -> str:
            """How many are there."""
            return f"3 {fruit}"

        def __call__(self, fruit: str) -> str:
            """Buys one."""
            return f"a {fruit}"

    def joined(left: str, right: str) -> str:
        return left + right

    shop = Shop()
    for function, name, description, arguments, returned in (
        (shop.stock, "stock", "How many are there.", {"fruit": "figs"}, "3 figs"),
        (shop, "Shop", "Buys one.", {"fruit": "fig"}, "a fig"),
        (functools.partial(joined, right="!"), "joined", "", {"left": "a"}, "a!"),
    ):
        made = Tool.of(function)
        assert (made.name, made.description) == (name, description)
        assert list(made.input_schema["properties"]) == list(arguments)
        assert made.run is not None
        assert made.run(**arguments) == returned


class Buyer:
    """A buyer."""

    func = "not a partial"

    def stock(self, fruit: str) -> str:
        return fruit

    async def __call__(self, fruit: str, count: int = 1) -> str:
        """Buys some."""
        return f"{count} {fruit}"


@functools.cache
def cached(count: int) -> int:
    """Counts once."""
    return count + 1


async def test_an_object_is_a_tool_also_behind_a_partial() -> None:
    for function in (Buyer(), functools.partial(Buyer(), count=1)):
        made = Tool.of(function)
        assert (made.name, made.description) == ("Buyer", "Buys some.")
        assert made.input_schema["properties"]["fruit"] == {"type": "string"}
        assert made.run is not None
        assert await made.run(fruit="fig") == "1 fig"


def test_a_function_with_a_cache_keeps_its_annotations() -> None:
    for function in (cached, functools.partial(cached)):
        made = Tool.of(function)
        assert (made.name, made.description) == ("cached", "Counts once.")
        assert made.input_schema["properties"] == {"count": {"type": "integer"}}


def _untyped(value):  # type: ignore[no-untyped-def]  # that is the point
    return value


def test_a_parameter_without_an_annotation_takes_anything() -> None:
    made = Tool.of(_untyped)
    assert made.input_schema["properties"] == {"value": {}}
    assert made.run is not None
    assert made.run(value=[1, "a"]) == [1, "a"]


def _many(*values: int) -> None: ...
def _named(**values: int) -> None: ...
def _odd(value: threading.Lock) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _complex(value: Stranger) -> None: ...


class Stranger:
    pass


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_many, r"'_many': \*values has no JSON Schema"),
        (_named, r"'_named': \*\*values has no JSON Schema"),
        (_odd, "'_odd': its annotations cannot be read"),
        (_complex, "'_complex': a parameter has no JSON Schema"),
        (Buyer.stock, r"'stock': self is not bound; .* Tool.of\(its_object.stock\)"),
        (lambda: 1, "invalid name '<lambda>'; a name has 1 to 128 letters"),
        (5, "made from a function, not int"),
    ],
)
def test_a_function_that_cannot_be_described_is_refused_where_it_is_made_a_tool(
    function: ToolCallable, why: str
) -> None:
    with pytest.raises(InvalidConfig, match=why):
        Tool.of(function)


async def test_a_function_in_place_of_a_tool_says_how_to_make_one() -> None:
    async with stage() as on:
        with pytest.raises(InvalidConfig, match=r"make a Tool from the function: Tool.of"):
            await on.session.configure(tools=[_untyped])


def test_a_tool_needs_a_deadline_that_its_calls_can_meet() -> None:
    for deadline_s in (0, -1.0):
        hasty = Tool(name="hasty", deadline_s=deadline_s)
        with pytest.raises(InvalidConfig, match=r"'hasty': deadline_s is .* greater than 0"):
            SessionConfig(model="recorded", tools=(hasty,)).checked()


def _steps() -> Iterator[int]:
    yield 1


async def _parts(line: str) -> AsyncIterator[str]:
    yield line


class _Stepping:
    def __call__(self) -> Iterator[int]:
        yield 1


GENERATORS: list[tuple[Any, str]] = [
    (_steps, "a generator"), (_parts, "an async generator"),
    (functools.partial(_parts, "x"), "an async"),
    (_Stepping(), "a generator"), (_Stepping().__call__, "a generator"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "kind"), GENERATORS)
async def test_a_generator_function_is_no_tool_wherever_it_is_given(
    function: Any, kind: str
) -> None:
    said = rf"the function is {kind}.* return the whole result instead of yielding parts"
    with pytest.raises(InvalidConfig, match=said):
        Tool.of(function)
    bare = Tool(name="t", run=function)
    config = SessionConfig(model="m", tools=[bare])
    with pytest.raises(InvalidConfig, match=said):
        config.checked()
    with pytest.raises(InvalidConfig, match=said):
        SessionManager(provider=ScriptedProvider([]), tools=[bare])
    async with SessionManager(provider=ScriptedProvider([])) as manager:
        with pytest.raises(InvalidConfig, match=said):
            await manager.create(config)
        await manager.create(SessionConfig(model="m"), session_id="s")
        with pytest.raises(InvalidConfig, match=said):
            await manager.open("s", tools=[bare])


def test_an_option_that_the_decorator_does_not_have_is_one_clear_error() -> None:
    options: Any = {"nope": 1}
    said = "^@tool has no option 'nope'; it has name, description, deadline_s$"
    with pytest.raises(InvalidConfig, match=said):
        tool(**options)


WRONG_DEFAULTS: dict[str, tuple[Any, Any, str]] = {
    "another type": (int, "3", "'3', which does not fit its annotation: .*Expected `int`"),
    "a bool for a number": (int, True, "True, which .*Expected `int`, got `bool`"),
    "none": (str, None, r"None, which .*; annotate it with \| None$"),
    "out of range": (Annotated[int, msgspec.Meta(ge=1)], 0, "0, which .*>= 1"),
    "no choice": (Literal["a", "b"], "c", "'c', which"),
    "an object": (int, object(), "<object"),
}
RIGHT_DEFAULTS: dict[str, tuple[Any, Any]] = {
    "a whole number for a number": (float, 1),
    "none where that is allowed": (str | None, None),
    "a tuple for a list": (list[int], (1, 2)),
    "a member of an enum": (Colour, Colour.RED),
    "a dataclass": (Place, Place("Nice")),
    "a struct": (Point, Point(1.0)),
    "anything": (Any, object()),
}


def defaulting(hint: Any, default: Any) -> Any:
    def search(limit: Any = default) -> str:
        """Search."""
        return str(limit)

    search.__annotations__["limit"] = hint
    return search


@pytest.mark.parametrize("kind", WRONG_DEFAULTS)
def test_a_default_that_does_not_fit_its_annotation_is_refused(kind: str) -> None:
    hint, default, why = WRONG_DEFAULTS[kind]
    with pytest.raises(InvalidConfig, match=f"^tool 'search': the default of limit is {why}"):
        tool(defaulting(hint, default))


@pytest.mark.parametrize("kind", RIGHT_DEFAULTS)
def test_a_default_that_fits_its_annotation_is_taken(kind: str) -> None:
    assert tool(defaulting(*RIGHT_DEFAULTS[kind])).name == "search"

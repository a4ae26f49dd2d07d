"""A Python function as a tool: its definition for the model, and the arguments that it is called
with.

The parameters are made into a msgspec struct. The struct gives the JSON Schema, and it checks and
converts the arguments of each call.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from llmsession.errors import InvalidConfig, InvalidInput, error_text

__all__ = ["FunctionSchema", "check_can_run", "plain_function", "schema_of"]

_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class FunctionSchema(NamedTuple):
    """The definition of a function as a tool. ``run`` calls the function with checked arguments."""

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[..., Any]


def plain_function(function: Callable[..., Any]) -> Any:
    """The function behind a method, a partial or an object with ``__call__``."""
    if inspect.isfunction(function):  # as nearly every tool is
        return function
    function = _without_partials(function)
    if inspect.isfunction(function) or inspect.ismethod(function) or inspect.isbuiltin(function):
        return function
    return type(function).__call__


def check_can_run(function: Any, where: str) -> None:
    """Raises InvalidConfig if a tool cannot run *function*. The message begins with *where*."""
    if not callable(function):
        raise InvalidConfig(f"{where}: run must be a function, not {type(function).__name__}")
    plain = plain_function(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        kind = "an async generator" if inspect.isasyncgenfunction(plain) else "a generator"
        why = "return the whole result instead of yielding parts, because nobody would iterate it"
        raise InvalidConfig(f"{where}: the function is {kind} function; {why}")


def _without_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def schema_of(function: Callable[..., Any]) -> FunctionSchema:
    """The definition of *function*: its name, its docstring, and the schema of its parameters.

    Raises InvalidConfig, naming the parameter, if one has no JSON Schema.
    """
    if not callable(function):
        raise InvalidConfig(f"a tool is made from a function, not {type(function).__name__}")
    plain = plain_function(function)
    name = _name(function)
    check_can_run(function, f"tool {name!r}")
    parameters = _parameters(function, name)
    hints = _hints(_annotated(function), name)
    arguments = _struct_of(name, parameters, hints)
    input_schema = _with_defaults(_json_schema(arguments, name), parameters)
    _check_defaults(name, parameters, hints)
    return FunctionSchema(
        name=name,
        description=_docstring(function, plain),
        input_schema=input_schema,
        run=_checked(function, plain, name, arguments, parameters),
    )


def _name(function: Any) -> str:
    inner = _without_partials(function)
    names = (getattr(each, "__name__", None) for each in (function, inner, type(inner)))
    return next(str(name) for name in names if name)


def _annotated(function: Any) -> Any:
    """The function that holds the annotations, for example inside ``functools.cache``."""
    return plain_function(inspect.unwrap(_without_partials(function)))


def _docstring(function: Any, plain: Any) -> str:
    # An instance has the docstring of its class, which is not about its calls.
    inner = _without_partials(function)
    return inspect.getdoc(inner if inspect.isroutine(inner) else plain) or ""


def _parameters(function: Any, name: str) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(f"tool {name!r}: its signature cannot be read: {error}") from error
    bound = function.keywords if isinstance(function, functools.partial) else {}
    parameters = {key: each for key, each in signature.parameters.items() if key not in bound}
    first = next(iter(parameters.values()), None)
    if first is not None and first.name == "self" and first.annotation is first.empty:
        raise InvalidConfig(
            f"tool {name!r}: self is not bound; make the tool from the method of an object:"
            f" Tool.of(its_object.{name})"
        )
    for parameter in parameters.values():
        if parameter.kind in _REFUSED:
            stars = _REFUSED[parameter.kind]
            raise InvalidConfig(
                f"tool {name!r}: {stars}{parameter.name} has no JSON Schema; list the parameters by"
                " name, or write the schema yourself: Tool(name=..., input_schema=..., run=...)"
            )
    return parameters


def _hints(plain: Any, name: str) -> dict[str, Any]:
    try:
        # Includes types that are local to an enclosing function, if this function refers to them.
        nonlocals = inspect.getclosurevars(plain).nonlocals if inspect.isfunction(plain) else {}
        return typing.get_type_hints(plain, localns=dict(nonlocals), include_extras=True)
    except Exception as error:  # annotations may hold anything
        raise InvalidConfig(
            f"tool {name!r}: its annotations cannot be read: {error_text(error)}; define or import"
            " their types at the top of the module"
        ) from error


def _struct_of(
    name: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for key, parameter in parameters.items():
        hint = _described(hints.get(key, Any))
        if parameter.default is inspect.Parameter.empty:
            fields.append((key, hint))
        else:
            # If the model leaves it out, the argument is left out of the call, and the function's
            # own default applies.
            fields.append((key, hint, msgspec.field(default_factory=lambda: msgspec.UNSET)))
    try:
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except Exception as error:
        raise InvalidConfig(f"tool {name!r}: {error_text(error)}") from error


def _check_defaults(
    name: str, parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> None:
    """Raises InvalidConfig for a default that the model could not give as an argument."""
    for key, parameter in parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty or key not in hints:
            continue
        try:
            _check_fits(default, hints[key])
        except Exception as error:  # a default may be any object
            hint = "; annotate it with | None" if default is None else ""
            raise InvalidConfig(
                f"tool {name!r}: the default of {key} is {reprlib.repr(default)}, which does not"
                f" fit its annotation: {error_text(error)}{hint}"
            ) from error


def _check_fits(value: Any, hint: Any) -> None:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        # An object, for example of a dataclass, fits as what JSON makes of it.
        if isinstance(value, str | int | float | bool | None):
            raise
        msgspec.convert(msgspec.to_builtins(value), hint)


def _described(hint: Any) -> Any:
    """*hint*, with the texts of an ``Annotated`` as its descriptions."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    texts = [each for each in hint.__metadata__ if isinstance(each, str)]
    for text in texts:
        hint = Annotated[hint, msgspec.Meta(description=text)]
    return hint


def _json_schema(arguments: type[msgspec.Struct], name: str) -> dict[str, Any]:
    try:
        (reference,), parts = msgspec.json.schema_components(
            (arguments,), ref_template="#/$defs/{name}"
        )
    except Exception as error:  # msgspec raises exceptions of several types here
        raise InvalidConfig(
            f"tool {name!r}: a parameter has no JSON Schema: {error_text(error)}"
        ) from error
    schema = dict(parts.pop(reference["$ref"].removeprefix("#/$defs/")))
    schema.pop("title", None)
    if parts:
        schema["$defs"] = parts
    return schema


def _with_defaults(
    schema: dict[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """*schema* with those defaults that can be written as JSON."""
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty:
            continue
        try:
            default = msgspec.json.decode(msgspec.json.encode(parameter.default))
        except Exception:  # a default may be any object; the model does not need to see it
            continue
        schema["properties"][key] = {**schema["properties"][key], "default": default}
    return schema


def _checked(
    function: Callable[..., Any],
    plain: Any,
    name: str,
    arguments: type[msgspec.Struct],
    parameters: Mapping[str, inspect.Parameter],
) -> Callable[..., Any]:
    positional = [
        key for key, each in parameters.items() if each.kind is inspect.Parameter.POSITIONAL_ONLY
    ]

    def converted(given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        try:
            values = msgspec.convert(given, arguments, str_keys=True)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the arguments of {name!r} are invalid: {error}") from error
        named = {key: getattr(values, key) for key in parameters if key in given}
        return [named.pop(key) for key in positional if key in named], named

    if inspect.iscoroutinefunction(plain):

        @functools.wraps(plain)
        async def run(**given: Any) -> Any:
            listed, named = converted(given)
            return await function(*listed, **named)
    else:

        @functools.wraps(plain)
        def run(**given: Any) -> Any:
            listed, named = converted(given)
            return function(*listed, **named)

    return run

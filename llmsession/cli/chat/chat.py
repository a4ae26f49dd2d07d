"""``llmsession chat``: talk to a model in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import anyio
import anyio.to_thread
import typer
from rich.markup import escape

from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    Refused,
    SessionError,
    SessionNotFound,
)
from llmsession.providers.protocol import Provider
from llmsession.session.manager import SessionManager
from llmsession.session.values.config import SessionConfig, ToolResult
from llmsession.store import Store, open_store
from llmsession.transport.hosting.providers import DEFAULT_MODELS
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns.previews import ToolUse

from ..common.exit_codes import FAILED
from ..common.files import user_folder
from ..common.ids import id_at_service
from ..common.options import option
from ..common.service import (
    CaFile,
    ConnectTo,
    ServiceAt,
    StoreOrNone,
    TokenFile,
    model_at,
    service_at,
)
from ..common.stores import STORE_VARIABLE, KeyFile, store_key
from ..common.terminal import TerminalConsole, neutral
from .commands import COMMANDS, Talk, obey
from .keys import draft_keys, stop_keys
from .recording import Recording
from .view import TurnView, context_line, print_conversation

__all__ = ["chat"]

NO_KEY = (
    "no API key for {provider}: set {variable}, or use a local server, for example"
    " --provider openai --base-url http://localhost:11434/v1 --model NAME"
)


DELAY_MS = 20.0
"""The pause before each chunk of a recorded reply, in milliseconds."""


class ProviderName(StrEnum):
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    REPLAY = "replay"


_KEYS = {ProviderName.ANTHROPIC: "ANTHROPIC_API_KEY", ProviderName.OPENAI: "OPENAI_API_KEY"}


def chat(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The recording for --provider replay."),
    ] = None,
    *,
    provider: Annotated[
        ProviderName | None, typer.Option(help="The provider. Default: anthropic.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="URL of another server with the provider's API."),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The session to continue; created if it is missing."),
    ] = None,
    delay_ms: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MS", help="With replay: pause before each chunk. Default: 20."
        ),
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """Talk to a model in the terminal. Esc or Ctrl-C stops a reply; /help lists the commands.

    Sessions are kept in the store of --store. With "memory:" they are not kept. By default they are
    kept in your data folder (~/.local/share/llmsession). Exits with 1 if a prompt that was read
    from a pipe failed.

    With --connect the session runs at a service, and the service's providers answer. It continues
    there after you leave, and other clients may use it at the same time.
    """
    local = {
        "FILE": file,
        "--provider": provider,
        "--base-url": base_url,
        "--key-file": key_file,
        "--delay-ms": delay_ms,
    }
    service = service_at(connect, token_file, ca, store=store, local=local)
    named = provider or ProviderName.ANTHROPIC
    recording = None
    if named is ProviderName.REPLAY:
        if file is None:
            raise InvalidInput("--provider replay needs a FILE: the recording")
        recording = Recording(file, delay_s=(DELAY_MS if delay_ms is None else delay_ms) / 1000)
        config = recording.config()
    elif file is not None:
        raise InvalidInput(f"{file}: to play a recording, use --provider replay")
    else:
        config = SessionConfig(model=model or DEFAULT_MODELS[named.value], system=system)
    if service is not None:
        where: Where = partial(_there, service, model, system)
    else:
        answers = recording.provider if recording else _provider(named, base_url)
        address = _store_address(store, is_replay=recording is not None)
        key = store_key(key_file)
        with option("--store"):
            opened = open_store(address, key=key)
        where = partial(_embedded, config, answers, opened, address)
    if not anyio.run(partial(_chat, where, session_id=session, recording=recording)):
        raise typer.Exit(FAILED)


def _store_address(store: str | None, *, is_replay: bool) -> str:
    """The store that the user named, else the one in the user's data folder. A replay is kept in
    memory by default. Raises InvalidInput if the data folder cannot be created."""
    address = store or os.environ.get(STORE_VARIABLE)
    if address or is_replay:
        return address or "memory:"
    folder = user_folder("XDG_DATA_HOME", ".local/share")
    return f"sqlite:{folder / 'sessions.db'}"


def _provider(name: ProviderName, base_url: str | None) -> Provider:
    variable = _KEYS[name]
    try:
        if name is ProviderName.ANTHROPIC:
            from llmsession.providers import AnthropicProvider

            return AnthropicProvider(base_url=base_url)
        from llmsession.providers import OpenAIProvider

        return OpenAIProvider(base_url=base_url)
    except InvalidConfig as error:
        # The SDKs also read keys from places that this message does not name. Where a base URL is
        # set, a key may not be the problem, so the SDK's own message is kept.
        said = (variable, variable.replace("API_KEY", "BASE_URL"))
        if base_url is not None and "base_url" in str(error):
            raise InvalidInput(str(error).replace("base_url", f"--base-url {base_url}")) from error
        if base_url is not None or any(map(os.environ.get, said)):
            raise
        raise InvalidInput(NO_KEY.format(provider=name.value, variable=variable)) from error


class Place(NamedTuple):
    """Where the chat's sessions are: in a manager of this process or at a service.

    ``config()`` returns the configuration of a new session, and raises InvalidInput if no model is
    known for it. ``name`` says where sessions are kept.
    """

    sessions: ManagerInterface
    config: Callable[[], SessionConfig]
    name: str


Where: TypeAlias = Callable[[], AbstractAsyncContextManager[Place]]


@asynccontextmanager
async def _embedded(
    config: SessionConfig, provider: Provider, store: Store, address: str
) -> AsyncGenerator[Place, None]:
    async with SessionManager(provider=provider, store=store) as manager:
        # The address of a database may contain a password, so it is not printed.
        name = "nowhere" if address == "memory:" else f"in {address.partition('?')[0]}"
        if "://" in address:
            name = "in the database"
        yield Place(manager, lambda: config, name)


@asynccontextmanager
async def _there(
    service: ServiceAt, model: str | None, system: str | None
) -> AsyncGenerator[Place, None]:
    async with service.sessions() as sessions:
        config = lambda: SessionConfig(model=model_at(sessions, model), system=system)  # noqa: E731
        yield Place(sessions, config, f"at {service.address}")


async def _chat(
    where: Where,
    *,
    session_id: str | None,
    recording: Recording | None,
) -> bool:
    """Whether every prompt was answered. Always true on a terminal: its user sees what failed."""
    console = TerminalConsole()
    async with where() as place:
        session, is_new = await _session(place, session_id)
        talk = Talk(session, console)
        await _greet(talk, is_new, recording, place.name)
        if recording is not None:
            talk.rewound = recording.rewound
        lines = _Lines()
        while not talk.over:
            line = await lines.read(talk, recording)
            if line is None:
                break
            if line.startswith("/"):
                await obey(talk, line)
            elif line.strip():
                talk.draft = await _turn(talk, line, recording)
                talk.failed |= bool(talk.draft)
                talk.say(f"[dim]{context_line(await talk.session.read_status())}[/]")
                if recording is not None and recording.is_over:
                    talk.say("[dim]the recording has ended; /rewind goes back, /quit leaves[/]")
        return lines.is_terminal or not talk.failed


async def _session(place: Place, session_id: str | None) -> tuple[SessionInterface, bool]:
    """The session to use, and whether it is new."""
    if session_id is None:
        return await place.sessions.create(place.config()), True
    try:
        known = await id_at_service(place.sessions, session_id)
        if isinstance(place.sessions, SessionManager):  # chat has no functions for its tools
            return await place.sessions.open(known, unbound="warn"), False
        return await place.sessions.open(known), False
    except SessionNotFound:
        return await place.sessions.create(place.config(), session_id=session_id), True


async def _greet(talk: Talk, is_new: bool, recording: Recording | None, kept: str) -> None:
    session = talk.session
    model = (await session.read_context()).model
    talk.say(f"[dim]session {escape(session.id)} · model {escape(model)} · /help[/]")
    talk.say(f"[dim]kept {escape(kept)}[/]")
    if recording is not None:
        talk.say("[dim]recorded replies, no model: press Enter to send each recorded line[/]")
    if not is_new:
        messages = await session.read_conversation()
        print_conversation(talk.console, messages, thinking=talk.thinking)


class _Lines:
    """The input lines. On a terminal they can be edited and have a history."""

    def __init__(self) -> None:
        self._prompt: Any = None
        self._draft = ""
        self.is_terminal = sys.stdin.isatty()
        if self.is_terminal:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.completion import WordCompleter
            from prompt_toolkit.history import FileHistory

            completer = WordCompleter([f"/{name}" for name in COMMANDS], sentence=True)
            self._prompt = PromptSession(
                history=FileHistory(str(_history_file())),
                completer=completer,
                key_bindings=draft_keys(lambda: self._draft),
            )

    async def read(self, talk: Talk, recording: Recording | None) -> str | None:
        """The next line, or None at the end of the input."""
        draft, talk.draft = talk.draft, ""
        if recording is not None and not draft:
            draft = recording.line
        if self._prompt is None:
            line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            return line.rstrip("\n") if line else None
        while True:
            self._draft = neutral(draft)
            try:
                line = await self._prompt.prompt_async("> ", default=self._draft)
            except KeyboardInterrupt:
                draft = ""  # as in a shell: Ctrl-C discards the line, not the program
            except EOFError:
                return None
            else:
                if str(line).startswith("/"):
                    talk.draft = draft  # offer the draft again after the command
                return str(line)


def _history_file() -> Path:
    """The file with the lines of earlier chats. Only its user may read it."""
    file = user_folder("XDG_STATE_HOME", ".local/state") / "chat-history"
    file.touch(mode=0o600)
    return file


async def _turn(talk: Talk, line: str, recording: Recording | None) -> str:
    """Send *line* and print the turn as it streams. Returns the text to fill the next input line
    with: *line* itself unless the turn was committed."""
    session, view = talk.session, TurnView(talk.console, thinking=talk.thinking)
    if recording is not None:
        recording.begin()
    try:
        turn = await session.send(line)
    except SessionError as error:
        talk.say(f"[red]{escape(str(error))}[/]")
        return line
    stopping = anyio.Event()

    async def stop() -> None:
        await stopping.wait()
        with suppress(SessionError):  # reading the turn raises the same error
            await session.interrupt(turn.id)

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        # An error is suppressed here because asking for the outcome raises it, too.
        with view.live(), stop_keys(stopping.set), suppress(SessionError):
            async for event in turn:
                view.show(event)
                if isinstance(event, ToolUse) and event.runner == "caller":
                    await _answer(session, event, recording)
                elif recording is not None:
                    recording.saw(event)
        group.cancel_scope.cancel()
    try:
        outcome = await turn.outcome()
    except SessionError:
        view.close()
        raise
    view.end(outcome)
    if recording is not None:
        recording.end(is_committed=outcome.status == "committed")
    return line if outcome.status != "committed" else ""


async def _answer(session: SessionInterface, call: ToolUse, recording: Recording | None) -> None:
    result = ToolResult(call.id, "There are no tools here.", is_error=True)
    if recording is not None:
        result = recording.result(call)
    with suppress(Refused):  # the turn was stopped in the meantime
        await session.submit_tool_results([result])

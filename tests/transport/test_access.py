"""Tokens in a file, and what may listen where."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from llmsession import InvalidConfig, InvalidInput, SessionManager, Unauthenticated, connect
from llmsession.testing.scripted import ScriptedProvider
from llmsession.transport import Credentials, GrpcServer, Service, SocketServer, TokenFile
from llmsession.transport.access import check_exposed, token_hash
from llmsession.transport.addresses import parse_address

ANNA, BERT, OPERATOR = "anna-token-0123456789", "bert-token-0123456789", "operator-0123456789ab"
PEER = "203.0.113.7:4711"


def tenant_of(tokens: TokenFile, token: str | None) -> str | None:
    return tokens.authenticate(Credentials(token=token, peer=PEER))


def toml(folder: Path, text: str, name: str = "tokens.toml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def good(folder: Path) -> Path:
    return toml(
        folder,
        f'''
        [[tokens]]
        sha256 = "{token_hash(ANNA)}"
        tenant = "anna"
        [[tokens]]
        token = "{BERT}"
        tenant = "bert"
        [[tokens]]
        token = "{OPERATOR}"
        operator = true
        ''',
    )


def test_a_token_has_its_tenant_and_an_operator_has_none(tmp_path: Path) -> None:
    tokens = TokenFile(good(tmp_path))
    assert tenant_of(tokens, ANNA) == "anna"
    assert tenant_of(tokens, BERT) == "bert"
    assert tenant_of(tokens, OPERATOR) is None
    assert len(tokens) == 3


def test_a_file_may_be_json(tmp_path: Path) -> None:
    text = json.dumps({"tokens": [{"token": ANNA, "tenant": "anna"}]})
    assert tenant_of(TokenFile(toml(tmp_path, text, "tokens.json")), ANNA) == "anna"


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        ANNA[:-1],
        ANNA + " ",
        ANNA.upper(),
        "x" * 2_000_000,
        ANNA + "\x00",
        "\ud800" * 20,
        hashlib.sha256(ANNA.encode()).hexdigest(),  # what stands in the file is no token
    ],
)
def test_a_wrong_token_is_refused_and_not_quoted(tmp_path: Path, token: str | None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        tenant_of(TokenFile(good(tmp_path)), token)
    assert str(caught.value) == "the token is not known, or there is none"
    assert caught.value.__cause__ is None


def test_every_known_token_is_compared_whichever_is_presented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsession.transport import access

    compared: list[bool] = []

    class Counting:
        @staticmethod
        def compare_digest(known: bytes, presented: bytes) -> bool:
            assert len(known) == len(presented) == 32
            compared.append(known == presented)
            return compared[-1]

    monkeypatch.setattr(access, "hmac", Counting)
    tokens = TokenFile(good(tmp_path))
    for token, found in ((ANNA, 1), (OPERATOR, 1), ("nobody-knows-this-one", 0)):
        compared.clear()
        try:
            tenant_of(tokens, token)
        except Unauthenticated:
            assert not found
        assert (len(compared), sum(compared)) == (3, found)


SECRET = "secret-token-0123456789"
WRONG = {
    "no TOML": f'tokens = "{SECRET}',
    "no list": f'tokens = "{SECRET}"',
    "an unknown field": f'[[tokens]]\ntoken = "{SECRET}"\ntenat = "anna"',
    "a token that is no text": "[[tokens]]\ntoken = 12345678901234567890123\ntenant = 'anna'",
    "neither tenant nor operator": f'[[tokens]]\ntoken = "{SECRET}"',
    "both": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "anna"\noperator = true',
    "token and hash": f'[[tokens]]\ntoken = "{SECRET}"\nsha256 = "ab"\ntenant = "anna"',
    "no token": "[[tokens]]\ntenant = 'anna'",
    "a short token": "[[tokens]]\ntoken = 'hunter2'\ntenant = 'anna'",
    "a token with a blank": f'[[tokens]]\ntoken = "{SECRET} {SECRET}"\ntenant = "anna"',
    "a short hash": "[[tokens]]\nsha256 = 'abcd'\ntenant = 'anna'",
    "no hash": f"[[tokens]]\nsha256 = '{'x' * 64}'\ntenant = 'anna'",
    "twice": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "a"\n' * 2,
    "twice, once as a hash": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "a"\n[[tokens]]\n'
    f'sha256 = "{token_hash(SECRET)}"\ntenant = "b"',
    "a tenant without a name": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = ""',
    "a long tenant": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "{"t" * 65}"',
    "nobody": "tokens = []",
    "nothing": "",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_one_error_that_names_it_and_quotes_no_token(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TokenFile(toml(tmp_path, text))
    assert "tokens.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    error: BaseException | None = caught.value
    assert error is not None
    assert "secret" not in str(error)
    assert "hunter2" not in str(error)
    assert error.__cause__ is None  # whose text might
    assert error.__context__ is None or error.__suppress_context__


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        TokenFile(tmp_path / "tokens.toml")
    (tmp_path / "tokens.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        TokenFile(tmp_path / "tokens.toml")


def test_a_file_is_read_again_and_a_wrong_one_leaves_what_there_was(tmp_path: Path) -> None:
    tokens = TokenFile(good(tmp_path))
    toml(tmp_path, "oh no")
    with pytest.raises(InvalidConfig):
        tokens.reload()
    assert tenant_of(tokens, ANNA) == "anna"
    toml(tmp_path, f'[[tokens]]\ntoken = "{BERT}"\ntenant = "bert"')
    assert tokens.reload() == 1
    assert tenant_of(tokens, BERT) == "bert"
    with pytest.raises(Unauthenticated):
        tenant_of(tokens, ANNA)


# What may listen where.


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("unix:/run/s.sock", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.10:1", True),
        ("tcp://[::1]:1", True),
        ("grpc://localhost:1", True),
        ("tcp://0.0.0.0:1", False),
        ("grpc://[::]:1", False),
        ("tcp://192.0.2.1:1", False),
        ("grpc://localhost.example.org:1", False),
        ("tcp://127.0.0.1.example.org:1", False),
    ],
)
def test_what_other_machines_reach_needs_tls_and_tokens_or_a_flag(
    address: str, local: bool
) -> None:
    where = parse_address(address)
    check_exposed(where, has_tls=True, is_guarded=True, insecure=False)
    check_exposed(where, has_tls=False, is_guarded=False, insecure=True)
    for has_tls, is_guarded, named in (
        (False, False, "TLS and tokens"),
        (True, False, "it needs tokens"),
        (False, True, "it needs TLS"),
    ):
        if local:
            check_exposed(where, has_tls=has_tls, is_guarded=is_guarded, insecure=False)
        else:
            with pytest.raises(InvalidConfig, match=named):
                check_exposed(where, has_tls=has_tls, is_guarded=is_guarded, insecure=False)


async def test_servers_refuse_to_be_open_to_other_machines() -> None:
    async with (
        SessionManager(provider=ScriptedProvider([])) as manager,
        Service(manager) as service,
    ):
        with pytest.raises(InvalidConfig, match="TLS and tokens"):
            SocketServer(service, "tcp://0.0.0.0:0")
        with pytest.raises(InvalidConfig, match="TLS and tokens"):
            GrpcServer(service, "grpc://0.0.0.0:0")
        SocketServer(service, "tcp://0.0.0.0:0", insecure=True)
        GrpcServer(service, "grpc://0.0.0.0:0", insecure=True)


async def test_a_client_sends_no_token_over_a_network_in_the_clear() -> None:
    for address in ("tcp://192.0.2.1:1", "grpc://192.0.2.1:1"):
        with pytest.raises(InvalidConfig, match="clear") as caught:
            async with connect(address, token=ANNA):
                pass
        assert ANNA not in str(caught.value)


def test_a_token_that_could_be_guessed_has_no_hash() -> None:
    for token in ("short", "x" * 1025, "with a blank in it", "with\ttab-0123456789", "ü" * 20):
        with pytest.raises(InvalidInput) as caught:
            token_hash(token)
        assert token not in str(caught.value)

"""Files with secrets: refused where others may write, a warning where everybody may read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmsession import InvalidConfig
from llmsession.transport import ServerTls, TokenFile
from llmsession.transport.wire.secret_files import read_secret
from tests.transport.certificates import Authority


def secret(folder: Path, mode: int) -> Path:
    path = folder / "tokens.toml"
    path.write_text('[[tokens]]\ntoken = "a-token-of-many-characters"\ntenant = "anna"\n')
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, 0), (0o400, 0), (0o640, 0), (0o644, 1), (0o604, 1)]
)
def test_a_secret_that_everybody_may_read_is_one_warning(
    tmp_path: Path, mode: int, warned: int
) -> None:
    warnings: list[str] = []
    path = secret(tmp_path, mode)
    assert read_secret(path, "token file", warn=warnings.append).startswith(b"[[tokens]]")
    assert len(warnings) == warned
    assert all(f"chmod o-r {path}" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("mode", "who"), [(0o622, "every user"), (0o602, "every user"), (0o660, "its group")]
)
def test_a_secret_that_others_may_write_is_refused_and_what_to_do_is_said(
    tmp_path: Path, mode: int, who: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"tokens.toml.*written by {who}.*chmod go-w"):
        read_secret(secret(tmp_path, mode), "token file")


def test_tokens_and_keys_of_tls_are_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TokenFile(secret(tmp_path, 0o644))
    (record,) = caplog.records
    assert "can be read by every user" in record.__dict__["why"]
    secret(tmp_path, 0o666)
    with pytest.raises(InvalidConfig, match="token file"):
        tokens.reload()
    assert len(tokens) == 1
    certificate, key = Authority(tmp_path, "ours").issue("server")
    key.chmod(0o620)
    with pytest.raises(InvalidConfig, match=r"TLS key.*its group"):
        ServerTls(certificate, key)
    key.chmod(0o600)
    ServerTls(certificate, key)


def test_a_secret_may_come_through_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"secret")
    os.close(writing)
    warnings: list[str] = []
    assert read_secret(f"/dev/fd/{reading}", "key file", warn=warnings.append) == b"secret"
    assert not warnings
    os.close(reading)

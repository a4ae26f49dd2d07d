"""What systemd hears of a service."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llmsession.transport.hosting.systemd import notify


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_each_state_is_told_to_who_listens(tmp_path: Path, kind: str) -> None:
    where = f"{tmp_path}/notify" if kind == "file" else f"@{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(where.replace("@", "\0", 1))
        heard.settimeout(5)
        notify({"NOTIFY_SOCKET": where}, "READY=1")
        assert heard.recv(1000) == b"READY=1"
        notify({"NOTIFY_SOCKET": where}, "RELOADING=1")
        state, moment = heard.recv(1000).split(b"\n")
        assert state == b"RELOADING=1"
        assert int(moment.removeprefix(b"MONOTONIC_USEC=")) > 0


@pytest.mark.parametrize("where", ["", "relative", "/nobody/there", "@nobody-there"])
def test_where_nobody_listens_nothing_happens(where: str) -> None:
    notify({"NOTIFY_SOCKET": where} if where else {}, "READY=1")

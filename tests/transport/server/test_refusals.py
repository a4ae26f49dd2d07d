"""Refusals in the log: none without a word, and no flood of them."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession.transport.server.refusals import LINES, MAX_PEERS, RefusalLog, host_of


class Lines:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now = 5.0
        self.log = RefusalLog(self, lambda: self.now)

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def test_many_refusals_of_a_peer_in_a_second_are_a_few_lines_and_a_number() -> None:
    on = Lines()
    for number in range(1000):
        on.log.add("connection.refused", f"10.0.0.1:{number}", "Unauthenticated", why="no")
    on.log.add("connection.refused", "10.0.0.2:7", "ProtocolError", why="no")
    assert [line["peer"] for line in on.lines] == [
        *(f"10.0.0.1:{number}" for number in range(LINES)),
        "10.0.0.2:7",
    ]
    on.lines.clear()
    on.log.tick()
    assert on.lines == []
    on.now += 1.0
    on.log.tick()
    assert on.lines == [
        {
            "event": "connection.refused",
            "peer": "10.0.0.1",
            "error": "Unauthenticated",
            "more": 1000 - LINES,
        }
    ]
    on.log.tick(is_last=True)
    assert len(on.lines) == 1


def test_refusals_of_many_peers_take_bounded_memory_and_all_are_counted() -> None:
    on = Lines()
    for number in range(5 * MAX_PEERS):
        peer = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1"
        on.log.add("connection.refused", peer, "Unauthenticated")
    assert len(on.log._seconds) <= MAX_PEERS + 1
    on.log.tick(is_last=True)
    assert sum(line.get("more", 1) for line in on.lines) == 5 * MAX_PEERS


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::7%5D:5000", "2001:db8:1:2::/64"),
        ("::1:5000", "::1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("unix", "unix"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_a_peer_is_its_host_whatever_its_port(peer: str, host: str) -> None:
    assert host_of(peer) == host

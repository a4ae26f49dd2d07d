"""Fixtures that more than one part's tests use, and what ``--quick`` leaves out."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

import llmsession
from tests.steady_time import steady_backend
from tests.virtual_time import BACKENDS, virtual_backend

if TYPE_CHECKING:
    from tests.store.postgres.server import PostgresServer

pytest.register_assert_rewrite("llmsession.testing.store_contract", "tests.transcripts.shapes")

# The same examples on every machine and in every run, and no limit that a slow machine misses.
settings.register_profile(
    "everywhere",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("everywhere")


OURS = f"{Path(llmsession.__file__).parent}{os.sep}"

# A shell gives its background jobs SIGINT to ignore, and so to every program that the tests start:
# those that are sent Ctrl-C would not hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes, servers, type checkers, whole recordings, and properties over many random runs.
SLOW = (
    "tests/benchmarks/", "tests/cli/", "tests/compatibility/",
    "tests/compaction/policies/test_balanced",
    "tests/compaction/policies/test_contract.py",
    "tests/compaction/rules/test_check.py",
    "tests/compaction/rules/test_repair_properties.py",
    "tests/compaction/summaries/test_code_outline.py", "tests/documents/test_code_blocks.py",
    "tests/lab/",
    "tests/providers/counting/test_tiktoken",
    "tests/providers/counting/test_vocabulary_sources.py",
    "tests/providers/test_behaviour_over_http.py", "tests/providers/test_many_conversations.py",
    "tests/session/actor/test_orphans.py", "tests/session/actor/test_resume_cuts.py",
    "tests/session/compacting/test_machine.py", "tests/session/log/test_fold.py",
    "tests/session/log/test_redaction.py", "tests/session/registry/test_lifecycle.py",
    "tests/session/test_adversary.py", "tests/session/test_cancel_everywhere.py",
    "tests/session/test_model.py", "tests/store/postgres/",
    "tests/store/sqlite/test_processes.py", "tests/store/test_beside_memory.py",
    "tests/store/test_crash", "tests/store/test_erasure.py",
    "tests/store/test_lives_together.py", "tests/store/test_power_loss.py",
    "tests/store/test_zombies.py", "tests/test_deploy.py",
    "tests/test_examples.py", "tests/test_live.py", "tests/test_mutants.py",
    "tests/test_packaging.py", "tests/test_project.py", "tests/test_story.py",
    "tests/test_tutorials.py",
    "tests/testing/replay/", "tests/testing/simulation/", "tests/testing/stress/",
    "tests/testing/strict_server/", "tests/testing/test_imports.py",
    "tests/transcripts/agents/test_recorded.py", "tests/transcripts/common/test_document.py",
    "tests/transcripts/test_", "tests/transport/",
)  # fmt: skip
"""The beginnings of the paths that ``--quick`` leaves out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only fast files, and async tests on asyncio alone"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a share of the test files, another one in each worker. In a fresh checkout nothing is
    compiled, and otherwise all workers would compile the same file at the same moment."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    workers, root = int(os.environ["PYTEST_XDIST_WORKER_COUNT"]), session.config.rootpath
    asked = [root / argument.partition("::")[0] for argument in session.config.args]
    files = (file for path in asked for file in sorted(path.rglob("test_*.py")))
    for file in islice(files, int(worker.removeprefix("gw")), None, workers):
        with suppress(Exception, pytest.skip.Exception):  # the collection says it
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


# First, because pytest leaves out the long ones afterwards.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_begins_late)  # otherwise as they were
    if not config.getoption("--quick"):
        for item in _on_their_second_backend(items):
            item.add_marker("long")
        return
    slow = [item for item in items if item.nodeid.startswith(SLOW) or "[trio" in item.name]
    config.hook.pytest_deselected(items=slow)
    left_out = set(slow)
    items[:] = [item for item in items if item not in left_out]


def _on_their_second_backend(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """A test with several cases runs them on asyncio and on trio by turns: here are the cases on
    the other one. Which begins differs from test to test, so that no store or transport, say, is
    always on the same."""
    backends: dict[str, set[str]] = {}
    cases: dict[str, dict[tuple[tuple[str, int], ...], int]] = {}
    found: list[tuple[pytest.Item, str, str, tuple[tuple[str, int], ...]]] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        backend = callspec.params.get("anyio_backend") if callspec is not None else None
        if callspec is None or backend not in BACKENDS:  # it may be one with options
            continue
        test = item.nodeid.partition("[")[0]
        others = (each for each in callspec.params.items() if each[0] != "anyio_backend")
        case = tuple((name, id(value)) for name, value in others)
        backends.setdefault(test, set()).add(backend)
        cases.setdefault(test, {}).setdefault(case, len(cases[test]))
        found.append((item, test, backend, case))
    for item, test, backend, case in found:
        turn = (crc32(test.encode()) + cases[test][case]) % 2
        if len(cases[test]) > 1 and len(backends[test]) > 1 and backend == BACKENDS[turn]:
            yield item


def _begins_late(item: pytest.Item) -> int:
    """0: the first to run, because a worker that began with it last would keep all others waiting;
    by path they would be the last."""
    if item.nodeid.startswith("tests/test_project.py"):  # a type check without a cache
        return 0
    return 1 if item.nodeid.startswith("tests/test_") else 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays to the end: the garbage collector never looks at it, also not once
    before it is frozen, which takes each worker half a second and would free next to nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    # Python's own threshold is 700 allocations; this takes a twelfth less CPU. Tests that need a
    # collection ask for it.
    gc.set_threshold(10_000, 10, 10)
    config.addinivalue_line(
        "markers", "real_time: runs with the real clock, because it uses threads or processes"
    )
    config.addinivalue_line(
        "markers", "sockets: uses sockets of its own loop, so virtual time waits for the kernel"
    )


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Every async test runs on both, in virtual time unless it is marked ``real_time``."""
    if request.node.get_closest_marker("real_time"):
        return steady_backend(request.param)
    sockets = request.node.get_closest_marker("sockets") is not None
    return virtual_backend(request.param, sockets=sockets)


@cache
def _is_ours(file: str) -> bool:
    return file.startswith(OURS)


def _unless_we_call(can_block: Callable[..., bool]) -> Callable[..., bool]:
    """Asked before a call that would block: it may where *can_block* says so, and where no function
    of llmsession is on the stack. The detector would see that by itself, but it compares the file
    of each frame with every name it knows: where a test reads many files, for seconds."""

    def may_block(*args: Any, **options: Any) -> bool:
        frame = inspect.currentframe()
        while frame is not None and not _is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        return frame is None or can_block(*args, **options)

    return may_block


@pytest.fixture(scope="session")
def detector() -> BlockBuster:
    detector = BlockBuster("llmsession")
    for function in detector.functions.values():
        # The loop of a store's own thread holds nobody up.
        function.can_block_in("llmsession/store/postgres/thread.py", "_run")
        function.can_block_in("coverage/collector.py", "lock_data")  # make coverage
        function.can_block_predicate = _unless_we_call(function.can_block_predicate)
    return detector


@pytest.fixture(autouse=True)
def nothing_of_ours_blocks_the_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call in llmsession that blocks an asyncio loop raises. On trio nothing is detected."""
    if "anyio_backend" not in request.fixturenames:
        yield
        return
    detector: BlockBuster = request.getfixturevalue("detector")
    detector.activate()
    try:
        yield
    finally:
        detector.deactivate()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL, which starts in a second: one for all tests of a worker."""
    from tests.store.conftest import server_or_skip

    with server_or_skip() as server:
        yield server


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The recorded conversations, in a folder beside the checkout; they are no part of it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded conversations: {folder} is not a folder")
    return folder

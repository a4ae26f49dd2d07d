"""What each async test finds out on the side: whether we block the event loop."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio.lowlevel
import pytest
from blockbuster import BlockingError

from tests.conftest import OURS


@pytest.mark.parametrize("file", [f"{OURS}turns/some.py", "/usr/lib/some.py"])
async def test_a_call_that_blocks_asyncio_is_found_where_it_is_ours(
    anyio_backend: tuple[str, dict[str, Any]], file: str
) -> None:
    await anyio.lowlevel.checkpoint()
    is_found = file.startswith(OURS) and anyio_backend[0] == "asyncio"
    raising: AbstractContextManager[object] = (
        pytest.raises(BlockingError) if is_found else nullcontext()
    )
    with raising:
        exec(compile("sleep(0)", file, "exec"), {"sleep": time.sleep})

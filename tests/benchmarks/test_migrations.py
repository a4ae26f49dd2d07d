"""The programs of other libraries on the migration pages can be found and compiled.

They run in environments of their own: ``python -m benchmarks.peers.migrations``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.migrations import PAGES, programs

PAGE = """
<!-- not run: it needs a library -->
```python
print(1)
```

It prints:

```text
1
```

```python
ours()
```

```text
2
```
"""


def test_every_migration_page_has_a_library_that_can_be_installed() -> None:
    assert PAGES.keys() <= PEERS.keys()
    folder = next(iter(PAGES.values())).parent
    assert set(PAGES.values()) == set(folder.glob("migrate-from-*.md"))


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_first_program_of_a_page_says_what_it_prints_and_all_compile(page: Path) -> None:
    first, *others = programs(page.read_text("utf-8"))
    assert first.output
    for program in (first, *others):
        compile("\n" * program.line + program.text, str(page), "exec")


def test_only_programs_that_are_marked_are_of_another_library() -> None:
    (program,) = programs(PAGE)
    assert program == (2, "print(1)\n", "1\n")

"""Write the generated parts of the documents: ``make docs-tables``, or ``python -m docs.generate``.

A generated part stands between ``<!-- NAME table -->`` and ``<!-- end of NAME table -->``, on any
page, as often as it is wanted. A page that is generated as a whole is in ``PAGES``. What is written
comes from the code: docstrings, annotations, defaults. tests/documents/test_tables.py compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.tables import benchmarks, commands, configuration, errors, events, logs, metrics
from llmsession.compaction.policies import registry
from llmsession.providers import counters_markdown
from llmsession.session.compacting import machine as compaction_machine
from llmsession.session.values import environment
from llmsession.transport.wire.schema import field_tables
from llmsession.turns import machine as turn_machine

ROOT = Path(__file__).resolve().parents[1]

TABLES: Mapping[str, Callable[[], str]] = {
    "benchmark figures": benchmarks.figures,
    "cluster figures": benchmarks.cluster,
    "benchmark runs": benchmarks.taken,
    "turn": turn_machine.table_markdown,
    "compaction": compaction_machine.table_markdown,
    "environment": environment.table_markdown,
    "settings": registry.table_markdown,
    "counters": counters_markdown,
    **configuration.TABLES,
    "commands": commands.overview,
    "command sections": commands.sections,
    "chat lines": commands.chat_lines,
    "exit codes": commands.codes,
    "durable events": events.durable,
    "other events": events.others,
    "log events": logs.overview,
    "metrics": metrics.metrics,
    "spans": metrics.spans,
    "attributes": metrics.attributes,
    "errors": errors.overview,
    "error sections": errors.sections,
}
"""The name of a part -> what makes its lines."""
PAGES: Mapping[str, Callable[[], str]] = {"docs/reference/records.md": field_tables}
"""A page that is generated as a whole -> what makes it."""

_PART = re.compile(r"(<!-- ([\w ]+) table -->\n)(.*?)(<!-- end of \2 table -->)", re.DOTALL)


def generated() -> dict[Path, str]:
    """The pages with generated parts, and the text that each has to have.

    Raises ValueError for a part on a page that is not known, and for a table that no page has.
    """
    texts: dict[Path, str] = {ROOT / page: make() for page, make in PAGES.items()}
    used: set[str] = set()
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if page.is_symlink() or page in texts or "_build" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        names = {part[2] for part in _PART.finditer(text)}
        if not names <= TABLES.keys():
            raise ValueError(f"{page}: there is no table {sorted(names - TABLES.keys())}")
        used |= names
        if names:
            texts[page] = _PART.sub(lambda part: part[1] + TABLES[part[2]]() + part[4], text)
    if used != TABLES.keys():
        raise ValueError(f"no page has the table {sorted(TABLES.keys() - used)}")
    return texts


def main() -> None:
    for page, text in generated().items():
        if page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()

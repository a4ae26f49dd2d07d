"""The public names: which there are, and what the source says below a constant or an alias."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from functools import cache
from itertools import pairwise

__all__ = ["MODULES", "constant_doc", "public_names"]

MODULES = (
    "llmsession", "llmsession.cluster", "llmsession.compaction", "llmsession.compaction.boundaries",
    "llmsession.compaction.plan", "llmsession.compaction.policies", "llmsession.errors",
    "llmsession.providers", "llmsession.session", "llmsession.session.unfinished",
    "llmsession.store", "llmsession.testing", "llmsession.testing.store_contract",
    "llmsession.transcripts", "llmsession.transport", "llmsession.transport.access",
    "llmsession.transport.metrics", "llmsession.transport.tracing", "llmsession.turns",
    "llmsession.turns.records",
)  # fmt: skip
"""The modules whose ``__all__`` is public."""
INTERNAL = {
    "contained",
    "contained_in_task",
    "contained_in_work",
    "error_text",
    "foreign",
    "need_package",
    "refusing",
    "starting_scope",
    "work_supervisor",
}
"""Functions of ``llmsession.errors`` for the package itself."""


@cache
def public_names() -> dict[str, object]:
    """Every public object by its shortest path: ``llmsession.Turn``."""
    found: dict[str, object] = {}
    paths: dict[str, str] = {}
    for module in MODULES:
        holder = importlib.import_module(module)
        for name in holder.__all__:
            value = getattr(holder, name)
            if inspect.ismodule(value) or name in INTERNAL:
                continue
            if name in paths and found[paths[name]] is value:
                continue  # it is public under a shorter path
            paths[name] = f"{module}.{name}"
            found[paths[name]] = value
    return found


def constant_doc(name: str, value: object) -> str:
    """The text below the line that makes the constant *value*, wherever that is; "" without."""
    for module in [m for key, m in sys.modules.items() if key.startswith("llmsession")]:
        if vars(module).get(name) is value and (text := _texts(module.__name__).get(name)):
            return text
    return ""


@cache
def _texts(module: str) -> dict[str, str]:
    """The texts below the constants of *module*."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    found = {}
    for statement, after in pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = inspect.cleandoc(str(after.value.value))
    return found

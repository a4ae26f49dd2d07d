"""Importing ``llmsession.testing`` needs none of the optional packages. A name that needs one says
how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import llmsession.testing

OPTIONAL = ("h11", "pytest", "trio", "typer", "yaml")


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_optional_packages_are_not_imported() -> None:
    code = f"import sys, llmsession.testing; print(*sorted({{*{OPTIONAL}}} & {{*sys.modules}}))"
    assert run(code).stdout.split() == []


def test_the_scripted_provider_is_imported_where_no_optional_package_is_installed() -> None:
    missing = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); "
    assert run(missing + "from llmsession.testing import ScriptedProvider").returncode == 0
    error = run(missing + "from llmsession.testing import StrictServer").stderr
    assert error.splitlines()[-1] == (
        "ImportError: StrictServer needs h11: pip install 'llmsession[testing]'"
    )


def test_every_public_name_is_there() -> None:
    for name in llmsession.testing.__all__:
        assert getattr(llmsession.testing, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = llmsession.testing.nothing_like_it  # type: ignore[attr-defined]

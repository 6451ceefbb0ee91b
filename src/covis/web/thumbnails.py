"""Photos as small JPEGs, for pages and for the service."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from covis.reading.decoding import Reject
from covis.reading.inputs import Photo


def jpeg_thumbnail(photo: Path | Photo, pixels: int) -> bytes:
    """A JPEG with a longer side of at most `pixels`; raises `Reject` as decoding does."""
    from PIL import Image

    image = Image.fromarray((photo if isinstance(photo, Photo) else Photo(photo)).pixels())
    image.thumbnail((pixels, pixels), reducing_gap=2.0)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=75)
    return buffer.getvalue()


def data_url(photo: Path | Photo, pixels: int) -> str:
    """A thumbnail as a data URL; empty where it cannot be read."""
    try:
        content = jpeg_thumbnail(photo, pixels)
    except Reject:
        return ""
    return "data:image/jpeg;base64," + base64.b64encode(content).decode()

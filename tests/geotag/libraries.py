"""Small libraries: pictures of places that look like themselves, with EXIF as cameras write it."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from PIL import Image

PHONE, CAMERA = ("Maker", "Phone"), ("Other", "Camera")
START = datetime(2024, 5, 3, 9)
SIZE = 64


def picture(place: int, shot: int = 0) -> Image.Image:
    """A picture of a place; others of it are like it but for a little noise."""
    coarse = np.random.default_rng((place, 7)).integers(0, 256, (6, 6, 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC), np.int16)
    noise = np.random.default_rng((place, shot, 8)).integers(-12, 13, (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def exif(when=None, camera=PHONE, place=None, zone="", thumbnail=False) -> Image.Exif:
    """EXIF of a photo taken at a local time, at a place (lat, lon)."""
    block = Image.Exif()
    if camera:
        block[0x010F], block[0x0110] = camera
    inside = block.get_ifd(0x8769)
    if when is not None:
        inside[0x9003] = when.strftime("%Y:%m:%d %H:%M:%S")
    if zone:
        inside[0x9011] = zone
    inside[0x927C] = b"a maker's note \x00\x01\x02 of a certain length"
    if place is not None:
        gps = block.get_ifd(0x8825)
        gps[1], gps[2] = "N" if place[0] >= 0 else "S", degrees(place[0])
        gps[3], gps[4] = "E" if place[1] >= 0 else "W", degrees(place[1])
    return block


def degrees(value: float) -> tuple[float, float, float]:
    seconds = round(abs(value) * 3600, 4)
    return float(seconds // 3600), float(seconds % 3600 // 60), round(seconds % 60, 4)


def save(path: Path, image: Image.Image, block: Image.Exif | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({} if block is None else {"exif": block}))
    return path


def spot(continent: int, place: int) -> tuple[float, float]:
    """A place every 30 m along a street of one of two continents, the second at the antimeridian."""
    lat, lon = ((48.0, 11.0), (-17.0, 179.9995))[continent]
    lon += place * 30 / (111_320 * np.cos(np.radians(lat)))
    return lat, (lon + 180) % 360 - 180


def two_continents(root: Path, walks: int = 3, places: int = 8) -> dict[str, tuple[float, float] | None]:
    """A library with walks on two continents by a phone, and what it lacks: photo → true place, None for no place.

    Every walk passes the same places, half a minute apart; some photos of the phone have no position.
    """
    truth: dict[str, tuple[float, float] | None] = {}
    for continent in (0, 1):
        for walk in range(walks):
            for place in range(places):
                when = START + timedelta(days=100 * continent + 2 * walk, seconds=30 * place)
                name = f"{'ab'[continent]}/walk{walk}/{place:02d}.jpg"
                known = (place + walk) % 4 != 1
                where = spot(continent, place)
                save(root / name, picture(100 * continent + place, walk), exif(when, PHONE, where if known else None))
                if not known:
                    truth[name] = where
    noise = np.random.default_rng(9).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    save(root / "a/noise.jpg", Image.fromarray(noise), exif(START + timedelta(seconds=45)))
    save(
        root / "b/blank.jpg",
        Image.new("RGB", (SIZE, SIZE), (30, 60, 90)),
        exif(START + timedelta(days=100, seconds=75)),
    )
    truth |= {"a/noise.jpg": None, "b/blank.jpg": None}
    return truth

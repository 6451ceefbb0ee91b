"""Frames of a video or bag: the sharpest of each slot of distance or time, without blurred ones and duplicates."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covis.core import artifacts
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.progress import Meter
from covis.reading.decoding import Rejected

_WINDOW_S = 0.5
"""The sharpest frame in this many seconds from a slot's beginning is taken."""
_BLURRED = 0.25
"""A frame with less than this share of its neighbours' median sharpness is left out."""
_NEIGHBOURS = 10
_ALIKE = 1.0
"""Mean difference of grey levels (of 255) below which a frame repeats the one before."""


class Every(NamedTuple):
    """How densely frames are taken."""

    step: float
    unit: Literal["m", "s"]

    @classmethod
    def parse(cls, text: str) -> Every:
        """`5m`, `2s`, `0.5 s`."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(m|s)\s*", text)
        if not match or float(match[1]) <= 0:
            raise InputError(f"--every {text!r} is not a distance or time; expected one like 5m or 2s")
        return cls(float(match[1]), "m" if match[2] == "m" else "s")


class Frame(NamedTuple):
    """One picture of a source."""

    time_s: float
    """Seconds on the source's own clock, ascending."""
    pixels: NDArray[np.uint8]
    """(H, W, 3)."""
    encoded: bytes | None = None
    """The same as a JPEG file, where the source has one."""


class Taken(NamedTuple):
    """A frame on disk."""

    name: str
    time_s: float
    sharpness: float
    tiny: NDArray[np.float32]
    """(16, 16) grey."""


class Extracted(NamedTuple):
    """The frames that were kept and left out."""

    kept: list[Taken]
    left_out: list[Rejected]
    """`blurred` or `duplicate`."""


Travelled = Callable[[float], float]
"""Time → metres gone, or seconds; NaN where unknown."""


def extract(
    frames: Iterable[Frame], folder: Path, travelled: Travelled, every: Every | None, config: dict[str, Any]
) -> Extracted:
    """Writes the sharpest of `frames` (in order of time) in each step of `every` into `folder`, which is of one `config`."""
    step = 1.0 if every is None else every.step
    named = {**config, "every": "all" if every is None else f"{step:g}{every.unit}"}
    with artifacts.claim(folder, "frames", named), Meter("taking frames", None, "frames") as meter:
        taken = []
        for slot, frame, sharpness in _sharpest(frames, travelled, step):
            taken.append(_write_frame(folder, slot, frame, sharpness))
            meter.advance()
        return _drop_blurred_and_repeated(folder, taken)


def _sharpest(frames: Iterable[Frame], travelled: Travelled, step: float) -> Iterator[tuple[int, Frame, float]]:
    """(slot, frame, sharpness): the sharpest of the first moments of each slot, counted from the first known one."""
    best: tuple[int, Frame, float] | None = None
    began, last_slot, origin = 0.0, -1, None
    for frame in frames:
        way = travelled(frame.time_s)
        if np.isfinite(way) and origin is None:
            origin = way
        slot = int((way - origin) // step) if np.isfinite(way) and origin is not None else last_slot
        if best is not None and slot != best[0]:
            yield best
            last_slot, best = best[0], None
        if slot <= last_slot or (best is not None and frame.time_s - began > _WINDOW_S):
            continue
        if best is None:
            began = frame.time_s
        value = sharpness_of(frame.pixels)
        if best is None or value > best[2]:
            best = (slot, frame, value)
    if best is not None:
        yield best


def _write_frame(folder: Path, slot: int, frame: Frame, sharpness: float) -> Taken:
    name = f"frame-{slot:06d}.jpg"
    data = frame.encoded
    if data is None:
        buffer = io.BytesIO()
        Image.fromarray(frame.pixels).save(buffer, "JPEG", quality=92)
        data = buffer.getvalue()
    with replacing(folder / name, durable=False) as partial:
        partial.write_bytes(data)
    return Taken(name, frame.time_s, sharpness, _downscale(frame.pixels, 16, 16))


def _drop_blurred_and_repeated(folder: Path, taken: list[Taken]) -> Extracted:
    """Without blurred frames and duplicates, whose files are removed."""
    sharpness = np.array([frame.sharpness for frame in taken])
    kept: list[Taken] = []
    left_out: list[Rejected] = []
    for i, frame in enumerate(taken):
        usual = float(np.median(sharpness[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]))
        if frame.sharpness < _BLURRED * usual:
            text = f"sharpness {frame.sharpness:.1f}, its neighbours' {usual:.1f}"
            left_out.append(Rejected(frame.name, "blurred", text))
        elif kept and np.abs(frame.tiny - kept[-1].tiny).mean() < _ALIKE:
            left_out.append(Rejected(frame.name, "duplicate", f"as {kept[-1].name}"))
        else:
            kept.append(frame)
    for name, _, _ in left_out:
        (folder / name).unlink(missing_ok=True)
    return Extracted(kept, left_out)


def sharpness_of(pixels: NDArray[np.uint8]) -> float:
    """Variance of the Laplacian of the picture at about 320 × 240."""
    height, width = pixels.shape[:2]
    grey = _downscale(pixels, max(8, min(height, 240)), max(8, min(width, 320)))
    inner = grey[1:-1, 1:-1]
    edges = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4.0 * inner
    return float(edges.var())


def _downscale(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float32]:
    """Grey levels (height, width), each the mean of its pixels."""
    image = Image.fromarray(pixels).convert("L").resize((width, height), Image.Resampling.BOX)
    return np.asarray(image, np.float32)


def distance_along(time_s: Floats, xy: Floats) -> Travelled:
    """Metres along a path (N, 2) at a time; NaN before and after it."""
    known = ~np.isnan(xy[:, 0])
    times, places = time_s[known], xy[known]
    if len(times) < 2:
        raise InputError("fewer than two positions are known; frames by distance need a track, else give --every 2s")
    gone = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(places, axis=0).T))])
    return lambda when: float(np.interp(when, times, gone, left=np.nan, right=np.nan))

"""Frames of a video or bag: the sharpest of each slot of distance or time.

A journal lists the frames that are whole on disk: the same call continues after the last of them. Blurred frames and
duplicates are found at the end, from what the journal says, so that an interrupted run gives the same files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import replacing
from covis.core.progress import Meter

_KIND = "frames"
JOURNAL = "frames.jsonl"
WINDOW_S = 0.5
"""The sharpest frame in this many seconds from a slot's beginning is taken."""
BLURRED = 0.25
"""A frame with less than this share of its neighbours' median sharpness is left out."""
_NEIGHBOURS = 10
ALIKE = 1.0
"""Mean difference of grey levels (of 255) below which a frame repeats the one before."""
_TINY = 16
_JPEG_QUALITY = 92


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


@dataclass(frozen=True)
class Kept:
    """A frame on disk."""

    name: str
    slot: int
    time_s: float
    sharpness: float
    tiny: NDArray[np.uint8]
    """(16, 16) grey."""

    def line(self) -> str:
        """The frame as a line of the journal."""
        facts = {"name": self.name, "slot": self.slot, "time_s": self.time_s, "sharpness": self.sharpness}
        return json.dumps({**facts, "tiny": self.tiny.tobytes().hex()})

    @classmethod
    def read(cls, line: str) -> Kept:
        """From a line of the journal."""
        entry = json.loads(line)
        tiny = np.frombuffer(bytes.fromhex(entry["tiny"]), np.uint8).reshape(_TINY, _TINY)
        return cls(entry["name"], int(entry["slot"]), float(entry["time_s"]), float(entry["sharpness"]), tiny)


class Extracted(NamedTuple):
    """The frames that were kept and left out."""

    kept: list[Kept]
    left_out: list[tuple[str, str, str]]
    """(name, reason, detail): `blurred` or `duplicate`."""


Source = Callable[[float], Iterable[Frame]]
"""Frames from a time on (−inf for all), ascending; some before it may come too."""
Travelled = Callable[[float], float]
"""Time → metres gone, or seconds; NaN where unknown."""


def extract(source: Source, folder: Path, travelled: Travelled, every: Every, config: dict[str, Any]) -> Extracted:
    """Writes the frames of `source` into `folder`; the same `config` resumes an interrupted call."""
    with artifacts.claim(folder, _KIND, {**config, "every": f"{every.step:g}{every.unit}"}):
        done = _journal(folder)
        last = done[-1] if done else None
        with Meter("taking frames", None, "frames") as meter, (folder / JOURNAL).open("a", encoding="utf-8") as journal:
            meter.advance(len(done))
            after = -np.inf if last is None else last.time_s
            for slot, frame, sharpness in _sharpest(
                source(after), travelled, every.step, -1 if last is None else last.slot
            ):
                kept = _written(folder, slot, frame, sharpness)
                journal.write(kept.line() + "\n")
                journal.flush()
                done.append(kept)
                meter.advance()
        return _sifted(folder, done)


def _journal(folder: Path) -> list[Kept]:
    """Frames that are whole; a last line that was cut is dropped, from the file too."""
    file = folder / JOURNAL
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")
    whole = [line for line in lines[:-1] if line]  # a whole line ends in a line break
    if lines[-1]:
        file.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
    return [Kept.read(line) for line in whole]


def _sharpest(
    frames: Iterable[Frame], travelled: Travelled, step: float, last_slot: int
) -> Iterator[tuple[int, Frame, float]]:
    """(slot, frame, sharpness): the sharpest of the first moments of each slot."""
    best: tuple[int, Frame, float] | None = None
    began = 0.0
    for frame in frames:
        way = travelled(frame.time_s)
        slot = int(way // step) if np.isfinite(way) else last_slot
        if best is not None and slot != best[0]:
            yield best
            last_slot, best = best[0], None
        if slot <= last_slot or (best is not None and frame.time_s - began > WINDOW_S):
            continue
        if best is None:
            began = frame.time_s
        value = sharpness_of(frame.pixels)
        if best is None or value > best[2]:
            best = (slot, frame, value)
    if best is not None:
        yield best


def _written(folder: Path, slot: int, frame: Frame, sharpness: float) -> Kept:
    from PIL import Image

    name = f"frame-{slot:06d}.jpg"
    data = frame.encoded
    if data is None:
        buffer = io.BytesIO()
        Image.fromarray(frame.pixels).save(buffer, "JPEG", quality=_JPEG_QUALITY)
        data = buffer.getvalue()
    with replacing(folder / name, durable=False) as partial:
        partial.write_bytes(data)
    return Kept(name, slot, frame.time_s, sharpness, _small(frame.pixels, _TINY, _TINY).astype(np.uint8))


def _sifted(folder: Path, done: list[Kept]) -> Extracted:
    """Without blurred frames and duplicates, whose files are removed."""
    sharpness = np.array([k.sharpness for k in done])
    kept: list[Kept] = []
    left_out: list[tuple[str, str, str]] = []
    for i, frame in enumerate(done):
        usual = float(np.median(sharpness[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]))
        change = np.inf if not kept else float(np.abs(frame.tiny.astype(float) - kept[-1].tiny).mean())
        if frame.sharpness < BLURRED * usual:
            left_out.append((frame.name, "blurred", f"sharpness {frame.sharpness:.1f}, its neighbours' {usual:.1f}"))
        elif change < ALIKE:
            left_out.append((frame.name, "duplicate", f"as {kept[-1].name}"))
        else:
            kept.append(frame)
    for name, _, _ in left_out:
        (folder / name).unlink(missing_ok=True)
    return Extracted(kept, left_out)


def sharpness_of(pixels: NDArray[np.uint8]) -> float:
    """Variance of the Laplacian of the picture at about 320 × 240."""
    height, width = pixels.shape[:2]
    grey = _small(pixels, max(8, min(height, 240)), max(8, min(width, 320)))
    inner = grey[1:-1, 1:-1]
    edges = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4.0 * inner
    return float(edges.var())


def _small(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float32]:
    """Grey levels (height, width), each the mean of its pixels."""
    from PIL import Image

    image = Image.fromarray(pixels).convert("L").resize((width, height), Image.Resampling.BOX)
    return np.asarray(image, np.float32)


def distance_gone(time_s: Floats, xy: Floats) -> Travelled:
    """Metres along a path (N, 2) at a time; NaN before and after it."""
    known = ~np.isnan(xy[:, 0])
    times, places = time_s[known], xy[known]
    if len(times) < 2:
        raise InputError("fewer than two positions are known; frames by distance need a track, else give --every 2s")
    gone = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(places, axis=0).T))])

    def travelled(when_s: float) -> float:
        return float(np.interp(when_s, times, gone, left=np.nan, right=np.nan))

    return travelled

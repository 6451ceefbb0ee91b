"""Videos: frames by distance along a track or by time, with the track's positions (PyAV).

The video's clock is its container's creation time, which cameras set with more or less care: `offset_s` corrects it,
given, or estimated from how much the picture changes while the track moves. GoPro (GPMF), CAMM and BlackVue files carry
a track of their own, on the video's own clock (read by mapillary_tools). Extra: `pip install 'covis[video]'`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covis.core import artifacts
from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.files import check_regular, foreign, replacing
from covis.core.progress import Meter, say, warn
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.decoding import MAX_PIXELS
from covis.reading.tracks import MAX_GAP_S, Track

# Frames of a video or bag: the sharpest of each slot of distance or time
# A journal lists the frames that are whole on disk: the same call continues after the last of them. Blurred frames and
# duplicates are found at the end, from what the journal says, so that an interrupted run gives the same files.


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


# Videos


SAMPLE_HZ = 4.0
"""Rate at which change of picture and speed are compared."""
MAX_OFFSET_S = 120.0
LEAST_CORRELATION = 0.4
"""Below this, an estimated offset is not used."""
_COURSE_S = 1.0
"""The direction of travel is taken over this long on either side."""
_STILL_M = 0.3
_ONLY_THE_FILE = {"protocol_whitelist": "file", "format_whitelist": "mov,mp4,matroska,webm,avi,mpegts"}
"""Playlists are refused: other files, or addresses, would be opened in their place."""


@dataclass(frozen=True)
class Facts:
    """What a container says of its video."""

    start_s: float
    """Seconds since 1970 of the first frame; NaN where the file does not say."""
    seconds: float
    width: int
    height: int


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        import av
    except ImportError:
        raise InputError(f"{path} is a video; reading it needs PyAV: pip install 'covis[video]'") from None
    check_regular(path)
    try:
        with av.open(str(path), options=_ONLY_THE_FILE) as container:
            if not container.streams.video:
                raise InputError(f"{path} has no picture; give a video")
            yield container
    except av.error.FFmpegError as error:
        raise InputError(f"{path} cannot be read as a video ({error}); copy it again") from None


def facts(path: Path | str) -> Facts:
    """Times and size of a video, without decoding it."""
    path = Path(path)
    with _open(path) as container:
        stream = container.streams.video[0]
        metadata = {**stream.metadata, **container.metadata}
        seconds = float(container.duration or 0) / 1e6
        size = int(stream.codec_context.width), int(stream.codec_context.height)
    return Facts(_start(metadata.get("creation_time", "")), seconds, *size)


def _start(text: str) -> float:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return float("nan")
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return when.timestamp() if when.year > 1971 else float("nan")  # cameras without a clock write 1904 or 1970


def frames(path: Path, after_s: float = -np.inf) -> Iterator[Frame]:
    """Pictures from the key frame before `after_s` (seconds of the video) on, turned upright."""
    with _open(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        if after_s > 0 and np.isfinite(after_s):
            container.seek(int(after_s / float(stream.time_base)), stream=stream, backward=True)
        first = float((stream.start_time or 0) * stream.time_base)
        for picture in container.decode(stream):
            if picture.pts is None:
                continue
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(f"{path}: a picture has {picture.width} × {picture.height} pixels; too large")
            pixels = picture.to_ndarray(format="rgb24")
            turned = np.rot90(pixels, k=round(picture.rotation / 90))  # as players do, counter-clockwise
            yield Frame(float(picture.pts * stream.time_base) - first, np.ascontiguousarray(turned))


def embedded_track(path: Path, start_s: float) -> Track | None:
    """The track inside a video, its first frame at `start_s`; None where it has none."""
    try:
        from mapillary_tools.exceptions import MapillaryDescriptionError, MapillaryUserError
        from mapillary_tools.geotag.video_extractors.native import NativeVideoExtractor
    except ImportError:
        return None
    try:
        points = NativeVideoExtractor(path).extract().points
    except (MapillaryDescriptionError, MapillaryUserError, ValueError, OSError, EOFError) as error:
        if "GPSNotFound" not in type(error).__name__:
            warn(f"{path}: the track inside it cannot be used ({error})")
        return None
    height = [np.nan if p.alt is None else p.alt for p in points]
    table = np.array([[p.time, p.lat, p.lon, h] for p, h in zip(points, height, strict=True)])
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Track(start_s + table[:, 0], table[:, 1], table[:, 2], table[:, 3], np.zeros(len(table), np.int64))


class Clock(NamedTuple):
    """When the first frame was taken, and how that is known."""

    start_s: float
    offset_s: float
    correlation: float
    """Of change of picture and speed at that offset; NaN where the offset was given."""


@foreign("a video")
def import_video(
    path: Path | str,
    folder: Path | str,
    every: Every,
    *,
    track: Track | None = None,
    offset_s: float | None = 0.0,
    mount_deg: float | None = None,
) -> tuple[ImageSet, Extracted]:
    """Writes one frame per `every` into `folder`; blurred ones and duplicates are left out. Resumable.

    offset_s: seconds to add to the video's clock, None to estimate them. mount_deg: where the camera looks, clockwise
    from the direction of travel; without it headings are unknown.
    """
    path, folder = Path(path), Path(folder)
    properties = facts(path)
    start = 0.0 if np.isnan(properties.start_s) else properties.start_s
    own = embedded_track(path, start) if track is None else None
    if own is not None:
        say(f"{path}: positions are taken from the {len(own.time_s)} fixes inside it")
    elif track is None and every.unit == "m":
        raise InputError(f"--every {every.step:g}m needs positions for {path.name}: give --track, or --every 2s")
    clock = Clock(start, 0.0, float("nan")) if own is not None else _clock(path, properties, track, offset_s)
    track = track or own
    travelled: Any = float
    if track is not None and every.unit == "m":
        start, gone = clock.start_s, distance_gone(track.time_s, _xy(track))
        travelled = lambda when: gone(start + when)  # noqa: E731
    config = {"source": path.name, "bytes": path.stat().st_size, "start_s": round(clock.start_s, 3)}
    config["start_s"] = None if np.isnan(clock.start_s) else config["start_s"]
    done = extract(lambda after: frames(path, after), folder, travelled, every, config)
    if not done.kept:
        raise InputError(
            f"{path}: no frame lies within the track's times; check --clock-offset ({_spans(properties, track)})"
        )
    return _image_set(path, folder, done, clock, track, mount_deg), done


def _clock(path: Path, properties: Facts, track: Track | None, offset_s: float | None) -> Clock:
    if track is None:
        return Clock(properties.start_s, 0.0, float("nan"))
    start = properties.start_s
    if np.isnan(start):
        start = float(track.time_s[0])
        warn(f"{path} has no recording time; its first frame is placed at the track's first point")
    if offset_s is not None:
        return Clock(start + offset_s, offset_s, float("nan"))
    offset, correlation = estimate_offset(path, start, track)
    if correlation < LEAST_CORRELATION:
        warn(f"{path}: no clock offset fits (correlation {correlation:.2f}); 0 s is used, or give --clock-offset")
        return Clock(start, 0.0, correlation)
    say(f"{path}: clock offset {offset:+.2f} s (correlation of motion {correlation:.2f})")
    return Clock(start + offset, offset, correlation)


def _spans(properties: Facts, track: Track | None) -> str:
    if track is None or np.isnan(properties.start_s):
        return "the video does not say when it was taken"
    away = float(track.time_s[0]) - properties.start_s
    return f"the track begins {abs(away):.0f} s {'after' if away > 0 else 'before'} the video"


def estimate_offset(path: Path, start_s: float, track: Track, most_s: float = MAX_OFFSET_S) -> tuple[float, float]:
    """(seconds to add to the video's clock, correlation): where changes of the picture correlate best with speed."""
    times, change = _changes(path)
    if len(times) < 2 * SAMPLE_HZ:
        return 0.0, 0.0
    grid = np.arange(times[0], times[-1], 1 / SAMPLE_HZ)
    motion = _smoothed(np.log1p(np.interp(grid, times, change)))
    middle, speed = _speed(track)
    lags = np.arange(-most_s, most_s + 1e-9, 1 / SAMPLE_HZ)
    speeds = [_at(middle, speed, start_s + lag + grid) for lag in lags]
    correlations = np.array([_correlation(motion, values) for values in speeds])
    overlap = np.array([1.0 - np.isnan(values).mean() for values in speeds])
    scores = np.arctanh(np.clip(correlations, -0.999, 0.999)) * np.sqrt(
        overlap
    )  # a long agreement says more than a short one
    best = int(np.argmax(scores))
    if not 0 < best < len(lags) - 1:
        return float(lags[best]), float(correlations[best])
    left, top, right = scores[best - 1 : best + 2]
    bend = left - 2 * top + right
    finer = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return float(lags[best] + finer / SAMPLE_HZ), float(correlations[best])


def _changes(path: Path) -> tuple[Floats, Floats]:
    """Mean change of grey levels per second between small pictures `SAMPLE_HZ` apart."""
    times, values = [], []
    before: tuple[float, Any] | None = None
    with Meter("comparing clocks", None, "frames") as meter:
        for frame in frames(path):
            meter.advance()
            if before is not None and frame.time_s - before[0] < 1 / SAMPLE_HZ - 1e-3:
                continue
            small = frame.pixels[:: max(1, frame.pixels.shape[0] // 48), :: max(1, frame.pixels.shape[1] // 64)].mean(
                axis=2
            )
            if before is not None:
                times.append(0.5 * (frame.time_s + before[0]))
                values.append(float(np.abs(small - before[1]).mean()) / (frame.time_s - before[0]))
            before = frame.time_s, small
    return np.array(times), np.array(values)


def _speed(track: Track) -> tuple[Floats, Floats]:
    """Times between points and m/s there; NaN over gaps."""
    span = np.diff(track.time_s)
    metres = np.hypot(*np.diff(_xy(track), axis=0).T)
    usable = (span > 0) & (span <= MAX_GAP_S)
    speed = np.divide(metres, span, out=np.full(len(span), np.nan), where=usable)
    return 0.5 * (track.time_s[1:] + track.time_s[:-1]), np.log1p(speed)


def _at(times: Floats, values: Floats, when: Floats) -> Floats:
    interpolated: Floats = np.interp(when, times, values, left=np.nan, right=np.nan)
    return interpolated


def _smoothed(values: Floats) -> Floats:
    kernel = np.ones(5) / 5
    result: Floats = np.convolve(np.pad(values, 2, mode="edge"), kernel, mode="valid")
    return result


def _correlation(a: Floats, b: Floats) -> float:
    """Pearson's, over at least half of the samples; −1 where it cannot be computed."""
    known = ~np.isnan(b)
    if known.sum() < 0.5 * len(a):
        return -1.0
    x, y = a[known] - a[known].mean(), b[known] - b[known].mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else -1.0


def _xy(track: Track) -> Floats:
    return Poses.from_latlon(track.lat, track.lon).xy


def _image_set(
    path: Path, folder: Path, done: Extracted, clock: Clock, track: Track | None, mount_deg: float | None
) -> ImageSet:
    """The frames with positions by time, and headings where the camera's mount is known."""
    video_s = np.array([k.time_s for k in done.kept])
    when = clock.start_s + video_s
    names = [k.name for k in done.kept]
    columns = {"time": when, "video_s": video_s}
    if track is None:
        nowhere = Poses(np.full((len(names), 2), np.nan), np.full(len(names), np.nan))
        return ImageSet.of(folder, names, nowhere, path.stem, columns=columns)
    place = track.at(when)
    heading = np.full(len(names), np.nan) if mount_deg is None else (course_at(track, when) + mount_deg) % 360.0
    height = None if np.isnan(place[:, 2]).all() else place[:, 2]
    poses = Poses.from_latlon(place[:, 0], place[:, 1], heading, z=height)
    return ImageSet.of(folder, names, poses, path.stem, columns=columns)


def course_at(track: Track, when: Floats) -> Floats:
    """(N,) degrees clockwise from true north of the direction of travel; NaN where the track stands still."""
    before, after = track.at(when - _COURSE_S), track.at(when + _COURSE_S)
    positions = track.at(when)
    before, after = (np.where(np.isnan(side), positions, side) for side in (before, after))
    north = after[:, 0] - before[:, 0]
    east = ((after[:, 1] - before[:, 1] + 180.0) % 360.0 - 180.0) * np.cos(np.radians(positions[:, 0]))
    still = np.hypot(north, east) * 111_195.0 < _STILL_M
    course: Floats = np.where(still, np.nan, np.degrees(np.arctan2(east, north)) % 360.0)
    return course

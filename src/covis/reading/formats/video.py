"""Videos: frames by distance along a track or by time, with the track's positions (PyAV).

The video's clock is its container's creation time, which cameras set with more or less care: `offset_s` corrects it.
Extra: `pip install 'covis[video]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from covis.core.arrays import Floats
from covis.core.errors import InputError
from covis.core.foreign import check_regular, foreign
from covis.core.progress import warn
from covis.images import ImageSet
from covis.poses import Poses
from covis.reading.decoding import MAX_PIXELS
from covis.reading.frames import Every, Extracted, Frame, distance_gone, extract
from covis.reading.tracks import Track

_COURSE_S = 1.0
"""The direction of travel is taken over this long on either side."""
_STILL_M = 0.3
_ONLY_THE_FILE = {"protocol_whitelist": "file", "format_whitelist": "mov,mp4,matroska,webm,avi,mpegts"}
"""Playlists are refused: other files, or addresses, would be opened in their place."""


@contextmanager
def _open_video(path: Path) -> Iterator[Any]:
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


def recording_start(path: Path) -> float:
    """Seconds since 1970 of the first frame; NaN where the file does not say."""
    with _open_video(path) as container:
        text = {**container.streams.video[0].metadata, **container.metadata}.get("creation_time", "")
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return float("nan")
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return when.timestamp() if when.year > 1971 else float("nan")  # cameras without a clock write 1904 or 1970


def frames(path: Path) -> Iterator[Frame]:
    """Every picture in order, turned upright."""
    with _open_video(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        first = float((stream.start_time or 0) * stream.time_base)
        for picture in container.decode(stream):
            if picture.pts is None:
                continue
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(f"{path}: a picture has {picture.width} × {picture.height} pixels; too large")
            pixels = picture.to_ndarray(format="rgb24")
            turned = np.rot90(pixels, k=round(picture.rotation / 90))  # as players do, counter-clockwise
            yield Frame(float(picture.pts * stream.time_base) - first, np.ascontiguousarray(turned))


@foreign("a video")
def import_video(
    path: Path | str,
    folder: Path | str,
    every: Every,
    *,
    track: Track | None = None,
    offset_s: float = 0.0,
    mount_deg: float | None = None,
) -> tuple[ImageSet, Extracted]:
    """Writes one frame per `every` into `folder`; blurred ones and duplicates are left out.

    offset_s: seconds to add to the video's clock. mount_deg: where the camera looks, clockwise
    from the direction of travel; without it headings are unknown.
    """
    path, folder = Path(path), Path(folder)
    recorded_s = recording_start(path)
    if track is None and every.unit == "m":
        raise InputError(f"--every {every.step:g}m needs positions for {path.name}: give --track, or --every 2s")
    start_s = _start_on_track(path, recorded_s, track, offset_s)
    travelled: Any = float
    if track is not None and every.unit == "m":
        gone = distance_gone(track.time_s, Poses.from_latlon(track.lat, track.lon).xy)
        travelled = lambda when: gone(start_s + when)  # noqa: E731
    known_start = None if np.isnan(start_s) else round(start_s, 3)
    config = {"source": path.name, "bytes": path.stat().st_size, "start_s": known_start}
    done = extract(frames(path), folder, travelled, every, config)
    if not done.kept:
        raise InputError(
            f"{path}: no frame lies within the track's times; check --clock-offset ({_clock_gap(recorded_s, track)})"
        )
    return _image_set(path, folder, done, start_s, track, mount_deg), done


def _start_on_track(path: Path, recorded_s: float, track: Track | None, offset_s: float) -> float:
    """Seconds since 1970 of the first frame; NaN where neither video nor track can say."""
    if track is None:
        return recorded_s
    if not np.isnan(recorded_s):
        return recorded_s + offset_s
    warn(f"{path} has no recording time; its first frame is placed at the track's first point")
    return float(track.time_s[0]) + offset_s


def _clock_gap(recorded_s: float, track: Track | None) -> str:
    if track is None or np.isnan(recorded_s):
        return "the video does not say when it was taken"
    away = float(track.time_s[0]) - recorded_s
    return f"the track begins {abs(away):.0f} s {'after' if away > 0 else 'before'} the video"


def _image_set(
    path: Path, folder: Path, done: Extracted, start_s: float, track: Track | None, mount_deg: float | None
) -> ImageSet:
    """The frames with positions by time, and headings where the camera's mount is known."""
    video_s = np.array([k.time_s for k in done.kept])
    when = start_s + video_s
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

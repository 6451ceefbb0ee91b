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
from covis.reading.decoding import MAX_PIXELS, Rejected
from covis.reading.frames import Every, Frame, Travelled, distance_along, extract
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
    path: Path,
    folder: Path,
    every: Every,
    *,
    track: Track | None = None,
    offset_s: float = 0.0,
    mount_deg: float | None = None,
) -> tuple[ImageSet, list[Rejected]]:
    """Writes one frame per `every` into `folder`; blurred ones and duplicates are left out.

    offset_s: seconds to add to the video's clock. mount_deg: where the camera looks, clockwise
    from the direction of travel; without it headings are unknown.
    """
    if track is None and every.unit == "m":
        raise InputError(f"--every {every.step:g}m needs positions for {path.name}: give --track, or --every 2s")
    start_s = _start_on_track(path, track, offset_s)
    travelled: Travelled = float
    if track is not None and every.unit == "m":
        gone = distance_along(track.time_s, Poses.from_latlon(track.lat, track.lon).xy)
        travelled = lambda when: gone(start_s + when)  # noqa: E731
    config = {"source": path.name, "start_s": None if np.isnan(start_s) else round(start_s, 3)}
    taken = extract(frames(path), folder, travelled, every, config)
    if not taken.kept:
        away = "" if track is None else f" (the track begins {track.time_s[0] - start_s:+.0f} s after the video)"
        raise InputError(f"{path}: no frame lies within the track's times{away}; check --clock-offset")
    video_s = np.array([frame.time_s for frame in taken.kept])
    poses = _poses_on_track(track, start_s + video_s, mount_deg)
    columns = {"time": start_s + video_s, "video_s": video_s}
    return ImageSet.of(folder, [frame.name for frame in taken.kept], poses, path.stem, columns=columns), taken.left_out


def _start_on_track(path: Path, track: Track | None, offset_s: float) -> float:
    """Seconds since 1970 of the first frame; NaN where neither video nor track can say."""
    start_s = recording_start(path)
    if np.isnan(start_s) and track is not None:
        warn(f"{path} has no recording time; its first frame is placed at the track's first point")
        start_s = float(track.time_s[0])
    return start_s + offset_s


def _poses_on_track(track: Track | None, when: Floats, mount_deg: float | None) -> Poses:
    """Positions by time, and headings where the camera's mount is known."""
    unknown = np.full(len(when), np.nan)
    if track is None:
        return Poses(np.column_stack([unknown, unknown]), unknown)
    lat, lon, height = track.at(when).T
    heading = unknown if mount_deg is None else (course_at(track, when) + mount_deg) % 360.0
    return Poses.from_latlon(lat, lon, heading, z=None if np.isnan(height).all() else height)


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

"""Videos written by PyAV, read by covis: frames by distance and time, clocks, blur, duplicates, interruption."""

from datetime import UTC, datetime

import gpxpy.gpx
import numpy as np
import pytest
from PIL import Image, ImageFilter

from covis.core.errors import InputError
from covis.poses import Poses
from covis.reading import frames as taking
from covis.reading.formats.video import course_at, import_video, recording_start
from covis.reading.frames import Every
from covis.reading.tracks import Track, read_track

av = pytest.importorskip("av", reason="writes the videos")

START = 1717236000.0  # 2024-06-01T10:00:00Z
FPS = 10
RNG = np.random.default_rng(7)
STREET = np.asarray(
    Image.fromarray(RNG.integers(0, 255, (30, 600, 3), dtype=np.uint8)).resize((4800, 96), Image.Resampling.BICUBIC)
)


def write(path, places, *, blurred=(), creation="2024-06-01T10:00:00.000000Z"):
    """A camera that slides along a street to `places` (pixels), one frame each."""
    with av.open(str(path), "w") as container:
        if creation:
            container.metadata["creation_time"] = creation
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 128, 96, "yuv420p", 4_000_000
        for i, x in enumerate(places):
            picture = Image.fromarray(STREET[:, int(x) : int(x) + 128])
            if i in blurred:
                picture = picture.filter(ImageFilter.GaussianBlur(6))
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def stop_and_go(seconds=40):
    """Metres gone, ten times a second: five seconds ride, three seconds halt, and so on with other speeds."""
    t = np.arange(seconds * FPS) / FPS
    speed = np.where((t % 8) < 5, 4.0 + 2 * np.sin(t), 0.0)
    return t, np.cumsum(speed) / FPS


def track_of(t, metres, ahead_s=5.0):
    """The same ride northwards, once a second, from before to after it."""
    when = np.arange(-ahead_s, t[-1] + ahead_s)
    north = np.interp(when, t, metres)
    lat = 52.0 + north / 111_267.0  # a degree of latitude there
    still = np.zeros(len(when))
    return Track(START + when, lat, still + 13.0, still + 34.0, still.astype(np.int64))


@pytest.fixture(scope="module")
def ride(tmp_path_factory):
    t, metres = stop_and_go()
    path = tmp_path_factory.mktemp("video") / "walk.mp4"
    return write(path, metres * 20), track_of(t, metres), t, metres


def test_frames_by_distance_lie_that_far_apart(ride, tmp_path):
    path, track, _, metres = ride
    images, left_out = import_video(path, tmp_path / "f", Every.parse("5m"), track=track, mount_deg=0.0)
    assert abs(len(images) - metres[-1] / 5) <= 2
    gaps = np.hypot(*np.diff(images.poses.xy, axis=0).T)
    assert gaps.min() > 2.0
    assert np.median(gaps) == pytest.approx(5.0, abs=0.7)
    np.testing.assert_allclose(images.poses.latlon()[:, 1], 13.0, atol=1e-9)
    known = images.poses.heading[~np.isnan(images.poses.heading)]
    assert np.abs((known + 180) % 360 - 180).max() < 1.0
    assert all(images.path(i).is_file() for i in range(len(images)))
    expected = np.interp(images.columns["video_s"], *_ride_path(ride))
    np.testing.assert_allclose(images.poses.xy[:, 1] - images.poses.xy[0, 1], expected - expected[0], atol=1.5)
    assert not left_out


def _ride_path(ride):
    return ride[2], ride[3]


def test_frames_by_time_leave_out_the_halts(ride, tmp_path):
    path, track, *_ = ride
    images, left_out = import_video(path, tmp_path / "f", Every.parse("1s"), track=track)
    reasons = {reason for _, reason, _ in left_out}
    assert reasons == {"duplicate"}
    assert len(images) + len(left_out) == 40
    assert 5 <= len(left_out) <= 15
    assert sorted(p.name for p in (tmp_path / "f").glob("*.jpg")) == sorted(images.name(i) for i in range(len(images)))
    assert np.isnan(images.poses.heading).all()


def test_blurred_frames_are_left_out(tmp_path):
    path = write(tmp_path / "v.mp4", np.arange(100) * 8, blurred=range(40, 52))
    images, left_out = import_video(path, tmp_path / "f", Every.parse("1s"))
    assert [(name, reason) for name, reason, _ in left_out] == [("frame-000004.jpg", "blurred")]
    assert len(images) == 9
    sharp = write(tmp_path / "w.mp4", np.arange(100) * 8, blurred=[40, 41])
    images, left_out = import_video(sharp, tmp_path / "g", Every.parse("1s"))
    assert len(images) == 10  # a sharp frame right behind is taken instead


def test_an_interrupted_run_gives_the_same_files(ride, tmp_path, monkeypatch):
    path, track, *_ = ride
    whole, _ = import_video(path, tmp_path / "whole", Every.parse("5m"), track=track)
    count = 0
    original = taking._write_frame

    def stops(*args):
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(taking, "_write_frame", stops)
        with pytest.raises(KeyboardInterrupt):
            import_video(path, tmp_path / "f", Every.parse("5m"), track=track)
    images, _ = import_video(path, tmp_path / "f", Every.parse("5m"), track=track)
    assert images.fingerprint() == whole.fingerprint()
    for i in range(len(whole)):
        assert images.path(i).read_bytes() == whole.path(i).read_bytes()
    with pytest.raises(InputError, match="every: 5m → 2s"):
        import_video(path, tmp_path / "f", Every.parse("2s"), track=track)


def test_a_gpx_file_of_gpxpy_says_the_same(ride, tmp_path):
    track = ride[1]
    gpx = gpxpy.gpx.GPX()
    gpx.tracks.append(gpxpy.gpx.GPXTrack())
    gpx.tracks[0].segments.append(gpxpy.gpx.GPXTrackSegment())
    for when, lat, lon, height in zip(track.time_s, track.lat, track.lon, track.altitude, strict=True):
        time = datetime.fromtimestamp(float(when), UTC)
        gpx.tracks[0].segments[0].points.append(gpxpy.gpx.GPXTrackPoint(lat, lon, elevation=height, time=time))
    (tmp_path / "walk.gpx").write_text(gpx.to_xml())
    read = read_track(tmp_path / "walk.gpx")
    np.testing.assert_allclose(read.at(track.time_s), track.at(track.time_s), atol=1e-9)


def test_bad_input_is_told(ride, tmp_path):
    path, track, *_ = ride
    with pytest.raises(InputError, match="give --track, or --every 2s"):
        import_video(path, tmp_path / "a", Every.parse("5m"))
    later = Track(track.time_s + 9999, track.lat, track.lon, track.altitude, track.segment)
    with pytest.raises(InputError, match=r"no frame lies within.*\+9994 s after the video"):
        import_video(path, tmp_path / "b", Every.parse("5m"), track=later)
    (tmp_path / "no.mp4").write_bytes(b"text")
    with pytest.raises(InputError, match=r"no\.mp4 cannot be read as a video"):
        import_video(tmp_path / "no.mp4", tmp_path / "c", Every.parse("2s"))
    for text in ("5", "5km", "0m", "-1s"):
        with pytest.raises(InputError, match="expected one like 5m or 2s"):
            Every.parse(text)


def test_a_video_without_a_time_begins_with_its_track(ride, tmp_path, capsys):
    _, track, _, metres = ride
    path = write(tmp_path / "v.mp4", metres[:100] * 20, creation="")
    assert np.isnan(recording_start(path))
    images, _ = import_video(path, tmp_path / "f", Every.parse("2s"), track=track)
    assert images.columns["time"][0] == track.time_s[0]
    assert "has no recording time" in capsys.readouterr().err


def test_course_follows_the_track():
    t = np.arange(20.0)
    still = np.zeros(20)
    east = Track(t, still + 52.0, 13.0 + t * 1e-4, still, still.astype(np.int64))
    np.testing.assert_allclose(course_at(east, t[2:-2]), 90.0, atol=1e-6)
    assert np.isnan(course_at(Track(t, still + 52, still + 13, still, still.astype(np.int64)), t)).all()
    assert Poses.from_latlon(east.lat, east.lon).frame

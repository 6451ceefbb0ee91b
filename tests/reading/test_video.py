"""Videos written by PyAV, read by covis: frames by distance and time, clocks, blur, duplicates, interruption."""

import subprocess
import sys
import time as time_module
from datetime import UTC, datetime

import gpxpy.gpx
import numpy as np
import pytest
from PIL import Image, ImageFilter

from covis.core.errors import InputError
from covis.poses import Poses
from covis.reading import frames as taking
from covis.reading.formats.video import course_at, facts, frames, import_video
from covis.reading.frames import Every
from covis.reading.table import read_table
from covis.reading.tracks import Track

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
    images, done = import_video(path, tmp_path / "f", Every.parse("5m"), track=track, mount_deg=0.0)
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
    assert not done.left_out


def _ride_path(ride):
    return ride[2], ride[3]


def test_frames_by_time_leave_out_the_halts(ride, tmp_path):
    path, track, *_ = ride
    images, done = import_video(path, tmp_path / "f", Every.parse("1s"), track=track)
    reasons = {reason for _, reason, _ in done.left_out}
    assert reasons == {"duplicate"}
    assert len(images) + len(done.left_out) == 40
    assert 5 <= len(done.left_out) <= 15
    assert sorted(p.name for p in (tmp_path / "f").glob("*.jpg")) == sorted(images.name(i) for i in range(len(images)))
    assert np.isnan(images.poses.heading).all()


def test_blurred_frames_are_left_out(tmp_path):
    path = write(tmp_path / "v.mp4", np.arange(100) * 8, blurred=range(40, 52))
    images, done = import_video(path, tmp_path / "f", Every.parse("1s"))
    assert [(name, reason) for name, reason, _ in done.left_out] == [("frame-000004.jpg", "blurred")]
    assert len(images) == 9
    sharp = write(tmp_path / "w.mp4", np.arange(100) * 8, blurred=[40, 41])
    images, done = import_video(sharp, tmp_path / "g", Every.parse("1s"))
    assert len(images) == 10  # a sharp frame right behind is taken instead


def test_an_interrupted_run_gives_the_same_files(ride, tmp_path, monkeypatch):
    path, track, *_ = ride
    whole, _ = import_video(path, tmp_path / "whole", Every.parse("5m"), track=track)
    count = 0
    original = taking._written

    def stops(*args):
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(taking, "_written", stops)
        with pytest.raises(KeyboardInterrupt):
            import_video(path, tmp_path / "f", Every.parse("5m"), track=track)
    with (tmp_path / "f" / taking.JOURNAL).open("a") as journal:
        journal.write('{"name": "frame-0000')  # killed while writing a line
    images, _ = import_video(path, tmp_path / "f", Every.parse("5m"), track=track)
    assert images.fingerprint() == whole.fingerprint()
    for i in range(len(whole)):
        assert images.path(i).read_bytes() == whole.path(i).read_bytes()
    with pytest.raises(InputError, match="every: 5m → 2s"):
        import_video(path, tmp_path / "f", Every.parse("2s"), track=track)


def test_bad_input_is_told(ride, tmp_path):
    path, track, *_ = ride
    with pytest.raises(InputError, match="give --track, or --every 2s"):
        import_video(path, tmp_path / "a", Every.parse("5m"))
    later = Track(track.time_s + 9999, track.lat, track.lon, track.altitude, track.segment)
    with pytest.raises(InputError, match=r"no frame lies within.*begins 9994 s after the video"):
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
    told = facts(path)
    assert np.isnan(told.start_s)
    assert told.seconds == pytest.approx(10.0, abs=0.2)
    images, _ = import_video(path, tmp_path / "f", Every.parse("2s"), track=track)
    assert images.columns["time"][0] == track.time_s[0]
    assert "has no recording time" in capsys.readouterr().err


def test_frames_come_from_the_key_frame_before(ride):
    path, *_ = ride
    all_times = [f.time_s for f in frames(path)]
    later = [f.time_s for f in frames(path, 20.0)]
    assert later[0] <= 20.0
    assert later == all_times[-len(later) :]


def test_course_follows_the_track():
    t = np.arange(20.0)
    still = np.zeros(20)
    east = Track(t, still + 52.0, 13.0 + t * 1e-4, still, still.astype(np.int64))
    np.testing.assert_allclose(course_at(east, t[2:-2]), 90.0, atol=1e-6)
    assert np.isnan(course_at(Track(t, still + 52, still + 13, still, still.astype(np.int64)), t)).all()
    assert Poses.from_latlon(east.lat, east.lon).frame


def test_a_killed_import_goes_on_and_gives_the_same_files(ride, tmp_path):
    """SIGKILL to the command itself once some frames are written; the same command again finishes what it left."""
    path, track, *_ = ride
    gpx = gpxpy.gpx.GPX()
    gpx.tracks.append(gpxpy.gpx.GPXTrack())
    gpx.tracks[0].segments.append(gpxpy.gpx.GPXTrackSegment())
    for when, lat, lon, height in zip(track.time_s, track.lat, track.lon, track.altitude, strict=True):
        time = datetime.fromtimestamp(float(when), UTC)
        gpx.tracks[0].segments[0].points.append(gpxpy.gpx.GPXTrackPoint(lat, lon, elevation=height, time=time))
    (tmp_path / "walk.gpx").write_text(gpx.to_xml())
    command = [sys.executable, "-m", "covis", "data", "import", str(path), "--track", str(tmp_path / "walk.gpx")]
    command += ["--every", "2m", "-o", str(tmp_path / "killed.csv")]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    journal = tmp_path / "killed.frames" / taking.JOURNAL
    for _ in range(12000):
        if run.poll() is not None or (journal.is_file() and journal.read_bytes().count(b"\n") >= 3):
            break
        time_module.sleep(0.005)
    assert run.poll() is None  # it was still at work
    run.kill()
    run.wait()
    assert not (tmp_path / "killed.csv").exists()
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    killed = read_table(tmp_path / "killed.csv")
    whole, _ = import_video(path, tmp_path / "whole", Every.parse("2m"), track=track)
    assert len(killed) == len(whole) > 20
    np.testing.assert_allclose(killed.poses.latlon(), whole.poses.latlon(), atol=1e-9)  # gpxpy's file says the same
    for i in range(len(whole)):
        assert killed.path(i).read_bytes() == whole.path(i).read_bytes()

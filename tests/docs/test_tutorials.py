"""The tutorials, run as written on miniatures."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli import wall
from covis.cli import main
from covis.models import ModelConfig, PlaceModel

ROOT = Path(__file__).resolve().parents[2]
START = "2024-06-01T10:00:{:06.3f}Z"


def blocks(page, kinds):
    """(kind, text) of the fenced blocks of a section, `PAGE#HEADING`, or of the whole page up to its first reference."""
    name, _, heading = page.partition("#")
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    if heading:
        text = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
    return [m for m in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if m[0] in kinds]


def run_page(page, capsys, skip=(), more=None):
    """Runs its commands in the current folder; `more` holds what a verb needs here beside what is written."""
    ran = []
    for kind, text in blocks(page, ("sh", "python")):
        if kind == "python":
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=280)
            assert done.returncode == 0, done.stderr
            continue
        for line in text.splitlines():
            if any(word in line for word in skip):
                continue
            with pytest.raises(SystemExit) as stopped:
                main([*shlex.split(line)[1:], *(more or {}).get(line.split()[1], ())])
            assert not stopped.value.code, f"{line}\n{capsys.readouterr().err}"
            ran.append(line)
    return ran


def retrieval(path):
    """query → names, as hloc reads a list of pairs (`parse_retrieval` of hloc/utils/parsers.py, restated)."""
    found = {}
    for line in path.read_text().rstrip("\n").split("\n"):
        if len(line) == 0:
            continue
        query, name = line.split()
        found.setdefault(query, []).append(name)
    return found


def small_model(folder):
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=1).save(folder / "runs" / "quick" / "model")


def walk_with_camera(folder):
    """A ride with stops along a painted street, its track, and a photo of it."""
    av = pytest.importorskip("av", reason="needs the `video` extra")
    rng = np.random.default_rng(7)
    small = Image.fromarray(rng.integers(0, 255, (3, 60, 3), dtype=np.uint8))
    street = np.asarray(small.resize((4800, 96), Image.Resampling.BICUBIC))
    t = np.arange(400) / 10
    metres = np.cumsum(np.where((t % 8) < 5, 4.0 + 2 * np.sin(t), 0.0)) / 10
    with av.open(str(folder / "walk.mp4"), "w") as container:
        container.metadata["creation_time"] = "2024-06-01T10:00:00.000000Z"
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 128, 96, "yuv420p", 4_000_000
        for x in metres * 20:
            picture = Image.fromarray(street[:, int(x) : int(x) + 128])
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    late_s = 3.0  # the camera's clock
    points = [
        f'<trkpt lat="{52.5 + np.interp(s, t, metres) / 111_267:.9f}" lon="13.4"><time>{START.format(s + late_s)}</time></trkpt>'
        for s in range(40)
    ]
    text = f'<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{"".join(points)}</trkseg></trk></gpx>'
    (folder / "walk.gpx").write_text(text)
    spot = int(metres[196] * 20)  # what the camera saw after 19.6 s, at 51 m
    Image.fromarray(street[:, spot : spot + 128]).save(folder / "question.jpg", quality=95)
    return metres


def test_a_video_becomes_a_served_map(tmp_path, monkeypatch, capsys):
    metres = walk_with_camera(tmp_path)
    small_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = run_page("tools.md#A video with GPX to a served map", capsys, skip=("covis train", "covis serve"))
    assert [line.split()[1] for line in ran][-2:] == ["index", "locate"]
    from covis.reading.table import read_table

    frames = read_table("walk.csv")
    assert abs(len(frames) - metres[-1] / 5) <= 3
    assert (tmp_path / "found.html").is_file()
    answer = capsys.readouterr().out
    nearest = re.search(r"^  1\. .*?(52\.50\d+), (13\.\d+)", answer, re.MULTILINE)
    assert abs((float(nearest[1]) - 52.5) * 111_267 - metres[196]) < 8
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi", reason="needs the `serve` extra")
    from service import served

    assert "covis serve walk.map" in (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    with served.process(tmp_path / "walk.map") as (_, address), (tmp_path / "question.jpg").open("rb") as photo:
        told = httpx.post(f"{address}/v1/locate", files={"photo": photo}, timeout=280)
    assert told.status_code == 200
    assert nearest[1][:7] in told.text


def test_a_colmap_model_becomes_pairs_and_poses(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pycolmap", reason="needs the `sfm` extra")
    wall.build(tmp_path)
    (tmp_path / "query.jpg").rename(tmp_path / "question.jpg")
    small_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = run_page("tools.md#A COLMAP model to pairs and poses", capsys)
    assert [line.split()[1] for line in ran] == ["label", "pairs", "pairs", "data", "index", "locate"]
    for file in ("pairs-overlap.txt", "pairs-retrieval.txt"):
        read = retrieval(Path(file))
        assert sum(map(len, read.values())) == 15
        assert {*read} | {name for names in read.values() for name in names} == {f"{i}.png" for i in range(6)}
    import pycolmap

    database = pycolmap.Database.open("matches.db")
    assert database.num_matched_image_pairs() == 15
    database.close()
    import h5py

    with h5py.File("global-feats.h5") as features:
        assert sorted(features) == [f"{i}.png" for i in range(6)]
    from covis.graph import SimilarityGraph

    assert SimilarityGraph.open("graph").pairs >= 10
    assert "matches agree" in capsys.readouterr().out


@pytest.mark.slow
def test_a_study_from_training_to_a_figure(hamlet, tmp_path, monkeypatch, capsys):
    from covis.town.dataset import default_folder

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    default_folder().symlink_to(hamlet)
    tiny = ["--workers", "0"]
    for setting in ("model.image_size=[32,48]", "batches.size=4", "steps=2", "validations=1"):
        tiny += ["--set", setting]
    ran = run_page(
        "train.md#A study: train, evaluate, compare, report",
        capsys,
        more={"train": tiny, "sweep": [*tiny, "--seeds", "1"]},
    )
    verbs = [line.split()[1] for line in ran]
    assert verbs == ["list", *["train"] * 3, *["evaluate"] * 2, *["compare"] * 2, "sweep", "compare", *["report"] * 2]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert {"cl", "gcl"} <= set(re.findall(r'<th scope="row">(\w+)</th>', page))
    assert '<section id="training">' in page
    assert (tmp_path / "recall.pdf").read_bytes().startswith(b"%PDF")
    assert b"/Type3" not in (tmp_path / "recall.pdf").read_bytes()


def phone_photos(folder, walk, start, count):
    """Blobs of colour along a street northwards, 11 m apart, with GPS as a phone writes it."""
    (folder / walk).mkdir(parents=True)
    for i in range(start, start + count):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        exif = Image.Exif()
        exif[0x8825] = {
            1: "N",
            2: (55.701 + 0.0001 * i, 0.0, 0.0),
            3: "E",
            4: (13.204, 0.0, 0.0),
            16: "T",
            17: 10.0 * i,
        }
        Image.fromarray(small).resize((48, 36)).save(folder / walk / f"IMG_{i:04d}.jpg", exif=exif)


def test_phone_photos_become_a_map_that_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    small_model(tmp_path)
    for walk in ("summer-noon", "autumn-evening", "dusk-rain"):
        phone_photos(tmp_path / "photos", walk, 0, 8)
    phone_photos(tmp_path / "new", "winter-haze", 3, 2)
    phone_photos(tmp_path / "later", "spring", 2, 4)
    ran = []
    for section in ("Make the map", "Locate photos", "Maintain the map"):
        ran += run_page(f"photos.md#{section}", capsys, more={"index": ("--model", "runs/quick")})
    assert {line.split()[1] for line in ran} == {"index", "locate", "add", "map"}
    assert "55.7013" in (tmp_path / "found.csv").read_text(encoding="utf-8")
    assert "<html" in (tmp_path / "found.html").read_text(encoding="utf-8")
    assert (tmp_path / "town.covis").stat().st_size > 0

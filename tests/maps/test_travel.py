"""Maps that travel: the same answers on the other side, nothing executed, every damaged byte found."""

import io
import json
import shutil
import zipfile
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from simulated import World, image_set, simulated_map, store, tiny

from covis.cli import main
from covis.core.errors import InputError
from covis.images import encode_names
from covis.maps.archive import LISTING, export_map, import_map
from covis.maps.map import Map
from covis.poses import Poses


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    return simulated_map(tmp_path_factory.mktemp("town"), groups=8, photos=10)


@pytest.fixture(scope="module")
def packed(town, tmp_path_factory):
    file = tmp_path_factory.mktemp("file") / "town.covis"
    assert export_map(town[0], file) == file.stat().st_size
    return file


def answers(map_, world):
    vectors = world.describe(map_.images.poses.xy[:20], np.random.default_rng(3))
    found = map_.search(vectors, 5)
    return [[map_.images.name(int(i)) for i in row] for row in found.ids], found.distances.tolist()


def test_an_exported_map_answers_the_same(town, packed, tmp_path):
    map_, world = town
    back = import_map(packed, tmp_path / "back.map")
    assert answers(back, world) == answers(map_, world)
    assert back.calibration.summary() == map_.calibration.summary()
    assert (back.model_fingerprint, back.version, back.network.backbone) == (
        map_.model_fingerprint,
        1,
        map_.network.backbone,
    )
    assert np.array_equal(back.images.poses.xy, map_.images.poses.xy)
    assert len(back.remove([back.images.name(0)])) == len(map_) - 1
    assert Map.open(back.path, verify=True).version == 2


def test_paths_of_photos_stay_at_home(town, packed, tmp_path):
    map_, _ = town
    home = str(map_.file(0).parent).encode()
    assert home not in packed.read_bytes()
    here = import_map(packed, tmp_path / "m", photos=tmp_path / "photos")
    assert here.file(0) == tmp_path / "photos" / here.images.name(0)


def rewritten(packed, target, change):
    """The archive with its members changed by `change(name, data) -> data or None`."""
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
        for name, data in getattr(change, "more", {}).items():
            new.writestr(name, data)
    return target


def test_one_flipped_bit_is_found_in_every_file(packed, tmp_path):
    with zipfile.ZipFile(packed) as archive:
        names = [n for n in archive.namelist() if n != LISTING and archive.getinfo(n).file_size]
    for name in names:

        def flip(member, data, name=name):
            return data[:-1] + bytes([data[-1] ^ 1]) if member == name else data

        with pytest.raises(InputError, match="damaged"):
            import_map(rewritten(packed, tmp_path / "x.covis", flip), tmp_path / "m")
        assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "model/../../evil", "model/run.py/x", "extra.bin"])
def test_what_leads_outside_or_is_not_listed_is_refused(packed, tmp_path, name):
    def same(_, data):
        return data

    same.more = {name: b"x"}
    with pytest.raises(InputError, match="other files"):
        import_map(rewritten(packed, tmp_path / "x.covis", same), tmp_path / "in" / "m")
    assert not (tmp_path / "evil").exists()


def test_a_pickle_is_not_loaded(packed, tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)

    def swap(name, data):
        if name == "arrays/names.npy":
            return buffer.getvalue()
        if name == LISTING:
            facts = json.loads(data)
            content = buffer.getvalue()
            facts["files"]["arrays/names.npy"] = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
            return json.dumps(facts).encode()
        return data

    with pytest.raises(InputError, match="damaged, or not a covis map file"):
        import_map(rewritten(packed, tmp_path / "x.covis", swap), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_bad_files_are_told(tmp_path, packed):
    with pytest.raises(InputError, match="does not exist"):
        import_map(tmp_path / "none.covis", tmp_path / "m")
    (tmp_path / "text.covis").write_text("hello")
    with pytest.raises(InputError, match="not a covis map file, or is damaged"):
        import_map(tmp_path / "text.covis", tmp_path / "m")
    (tmp_path / "cut.covis").write_bytes(packed.read_bytes()[:-200])
    with pytest.raises(InputError, match="damaged"):
        import_map(tmp_path / "cut.covis", tmp_path / "m")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="already exists"):
        import_map(packed, tmp_path / "there")


def test_absolute_names_become_relative_to_their_folder(tmp_path):
    model = tiny()
    xy = np.column_stack([10.0 * np.arange(4), np.zeros(4)])
    images = image_set(tmp_path / "photos", xy)
    absolute = encode_names([bytes(tmp_path / "photos") + b"/" + bytes(name) for name in images.names])
    images = replace(images, names=absolute)
    given = store(tmp_path / "s", images, World(model.dim).describe(xy, np.random.default_rng(0)), model.fingerprint())
    export_map(Map.create(tmp_path / "map", images, model, descriptors=given), tmp_path / "m.covis")
    back = import_map(tmp_path / "m.covis", tmp_path / "back")
    assert [back.images.name(i) for i in range(4)] == [f"{i:05d}.jpg" for i in range(4)]


def test_an_interrupted_import_leaves_nothing(packed, tmp_path, monkeypatch):
    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("covis.maps.archive.FolderStorage.write", dies)
        with pytest.raises(KeyboardInterrupt):
            import_map(packed, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    left = tmp_path / f".m.{'0' * 16}.partial"  # of a process that was killed
    left.mkdir()
    import_map(packed, tmp_path / "m")
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]


def test_from_the_command_line(town, tmp_path, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        return stop.value.code or 0, *capsys.readouterr()

    place = tmp_path / "town.map"
    shutil.copytree(town[0].path, place)
    assert run("map", "export", place, tmp_path / "t.covis")[0] == 0
    assert run("map", "import", tmp_path / "t.covis", "-o", tmp_path / "b.map")[0] == 0
    code, out, err = run("map", "show", place, "-o", tmp_path / "map.html")
    assert (code, "80" in out, "wrote" in err) == (0, True, True)
    assert (tmp_path / "map.html").stat().st_size > 100_000
    code, _, err = run("map", "export", tmp_path / "twn.map", tmp_path / "x.covis")
    assert (code, "did you mean" in err) == (2, True)


def with_content(packed, target, member, content, **facts):
    """The archive with another member or facts, its list of checksums made to agree."""

    def swap(name, data):
        if name == member:
            return content
        if name == LISTING:
            listing = json.loads(data) | facts
            if member:
                listing["files"][member] = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
            return json.dumps(listing).encode()
        return data

    return rewritten(packed, target, swap)


@pytest.mark.parametrize(
    "frame",
    [
        "EPSG:99999999",
        "EPSG:999999",
        "http://127.0.0.1:9/crs",
        "/etc/passwd",
        "+proj=pipeline +step +proj=axisswap",
        "+proj=longlat +nadgrids=/etc/passwd",
        "+init=/etc/passwd:1",
    ],
)
def test_a_frame_of_a_form_that_is_not_listed_never_reaches_proj(packed, tmp_path, frame):
    with pytest.raises(InputError, match="not a frame"):
        import_map(with_content(packed, tmp_path / "x.covis", "", b"", frame=frame), tmp_path / "m")
    with pytest.raises(InputError, match="not a frame"):
        Poses(np.zeros((1, 2)), np.zeros(1), frame=frame).latlon()


@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), 1e308, 10**400], ids=lambda value: repr(value)[:12])
def test_an_odd_value_of_the_calibration_is_refused_or_harmless(packed, tmp_path, value):
    with zipfile.ZipFile(packed) as archive:
        record = json.loads(archive.read("calibration.json"))
    changed = {key: {**record, key: value} for key in record}
    for part, inner in [(k, v) for k, v in record.items() if isinstance(v, dict)]:
        changed |= {f"{part}-{key}": {**record, part: {**inner, key: value}} for key in inner}
    for key, odd in changed.items():
        content = json.dumps(odd).encode()
        try:
            map_ = import_map(
                with_content(packed, tmp_path / f"{key}.covis", "calibration.json", content), tmp_path / key
            )
        except InputError:
            assert not (tmp_path / key).exists()
            continue
        map_.judge().answers(["q.jpg"], map_.descriptors[:1], {}, 3)


def test_a_calibration_on_other_evidence_is_refused(packed, tmp_path):
    with zipfile.ZipFile(packed) as archive:
        record = json.loads(archive.read("calibration.json"))
    fits = [key for key, value in record.items() if isinstance(value, dict) and "weights" in value]
    assert "presence" in fits
    for key in fits:
        shorter = {part: record[key][part][:-1] for part in ("weights", "mean", "scale")}
        content = json.dumps({**record, key: {**record[key], **shorter}}).encode()
        with pytest.raises(InputError, match="calibration that cannot be read"):
            import_map(with_content(packed, tmp_path / f"{key}.covis", "calibration.json", content), tmp_path / key)


def test_odd_arrays_are_refused_and_leave_nothing(town, packed, tmp_path):
    images = town[0].images
    xy, names = images.poses.xy.copy(), images.names.astype("S40")
    xy[0] = np.nan

    def named(name):
        return np.concatenate([np.array([name], "S40"), names[1:]])

    odd = [
        ("names", names[[0] * len(names)], "of one name"),
        ("names", named(b""), "without name"),
        ("xy", xy, "position"),
        ("z", np.full(len(xy), np.inf), "position"),
        ("names", named(b"a\0b.jpg"), "NUL"),
        ("file", named(b"a\0b.jpg"), "NUL"),
        ("names", named(b"a/.."), "outside"),
        ("names", names.astype("U40"), "kind"),
        ("group", images.group.astype(float), "kind"),
        ("file", np.arange(len(names)), "kind"),
        ("xy", images.poses.xy.astype(complex), "kind"),
    ]
    for member, array, says in odd:
        buffer = io.BytesIO()
        np.save(buffer, array)
        file = with_content(packed, tmp_path / "x.covis", f"arrays/{member}.npy", buffer.getvalue())
        with pytest.raises(InputError, match=says):
            import_map(file, tmp_path / "m")
        assert not (tmp_path / "m").exists()


def test_names_that_are_no_text_are_taken_as_they_are(town, packed, tmp_path):
    for i, name in enumerate([b"\xed\xa0\x80.jpg", b"\xff\xfe", b"a\x1b]0;b.jpg", b"..a/b..jpg"]):
        names = town[0].images.names.astype("S40")
        names[0] = name
        buffer = io.BytesIO()
        np.save(buffer, names)
        file = with_content(packed, tmp_path / "x.covis", "arrays/names.npy", buffer.getvalue())
        map_ = import_map(file, tmp_path / f"m{i}")
        export_map(map_, tmp_path / "again.covis")
        back = import_map(tmp_path / "again.covis", tmp_path / f"back{i}")
        assert back.images.names[0] == name
        assert len(back.remove([back.images.name(0)])) == len(names) - 1

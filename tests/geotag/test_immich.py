"""A server that speaks Immich's documented API (OpenAPI 3.1.0), read page by page and written to only where asked."""

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from libraries import picture, two_continents
from PIL import Image

from covis.core.errors import InputError
from covis.geotagging import geotag
from covis.geotagging.immich import Immich
from covis.geotagging.library import Library, LibraryPhoto, distance_m
from covis.geotagging.suggestions import Suggestion
from covis.maps.answers import Answer, Place, Position
from covis.maps.map import Map
from covis.models import ModelConfig, PlaceModel
from covis.reading.exif import read_photo

KEY = "secret"


def identifier(i):
    return f"00000000-0000-4000-8000-{i:012d}"


def asset(i, lat=None, lon=None, **more):
    exif = {
        "make": "Maker", "model": "Phone", "latitude": lat, "longitude": lon, "timeZone": "UTC+2",
        "dateTimeOriginal": f"2024-05-03T07:{i % 60:02d}:00.000Z",
    }  # fmt: skip
    return {
        "id": identifier(i), "type": "IMAGE", "checksum": f"sum{i}", "isTrashed": False, "originalFileName": f"{i}.jpg",
        "localDateTime": f"2024-05-03T09:{i % 60:02d}:00.000Z", "exifInfo": exif | more,
    }  # fmt: skip


def webp(image):
    content = io.BytesIO()
    image.save(content, "WEBP", quality=95)
    return content.getvalue()


class Server(ThreadingHTTPServer):
    """Assets, pages of three, and what goes wrong."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.assets = {identifier(i): asset(i, *((48.0 + i / 1e4, 11.0) if i % 3 else ())) for i in range(7)}
        self.previews = {}
        self.seen, self.busy, self.wait_s, self.status = [], 0, "3", 0

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        server.seen.append((self.command, self.path, json.loads(body) if body else None))
        if self.headers.get("x-api-key") != KEY:
            return self.answer(401, b'{"message":"Invalid API key","statusCode":401}')
        if server.busy:
            server.busy -= 1
            return self.answer(429 if server.busy % 2 else 503, b"", Retry_After=server.wait_s)
        if server.status:
            return self.answer(server.status, b"", Location="http://127.0.0.1:1/elsewhere")
        if (self.command, path) == ("POST", "/api/search/metadata"):
            asked = json.loads(body)
            assert asked["type"] == "IMAGE"
            assert asked["withExif"] is True
            start = 3 * (asked["page"] - 1)
            items = list(server.assets.values())[start : start + 3]
            more = str(asked["page"] + 1) if start + 3 < len(server.assets) else None
            found = {"items": items, "count": len(items), "total": len(items), "facets": [], "nextPage": more}
            return self.answer(200, json.dumps({"albums": {}, "assets": found}).encode())
        name = path.removeprefix("/api/assets/").partition("/")[0]
        if self.command == "GET" and path.endswith("/thumbnail"):
            if name == identifier(6):
                return self.answer(404, b"{}")
            content = server.previews.get(name) or webp(picture(int(name[-12:])))
            return self.answer(200, content, Content_Type="image/webp")
        if self.command == "PUT":
            server.assets[name]["exifInfo"] |= json.loads(body)
        return self.answer(200, json.dumps(server.assets[name]).encode())

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.handle_any
        raise AttributeError(name)


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def client(server, key=KEY):
    waited = []
    made = Immich(f"{server.address}/api", key, waited.append)
    return made, waited


def suggestion(i, place=(48.5, 11.5)):
    photo = LibraryPhoto(f"{identifier(i)}.jpg", f"sum{i}")
    return Suggestion(
        photo, Answer(Path(photo.name), (), Position(Place(0, 0, None, *place), None, 0.9, 1), 0.95, True)
    )


def test_all_pages_become_photos_with_previews_that_are_fetched_once(server, tmp_path):
    immich, _ = client(server)
    library = Library(tmp_path / "previews", [])
    immich.read_into(library, tmp_path)
    photos = {photo.name: photo for photo in library.photos}
    assert len(photos) == 7
    first, second = photos[f"{identifier(0)}.jpg"], photos[f"{identifier(1)}.jpg"]
    assert first.wanted
    assert second.place == (48.0001, 11.0)
    assert (first.camera, first.key, first.day) == ("Maker Phone", "sum0", "2024-05-03")
    assert first.local_s - first.utc_s == 7200
    assert photos[f"{identifier(6)}.jpg"].problem == "no preview"
    assert Image.open(second.file).size == (64, 64)
    server.seen.clear()
    immich.read_into(library, tmp_path)
    assert [path for _, path, _ in server.seen if "thumbnail" in path] == [
        f"/api/assets/{identifier(6)}/thumbnail?size=preview"
    ]


def test_positions_are_written_where_there_is_none_and_known_as_guesses_later(server, tmp_path):
    immich, _ = client(server)
    server.assets[identifier(3)]["exifInfo"] |= {"latitude": 1.0, "longitude": 2.0}
    done = immich.write([suggestion(0), suggestion(3)], tmp_path)
    assert done.files == [f"{identifier(0)}.jpg"]
    assert list(done.left) == [f"{identifier(3)}.jpg"]
    assert [(m, p, b) for m, p, b in server.seen if m == "PUT"] == [
        ("PUT", f"/api/assets/{identifier(0)}", {"latitude": 48.5, "longitude": 11.5})
    ]
    library = Library(tmp_path / "previews", [])
    immich.read_into(library, tmp_path)
    assert [photo.name for photo in library.photos if photo.own] == [f"{identifier(0)}.jpg"]


def test_a_busy_server_is_asked_again_as_it_says_and_not_for_ever(server, tmp_path):
    immich, waited = client(server)
    server.busy = 2
    assert immich.json("GET", f"/assets/{identifier(1)}")["id"] == identifier(1)
    assert waited == [3.0, 3.0]
    server.busy = 100
    with pytest.raises(InputError, match="run again to resume"):
        immich.call("GET", f"/assets/{identifier(1)}")
    assert len(waited) == 6


@pytest.mark.parametrize(("status", "said"), [(404, "is this Immich"), (302, "redirects"), (403, "asset.update")])
def test_refusals_are_said_in_one_line_without_the_key(server, status, said):
    immich, _ = client(server)
    server.status = status
    with pytest.raises(InputError, match=said) as error:
        immich.json("GET", "/assets/x")
    assert KEY not in str(error.value) + repr(immich)
    with pytest.raises(InputError, match="refuses the key"):
        client(server, "wrong")[0].json("GET", "/assets/x")


def test_a_dry_run_writes_nothing_and_too_few_positions_are_said(server, tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    with pytest.raises(InputError, match="at least 20"):
        geotag(immich=server.address, key=key, map=tmp_path / "immich.map")
    assert {method for method, _, _ in server.seen} == {"GET", "POST"}
    monkeypatch.delenv("IMMICH_API_KEY", raising=False)
    with pytest.raises(InputError, match="no API key"):
        geotag(immich=server.address, map=tmp_path / "immich.map")
    with pytest.raises(InputError, match="is no address"):
        geotag(immich="ftp://host", key=key)
    with pytest.raises(InputError, match="way of writing"):
        geotag(immich=server.address, key=key, write="exif")


def test_a_whole_run_places_photos_of_a_server_and_learns_nothing_from_itself(server, tmp_path, monkeypatch):
    """Assets of two continents by pages of three, the server busy now and then: found, written once, left alone then."""
    truth, told = two_continents(tmp_path / "lib"), {}
    server.assets.clear()
    for i, file in enumerate(sorted((tmp_path / "lib").rglob("*.jpg"))):
        photo, name = read_photo(file), identifier(100 + i)
        known = photo.lat == photo.lat
        taken = f"{photo.taken.replace(' ', 'T')}.000Z"
        server.assets[name] = asset(
            100 + i, *((photo.lat, photo.lon) if known else ()), dateTimeOriginal=taken, timeZone=None
        )
        server.assets[name]["localDateTime"] = taken
        server.previews[name] = webp(Image.open(file))
        if not known:
            told[f"{name}.jpg"] = truth[file.relative_to(tmp_path / "lib").as_posix()]
    PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=0).save(tmp_path / "model")
    monkeypatch.setenv("IMMICH_API_KEY", KEY)
    options = {"immich": server.address, "map": tmp_path / "immich.map", "model": tmp_path / "model"}
    server.busy, server.wait_s = 2, "0"
    _, chosen, written = geotag(**options, page=tmp_path / "review.html")
    assert written is None
    assert {method for method, _, _ in server.seen} == {"GET", "POST"}
    assert {s.photo.name for s in chosen} == {name for name, place in told.items() if place is not None}
    version = Map.open(options["map"]).version
    done = geotag(**options, write="immich").written
    assert sorted(done.files) == sorted(s.photo.name for s in chosen)
    for name in done.files:
        now = server.assets[name.removesuffix(".jpg")]["exifInfo"]
        assert distance_m((now["latitude"], now["longitude"]), told[name]) < 50
    server.seen.clear()
    again = geotag(**options, write="immich")
    assert again.written.files == []
    assert again.found.counts()["earlier_guesses"] == len(done.files)
    assert "PUT" not in {method for method, _, _ in server.seen}
    assert Map.open(options["map"]).version == version

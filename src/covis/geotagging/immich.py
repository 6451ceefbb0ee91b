"""An Immich server as a library: its previews are the photos, positions go back by the endpoint of its own pages.

Field names and endpoints are those of Immich's OpenAPI document 3.1.0. No real server was at hand when this was written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from covis.core import files
from covis.core.errors import InputError
from covis.core.progress import Meter
from covis.geotagging.library import Library, LibraryPhoto
from covis.geotagging.suggestions import Suggestion
from covis.geotagging.writing import Written

KEY_VARIABLE = "IMMICH_API_KEY"
_PAGE = 1000
_TRIES = 5
_LONGEST_WAIT_S = 60.0
_TIMEOUT_S = 60.0
_MOST_BYTES = 256 << 20
_NOTES = "immich.jsonl"


class _NoRedirects(HTTPRedirectHandler):
    """The key goes to the server that was named and to no other."""

    def redirect_request(self, req: Request, *_: Any) -> None:
        raise InputError(f"{req.full_url} redirects to {_[-1]}; give that address to --immich")


@dataclass(frozen=True)
class Immich:
    """A server and the key to it."""

    address: str
    """Ends in `/api`."""
    key: str = field(repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    @classmethod
    def of(cls, address: str, key_file: Path | None = None) -> Immich:
        """The server at an address, with the key of a file or of the environment."""
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InputError(f"--immich {address!r} is no address; give one such as http://localhost:2283")
        key = key_file.read_text(encoding="utf-8").strip() if key_file is not None else os.environ.get(KEY_VARIABLE, "")
        if not key or not key.isascii() or not key.isprintable():
            raise InputError(f"no API key for {address}; give --key FILE or set {KEY_VARIABLE}")
        return cls(f"{address.rstrip('/').removesuffix('/api')}/api", key)

    def call(self, method: str, path: str, body: Any = None) -> bytes:
        """The answer of one request; tried again where the server is busy, an `InputError` where it refuses."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"x-api-key": self.key, "Accept": "*/*", "Content-Type": "application/json"}
        problem = ""
        for attempt in range(_TRIES):
            try:
                request = Request(self.address + path, data, headers, method=method)
                with build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_S) as answer:
                    content: bytes = answer.read(_MOST_BYTES)
                    return content
            except HTTPError as error:
                error.close()
                problem, wait_s = f"HTTP {error.code}", _wait_s(error, attempt)
                if error.code in (401, 403):
                    needs = "asset.read, asset.view and, to write, asset.update"
                    raise InputError(f"{self.address} refuses the key ({problem}); it needs {needs}") from None
                if error.code != 429 and error.code < 500:
                    raise InputError(f"{self.address}{path}: {problem}; is this Immich 1.106 or newer?") from None
            except (URLError, HTTPException, OSError) as error:
                problem, wait_s = str(getattr(error, "reason", error)), float(2**attempt)
            if attempt + 1 < _TRIES:
                self.sleep(wait_s)
        raise InputError(f"{self.address} cannot be reached ({problem}); check the address, run again to resume")

    def json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The answer as an object."""
        content = self.call(method, path, body)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InputError(f"{self.address}{path} does not answer as Immich does; check the address")
        return value

    def assets(self) -> Iterator[dict[str, Any]]:
        """All images with their EXIF, page by page."""
        page: Any = 1
        while page is not None:
            query = {"type": "IMAGE", "withExif": True, "page": int(page), "size": _PAGE, "order": "asc"}
            found = self.json("POST", "/search/metadata", query).get("assets")
            if not isinstance(found, dict) or not isinstance(found.get("items"), list):
                raise InputError(f"{self.address}/search/metadata does not answer as Immich does; check its version")
            yield from (item for item in found["items"] if isinstance(item, dict) and isinstance(item.get("id"), str))
            page = found.get("nextPage") if found["items"] else None

    def read_into(self, library: Library, folder: Path) -> None:
        """Brings the list up to date with the server, and fetches the previews that `library.root` lacks."""
        earlier = positions(folder)
        photos = [photo for asset in self.assets() if (photo := _photo(asset, library.root, earlier)) is not None]
        before = {photo.name: photo.key for photo in library.photos}
        library.root.mkdir(parents=True, exist_ok=True)
        with Meter("fetching previews", len(photos), "photos") as meter:
            for i, photo in enumerate(photos):
                file = Path(photo.file)
                if not file.is_file() or before.get(photo.name, photo.key) != photo.key:
                    try:
                        files.write_bytes(file, self.call("GET", f"/assets/{file.stem}/thumbnail?size=preview"))
                    except InputError as error:
                        if "HTTP 404" not in str(error):
                            raise
                        photos[i] = replace(photo, problem="no preview")
                meter.advance()
        library.photos = sorted(photos, key=lambda photo: photo.name)

    def write(self, suggestions: Sequence[Suggestion], folder: Path) -> Written:
        """Sets positions of photos that still have none; each is noted in `folder` before it is sent."""
        done = Written()
        with Meter("writing positions", len(suggestions), "photos") as meter:
            for suggestion in suggestions:
                name, answer = suggestion.photo.name, suggestion.answer
                path = f"/assets/{Path(name).stem}"
                now = self.json("GET", path).get("exifInfo") or {}
                if answer.position is None or now.get("latitude") is not None:
                    done.left[name] = "it has a position by now"
                else:
                    place = {"latitude": answer.lat, "longitude": answer.lon}
                    with (folder / _NOTES).open("a", encoding="utf-8") as notes:
                        notes.write(json.dumps({"id": Path(name).stem, **place}) + "\n")
                        notes.flush()
                        os.fsync(notes.fileno())
                    self.call("PUT", path, place)
                    done.files.append(name)
                meter.advance()
        return done


def positions(folder: Path) -> dict[str, tuple[float, float]]:
    """Asset → the position that covis gave it."""
    file, found = folder / _NOTES, dict[str, tuple[float, float]]()
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            note = json.loads(line)
            found[note["id"]] = note["latitude"], note["longitude"]
        except (ValueError, KeyError, TypeError):  # a line that was cut off is of a request that was never sent
            continue
    return found


def _photo(asset: dict[str, Any], root: Path, earlier: dict[str, tuple[float, float]]) -> LibraryPhoto | None:
    """An asset as a photo; None for one that is no photo in use."""
    identifier, exif = asset["id"], asset.get("exifInfo") or {}
    if not set(identifier) <= set("0123456789abcdefABCDEF-") or asset.get("isTrashed") or asset.get("type") != "IMAGE":
        return None
    lat, lon = exif.get("latitude"), exif.get("longitude")
    if not (isinstance(lat, int | float) and isinstance(lon, int | float)) or (lat, lon) == (0, 0):
        lat = lon = None
    given = earlier.get(identifier)
    own = (
        given is not None
        and lat is not None
        and lon is not None
        and max(abs(lat - given[0]), abs(lon - given[1])) < 1e-5
    )
    taken, name = exif.get("dateTimeOriginal"), f"{identifier}.jpg"
    local = _seconds(asset.get("localDateTime")) if taken else None
    return LibraryPhoto(
        name, str(asset.get("checksum") or identifier), (), lat, lon, own,
        camera=" ".join(part for part in (exif.get("make"), exif.get("model")) if part),
        local_s=local, utc_s=_seconds(taken) if exif.get("timeZone") else None,
        day="" if local is None else datetime.fromtimestamp(local, UTC).date().isoformat(), file=str(root / name),
    )  # fmt: skip


def _seconds(text: Any) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _wait_s(error: HTTPError, attempt: int) -> float:
    """Seconds that the server asks for, or a little longer each time."""
    try:
        return min(_LONGEST_WAIT_S, max(0.0, float(error.headers.get("Retry-After", ""))))
    except ValueError:
        return float(2**attempt)

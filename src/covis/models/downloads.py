"""Files from an address: through the proxy of the environment, with progress, resumed where a download broke off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, build_opener

from covis.core.errors import InputError
from covis.core.progress import Meter, say

MIRROR = "COVIS_MIRROR"
"""Variable with the address of a server that stands in for all others: MIRROR/HOST/PATH."""
_TIMEOUT_S = 20.0
_CHUNK = 1 << 20


def download(address: str, target: Path, licence: str) -> Path:
    """Fetches the file at `address` to `target`; raises `OSError` with the reason where that does not work.

    What arrives lies beside `target` until it is complete, and a later call resumes it if the file there is the same
    (by its size and ETag).
    """
    if target.is_file():
        return target
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise OSError("offline mode")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _download(_mirrored(address), address, target, licence)
    except HTTPError as error:
        raise OSError(f"the answer is {error.code} {error.reason}") from None
    except URLError as error:
        raise OSError(str(error.reason)) from None
    except HTTPException as error:
        raise OSError(f"{type(error).__name__} {error}".strip()) from None
    return target


def _mirrored(address: str) -> str:
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return address
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise InputError(f"{MIRROR}={mirror} is no address; give one such as https://mirror.example/weights")
    parts = urlsplit(address)
    return f"{mirror.rstrip('/')}/{parts.netloc}{parts.path}"


def _download(address: str, shown: str, target: Path, licence: str) -> None:
    response = _request(address, {})
    total = int(response.headers.get("Content-Length") or 0)
    state = f"{total} {response.headers.get('ETag') or response.headers.get('Last-Modified')}"
    partial = target.with_name(f".{target.name}.{sha256(state.encode()).hexdigest()[:12]}.part")
    done = partial.stat().st_size if partial.is_file() else 0
    if done:
        response.close()
        response = _request(address, {"Range": f"bytes={done}-"}) if done < total else _request(address, {})
        done = done if response.status == 206 else 0
    with response, partial.open("ab" if done else "wb") as file:
        size = f"{total / 1e6:.0f} MB" if total else "of unknown size"
        say(f"downloading {shown}, {size}{f', from {done / 1e6:.0f} MB on' if done else ''}, licence: {licence}")
        with Meter("downloading", round(total / _CHUNK) or None, "MB") as meter:
            meter.start_at(done // _CHUNK)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                meter.advance(len(chunk) // _CHUNK)
        file.flush()
        os.fsync(file.fileno())
    arrived = partial.stat().st_size
    if total and arrived != total:
        raise OSError(f"it broke off at {arrived} of {total} bytes; re-run to resume")
    partial.replace(target)


def _request(address: str, headers: Mapping[str, str]) -> HTTPResponse:
    request = Request(address, headers={"User-Agent": "covis", "Accept-Encoding": "identity", **headers})
    return cast(HTTPResponse, build_opener().open(request, timeout=_TIMEOUT_S))

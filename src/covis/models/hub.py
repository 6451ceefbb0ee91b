"""Files of the model hub: from its cache, else fetched, and compared with the SHA-256 that is known of them."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from covis.core.errors import Damaged, InputError
from covis.core.files import read_sealed, sha256, write_json
from covis.core.machine import cache_folder
from covis.core.progress import say

UNPINNED = "unpinned"
"""`NAME:unpinned` takes what the hub has, whatever it is, and remembers its SHA-256 for the next time."""
PINS: dict[str, str] = {}
"""Repository of the model hub → SHA-256 of the one file that is taken from it, where covis knows it."""
_PINNED = "pins.json"
"""File in the cache folder: what `PINS` lacks and this machine's user has accepted."""
_CONNECT_TIMEOUT_S = 5.0


class Unpinned(InputError):  # noqa: N818 - a state of affairs, read as one
    """A file of the model hub whose SHA-256 is not known."""


def fetch(hub_id: str, file: str, pin: str = "") -> Path:
    """A file of the model hub with a known SHA-256: from its cache, else fetched into it.

    pin: the SHA-256, or `unpinned` for any; by default the one that covis or this machine knows. A file in the hub's
    cache counts as accepted. Raises `Unpinned` where no SHA-256 is known, `OSError` where the hub cannot be reached,
    `InputError` where the file has another SHA-256.
    """
    from huggingface_hub import try_to_load_from_cache

    if pin and pin != UNPINNED and not re.fullmatch(r"[0-9a-f]{64}", pin):
        raise InputError(f"{pin!r} is no SHA-256 (64 characters, 0 to 9 and a to f); give that, or `{UNPINNED}`")
    known = _pins().get(hub_id) or PINS.get(hub_id)
    wanted = known if pin in ("", UNPINNED) else pin
    cached = try_to_load_from_cache(hub_id, file)
    if not isinstance(cached, str):
        _reach()
        if wanted is None and pin != UNPINNED:
            raise Unpinned(f"the SHA-256 of {file} of {hub_id} is not known, so it is not taken unseen")
    path = Path(cached) if isinstance(cached, str) else _download(hub_id, file)
    digest = sha256(path)
    if wanted is not None and digest != wanted:
        raise InputError(
            f"{file} of {hub_id} has the SHA-256 {digest}, expected {wanted}; it was changed there or damaged here "
            f"({path}): delete it to fetch it again, or give the weights as a file"
        )
    if known is None:
        write_json(cache_folder() / _PINNED, {**_pins(), hub_id: digest})
        say(f"{hub_id}: {file} has the SHA-256 {digest}, which later downloads must match")
    return path


def _pins() -> dict[str, str]:
    """Repository → SHA-256 that this machine's user accepted before."""
    file = cache_folder() / _PINNED
    if not file.is_file():
        return {}
    pins, sealed = read_sealed(file, f"delete {file}, and compare the SHA-256 that the next download says")
    if not sealed or not isinstance(pins, dict):
        raise Damaged(
            f"{file} is damaged (no checksum); delete it, and compare the SHA-256 that the next download says"
        )
    return {str(k): str(v) for k, v in pins.items()}


def _reach() -> None:
    """Raises `OSError` where the hub cannot be reached."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OSError("offline mode")
    address = urlsplit(constants.ENDPOINT)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    if not getproxies():  # behind a proxy only the proxy can tell; elsewhere the hub's client would retry for a minute
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()


def fetch_revision(hub_id: str, file: str, revision: str | None) -> Path:
    """A file of the model hub at a commit, tag or branch: from its cache, else fetched; `OSError` as in `fetch`.

    Its content is for the caller to check, unless the revision is a commit, which pins it.
    """
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(hub_id, file, revision=revision)
    if isinstance(cached, str):
        return Path(cached)
    _reach()
    return _download(hub_id, file, revision)


def _download(hub_id: str, file: str, revision: str | None = None) -> Path:
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, file, revision=revision))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise OSError(" ".join(str(error).split())[:120]) from None

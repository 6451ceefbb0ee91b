"""Files of the model hub: from its cache, else fetched, and compared with the SHA-256 that is known of them."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from covis.core.progress import say
from covis.models.pins import check_pinned, wanted_sha256

_CONNECT_TIMEOUT_S = 5.0


def fetch(hub_id: str, file: str, pin: str = "", licence: str = "") -> Path:
    """A file of the model hub: from its cache, else fetched into it, and compared with its SHA-256 if one is known.

    pin: the SHA-256, or `unpinned` for any; by default the one that covis or this machine knows. A file in the hub's
    cache counts as accepted. Raises `OSError` where the hub cannot be reached, `InputError` where the file has another
    SHA-256.
    """
    wanted_sha256(hub_id, pin)  # a misspelt one is an error before anything is fetched
    path = fetch_revision(hub_id, file, None, licence)
    check_pinned(hub_id, path, pin)
    return path


def fetch_revision(hub_id: str, file: str, revision: str | None, licence: str = "") -> Path:
    """A file of the model hub at a commit, tag or branch: from its cache, else fetched; `OSError` as in `fetch`.

    Its content is for the caller to check, unless the revision is a commit, which pins it.
    """
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(hub_id, file, revision=revision)
    if isinstance(cached, str):
        return Path(cached)
    _reach()
    say(f"downloading {hub_address(hub_id, file, revision)}, licence: {licence or 'see its page'}")
    return _download(hub_id, file, revision)


def hub_address(hub_id: str, file: str, revision: str | None = None) -> str:
    """Where a browser finds a file of the model hub."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{hub_id}/resolve/{revision or 'main'}/{file}"


def _reach() -> None:
    """Raises `OSError` where the hub cannot be reached."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise OSError("offline mode")
    address = urlsplit(constants.ENDPOINT)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    if not getproxies():  # behind a proxy only the proxy can tell; elsewhere the hub's client would retry for a minute
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()


def _download(hub_id: str, file: str, revision: str | None = None) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, file, revision=revision))
    except Exception as error:  # errors of the hub, and those of its HTTP library (a proxy's 403), have no common base
        raise OSError(" ".join(str(error).split())[:120]) from None

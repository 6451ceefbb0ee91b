"""Keys of the service: a file of hashes, read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covis.core import artifacts
from covis.core.errors import InputError

ROLES = ("read", "write")
"""`write` may do all that `read` may."""
ADVICE = "covis keys FILE --add NAME"


@dataclass(frozen=True)
class Key:
    """One key of the file."""

    name: str
    role: str
    sha256: str


class Keys:
    """The keys of a file, as it is now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._keys: tuple[Key, ...] = ()
        self.now()

    def now(self) -> tuple[Key, ...]:
        """The keys; raises `InputError` while the file is missing or damaged."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}); make it with: {ADVICE}") from None
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._keys, self._stamp = read_keys(self.path), stamp
        return self._keys

    def find(self, given: str) -> Key | None:
        """The key that was given; None where it is none of these."""
        digest = _digest(given)
        return next((key for key in self.now() if hmac.compare_digest(key.sha256, digest)), None)


def read_keys(path: Path) -> tuple[Key, ...]:
    """All keys of a file, checked. It carries a checksum; to edit it by hand, remove that line."""
    data = artifacts.read_json(path)
    rows: Any = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise InputError(f'{path} holds no {{"keys": […]}}; make it with: {ADVICE}')
    keys = []
    for at, row in enumerate(rows, 1):
        fields = row if isinstance(row, dict) else {}
        name, role, digest = (fields.get(field) for field in ("name", "role", "sha256"))
        if role not in ROLES or not isinstance(name, str) or not re.fullmatch(r"[0-9a-f]{64}", str(digest)):
            raise InputError(f"{path}: key {at} needs a name, a role ({' or '.join(ROLES)}) and a sha256; {ADVICE}")
        keys.append(Key(name, str(role), str(digest)))
    return tuple(keys)


def add_key(path: Path, name: str, role: str) -> str:
    """Adds a key and returns it: it is not kept anywhere."""
    keys = read_keys(path) if path.exists() else ()
    if any(key.name == name for key in keys):
        raise InputError(f"{path} has a key {name!r} already; remove it first, or choose another name")
    secret = "covis_" + secrets.token_urlsafe(32)
    _write(path, (*keys, Key(name, role, _digest(secret))))
    return secret


def remove_key(path: Path, name: str) -> None:
    """Takes a key away; a running service refuses it from its next request on."""
    keys = read_keys(path)
    kept = tuple(key for key in keys if key.name != name)
    if len(kept) == len(keys):
        raise InputError(f"{path} has no key {name!r}; it has: {', '.join(key.name for key in keys) or 'none'}")
    _write(path, kept)


def _write(path: Path, keys: tuple[Key, ...]) -> None:
    artifacts.write_json(path, {"keys": [asdict(key) for key in keys]}, mode=0o600)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()

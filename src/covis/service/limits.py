"""What a client may ask of the service: bytes, photos, time, requests per minute; and what happens beyond it.

Every bound is enforced before memory is taken: bytes are counted as they come in, over all requests together, and
photos are counted before they are decoded. A client that sends too many requests is told when to try again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from covis.core import artifacts
from covis.core.errors import InputError

ROLES = ("read", "write")
"""`write` may do all that `read` may."""
PREFIX = "covis_"


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
        matching = [key for key in self.now() if hmac.compare_digest(key.sha256, digest)]
        return matching[0] if matching else None


ADVICE = "covis keys add FILE --name NAME --role read"


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
    if role not in ROLES:
        raise InputError(f"--role is {' or '.join(ROLES)}, not {role!r}")
    keys = read_keys(path) if path.exists() else ()
    if any(key.name == name for key in keys):
        raise InputError(f"{path} has a key {name!r} already; remove it first, or choose another --name")
    secret = PREFIX + secrets.token_urlsafe(32)
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


# What a client may ask of the service: bytes, photos, time, requests per minute; and what happens beyond it.
#
# Every bound is enforced before memory is taken: bytes are counted as they come in, over all requests together, and
# photos are counted before they are decoded. A client that sends too many requests is told when to try again.


MEGABYTE = 1_000_000
_CLIENTS = 10_000
"""Clients whose rate is remembered at most."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one server."""

    photo_bytes: int = 30 * MEGABYTE
    """Of one photo."""
    request_bytes: int = 100 * MEGABYTE
    """Of one request."""
    photos: int = 100
    """Per request."""
    total_bytes: int = 400 * MEGABYTE
    """Of all requests together that are being read or answered."""
    queue: int = 256
    """Photos that wait or are being answered, over all requests."""
    body_s: float = 60.0
    """For a request's body in all."""
    idle_s: float = 10.0
    """Between two parts of a body."""
    answer_s: float = 120.0
    """For an answer, from the end of the body."""
    per_minute: int | None = None
    """Requests of one key or address; None: any number."""
    drain_bytes: int = 400 * MEGABYTE
    """Of a refused body that is read and dropped, so that a client that sends first still gets its answer."""
    drain_s: float = 10.0


class TooBusy(HTTPException):
    """The server cannot take more now."""

    def __init__(self, why: str, retry_s: int = 1, status: int = 503) -> None:
        super().__init__(status, f"{why}; try again in {retry_s} s", {"Retry-After": str(retry_s)})


class Budget:
    """An amount that all requests share."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self.what, self.used = most, what, 0

    def take(self, amount: int) -> None:
        """Takes `amount`, or refuses."""
        if self.used + amount > self.most:
            raise TooBusy(f"the server is busy ({self.what})")
        self.used += amount

    def give(self, amount: int) -> None:
        """Gives back what was taken."""
        self.used -= amount


class Rate:
    """Requests of each client within the last minute, as a bucket that fills steadily."""

    def __init__(self, per_minute: int | None) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Counts one request, or refuses it."""
        if self.per_minute is None:
            return
        now, per_second = time.monotonic(), self.per_minute / 60.0
        left, since = self._buckets.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - since) * per_second)
        self._buckets[client] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1.0:
            wait = max(1, round((1.0 - left) / per_second))
            raise TooBusy(f"more than {self.per_minute} requests per minute", wait, status=429)


HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""On every response."""


class Hurried(H11Protocol):
    """HTTP/1.1 whose clients must send a request's head in time, so that silent connections are closed."""

    head_s = 10.0
    """From the connection, or from the first byte of a further request, to the end of its head."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_s, self._late)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived; the timer runs while the head of a request is incomplete."""
        super().data_received(data)
        incomplete = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not incomplete:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client disconnected."""
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.transport.close()


class Guard:
    """ASGI middleware: bounded bodies, security headers, and only requests that name this server."""

    def __init__(self, app: ASGIApp, limits: Limits, budget: Budget, hosts: frozenset[str] | None) -> None:
        """hosts: names that a request may be addressed to; None: any."""
        self.app, self.limits, self.budget, self.hosts = app, limits, budget, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body(receive, self.limits, self.budget, Headers(scope=scope))
        if scope["method"] == "HEAD":  # as GET; the server sends no body to it
            scope = {**scope, "method": "GET"}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400 and message["status"] != 408:
                    await body.drain()
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in given]
                closing = [] if body.whole else [(b"connection", b"close")]
                message = {**message, "headers": [*message["headers"], *extra, *closing]}
            await send(message)

        try:
            if self.hosts is not None and _host(Headers(scope=scope)) not in self.hosts:
                # A page of another site can point its own name at this machine; it must not read answers.
                await _plain(answer, 421, "this server does not answer to that name; add --allow-host NAME")
                return
            await self.app(scope, body.receive, answer)
        except ClientDisconnect:
            return  # nobody is left to be answered
        finally:
            body.release()


def _host(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    return host.rsplit("]", 1)[0] + "]" if host.startswith("[") else host.split(":", 1)[0]


async def _plain(send: Send, status: int, detail: str) -> None:
    content = f'{{"detail":"{detail}"}}'.encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": content})


class _Body:
    """A request's body as it comes in: counted, timed, and dropped where it is refused."""

    def __init__(self, receive: Receive, limits: Limits, budget: Budget, headers: Headers) -> None:
        self._receive, self.limits, self.budget = receive, limits, budget
        self.taken = self.size = 0
        length = headers.get("content-length", "")
        self.declared = int(length) if length.isascii() and length.isdigit() else 0
        self.whole = not self.declared and "transfer-encoding" not in headers
        self.waits = headers.get("expect", "").lower() == "100-continue"
        """Whether the client asks before it sends."""
        self.deadline: float | None = None

    async def receive(self) -> Message:
        """The next part; raises 413, 408 or 503."""
        if self.declared > self.limits.request_bytes:
            raise self._too_large()
        if self.whole:
            return await self._receive()
        now = time.monotonic()
        self.deadline = now + self.limits.body_s if self.deadline is None else self.deadline
        try:
            async with asyncio.timeout(min(self.limits.idle_s, self.deadline - now)):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the request came too slowly; send it again") from None
        if message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            self.whole = not message.get("more_body", False)
        else:
            self.whole = True
        return message

    def _count(self, count: int) -> None:
        self.size += count
        if self.size > self.limits.request_bytes:
            raise self._too_large()
        self.budget.take(count)
        self.taken += count

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"a request may have {self.limits.request_bytes // MEGABYTE} MB; send fewer photos")

    async def drain(self) -> None:
        """Reads what is left and drops it, within bounds: a client that is still sending would not see the answer."""
        if self.whole or (self.waits and not self.size) or self.declared > self.limits.drain_bytes:
            return
        dropped = 0
        try:
            async with asyncio.timeout(self.limits.drain_s):
                while not self.whole and dropped <= self.limits.drain_bytes:
                    message: dict[str, Any] = dict(await self._receive())
                    dropped += len(message.get("body", b""))
                    self.whole = message["type"] != "http.request" or not message.get("more_body", False)
        except TimeoutError:
            return

    def release(self) -> None:
        """Gives back the bytes; called when the request is answered."""
        self.budget.give(self.taken)
        self.taken = 0

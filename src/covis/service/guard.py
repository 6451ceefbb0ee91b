"""Middleware: bounded request bodies, security headers, and only requests that name this server.

Bytes are counted as they come in, over all requests together, before memory is taken.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covis.service.limits import MEGABYTE, Budget, Limits

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


def with_tiles(origin: str) -> dict[str, str]:
    """The headers of a service whose page shows tiles of another server: it may load them, and say where it is from."""
    policy = HEADERS["content-security-policy"].replace("img-src", f"img-src {origin}")
    return {**HEADERS, "content-security-policy": policy, "referrer-policy": "strict-origin-when-cross-origin"}


class Guard:
    """ASGI middleware: bounded bodies, security headers, and only requests that name this server."""

    def __init__(
        self, app: ASGIApp, limits: Limits, budget: Budget, hosts: frozenset[str] | None, tiles: str = ""
    ) -> None:
        """hosts: names that a request may be addressed to; None: any. tiles: origin of the page's tiles."""
        self.app, self.limits, self.budget, self.hosts = app, limits, budget, hosts
        self.headers = with_tiles(tiles) if tiles else HEADERS

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
                extra = [(k.encode(), v.encode()) for k, v in self.headers.items() if k.encode() not in given]
                closing = [] if body.whole else [(b"connection", b"close")]
                message = {**message, "headers": [*message["headers"], *extra, *closing]}
            await send(message)

        try:
            if self.hosts is not None and _host(Headers(scope=scope)) not in self.hosts:
                # A page of another site can point its own name at this machine; it must not read answers.
                await _send_problem(answer, 421, "this server does not answer to that name; add --allow-host NAME")
                return
            await self.app(scope, body.receive, answer)
        except ClientDisconnect:
            return  # nobody is left to be answered
        finally:
            body.release()


def _host(headers: Headers) -> str:
    host = headers.get("host", "").lower()
    return host.rsplit("]", 1)[0] + "]" if host.startswith("[") else host.split(":", 1)[0]


async def _send_problem(send: Send, status: int, detail: str) -> None:
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

"""The HTTP application: its routes and pages, security headers, and how it refuses."""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from covis import __version__
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.maps.storage.engine import Unavailable
from covis.service.batching import Batcher
from covis.service.keys import Keys
from covis.service.limits import Budget, Limits
from covis.service.map_cache import MapCache
from covis.service.pages import add_pages
from covis.service.routes import router
from covis.service.schemas import PROBLEMS
from covis.service.server import Server
from covis.web.tiles import Tiles, parse_tiles


def create_app(
    maps: Sequence[Path],
    *,
    limits: Limits | None = None,
    keys: Keys | None = None,
    hosts: frozenset[str] | None = None,
    pictures: Sequence[Path] = (),
    tiles: str = "",
) -> FastAPI:
    """The application over maps; `hosts` are names it may be addressed by (None: any).

    pictures: folders of photos to show beside those that were given to the maps on this machine. tiles: streets below
    the page's map, `osm` or an address.
    """
    below = parse_tiles(tiles)
    limits = limits or Limits()
    batcher = Batcher(limits.queue, limits.answer_s)
    bodies = Budget(limits.total_bytes, "too many uploads at once")
    server = Server(MapCache(maps, pictures), limits, keys, batcher, bodies)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    app = FastAPI(
        title="covis",
        version=__version__,
        description="Where a photo was taken: maps of photos over HTTP.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=PROBLEMS,
    )
    app.state.server = server
    app.include_router(router)
    add_pages(app, below)
    app.middleware("http")(_guard(hosts, _headers(below)))
    handlers = {RequestValidationError: _invalid, ValidationError: _invalid, InputError: _bad_input}
    for kind, handler in {**handlers, Unavailable: _unavailable, OSError: _disk_failure}.items():
        app.add_exception_handler(kind, handler)
    return app


def _headers(tiles: Tiles | None) -> dict[str, str]:
    """On every response. A page with tiles of another server may load them, and say where it is from."""
    images = f"{tiles.origin} 'self'" if tiles and tiles.origin else "'self'"
    return {
        "content-security-policy": (
            f"default-src 'none'; script-src 'self'; style-src 'self'; img-src {images} blob: data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "strict-origin-when-cross-origin" if tiles else "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }


Next = Callable[[Request], Awaitable[Response]]


def _guard(hosts: frozenset[str] | None, headers: dict[str, str]) -> Callable[[Request, Next], Awaitable[Response]]:
    """Middleware: security headers, and only requests that name this server.

    A page of another site can point its own name at this machine; it must not read answers.
    """

    async def guarded(request: Request, proceed: Next) -> Response:
        host = re.sub(r":\d*$", "", request.headers.get("host", "").lower())
        if hosts is None or host in hosts:
            response = await proceed(request)
        else:
            response = JSONResponse({"detail": "this server has another name; add this one by --allow-host"}, 421)
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response

    return guarded


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError | ValidationError)
    said = (f"{'.'.join(str(p) for p in e['loc'] if p not in ('query', 'path'))}: {e['msg']}" for e in error.errors())
    return JSONResponse({"detail": "; ".join(said)}, 422)


async def _bad_input(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    return JSONResponse({"detail": request.app.state.server.without_paths(error)}, 422)


async def _unavailable(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "the engine of the map does not answer; try again"}, 503, {"Retry-After": "5"})


async def _disk_failure(request: Request, error: Exception) -> Response:
    """The map's disk is full or cannot be written; nothing has changed."""
    assert isinstance(error, OSError)
    warn(f"{request.method} {request.url.path}: {error}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JSONResponse({"detail": "the server's disk is full; nothing was changed"}, 507)
    detail = "the server cannot read or write its files now; nothing was changed"
    return JSONResponse({"detail": detail}, 503, {"Retry-After": "30"})

"""What all requests of the service share, and who may make them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from covis.core.errors import InputError
from covis.core.progress import warn
from covis.service.batching import Batcher
from covis.service.keys import Keys
from covis.service.limits import Budget, Limits, TooBusy
from covis.service.map_cache import MapCache, MapSnapshot


@dataclass(eq=False)
class Server:
    """What all requests share."""

    cache: MapCache
    limits: Limits
    keys: Keys | None
    batcher: Batcher
    bodies: Budget

    def __post_init__(self) -> None:
        self.writing = {name: asyncio.Lock() for name in self.cache.names}

    async def snapshot(self, name: str | None) -> MapSnapshot:
        """The newest state of a map; without a name the only one."""
        name = self.known(name)
        try:
            return await run_in_threadpool(self.cache.now, name)
        except (InputError, OSError) as error:
            warn(f"the map {name!r} cannot be read now: {error}")
            raise TooBusy(f"the map {name!r} cannot be read now", 5) from None

    def known(self, name: str | None) -> str:
        """The name of a map that is served; None: of the only one."""
        names = self.cache.names
        if name is None and len(names) > 1:
            raise HTTPException(422, f"map: several are served, say which: {', '.join(names)}")
        if name is not None and name not in names:
            raise HTTPException(404, f"there is no map {name[:80]!r}; there are: {', '.join(names)}")
        return names[0] if name is None else name

    def allow(self, request: Request, role: str) -> None:
        """Lets a request pass and notes its client; raises 401 or 403, and 503 while the keys cannot be read."""
        given = request.headers.get("x-api-key", "")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = token.strip()
        try:
            key = self.keys.find(given) if self.keys is not None and given else None
        except InputError:
            raise TooBusy("the server's file of keys cannot be read now", 5) from None
        request.state.client = f"key {key.name}" if key else request.client.host if request.client else "?"
        if key is None and (self.keys is not None or role == "write"):
            why = "this key is not known" if given and self.keys else "this needs a key"
            hint = "send Authorization: Bearer KEY" if self.keys else "start the server with --keys FILE"
            raise HTTPException(401, f"{why}; {hint}", {"WWW-Authenticate": "Bearer"})
        if key is not None and role == "write" and key.role != "write":
            raise HTTPException(403, f"the key {key.name!r} may read, not change; use one with the role write")

    def without_paths(self, error: InputError) -> str:
        """What the command line says, without this machine's paths and in the words of this interface."""
        text = str(error)
        for name, path in self.cache.paths.items():
            inside = re.escape(str(path.parent.resolve())) + r"[^\s;,)'\"]*"
            text = re.sub(rf" \({inside}\)", "", text)
            text = re.sub(inside, name, text)
        return text.replace("add these under --prefix NAME/", "send it with another name or a `prefix`")

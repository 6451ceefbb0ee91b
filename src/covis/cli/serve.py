"""`covis serve` and `covis keys`: maps over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from covis.cli.options import MAKE_A_MAP, Json, PicturesOption, TilesOption, existing, missing
from covis.cli.output import emit, table
from covis.cli.verbs import LOCALISE, verb
from covis.core.errors import InputError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@verb("serve", section=LOCALISE, order=3)
def serve(
    maps: Annotated[
        list[Path], Argument(metavar="MAP...", help="Maps (covis index), or libraries (covis geotag) to review.")
    ],
    host: Annotated[
        str, Option(help="Address to listen on; others than loopback need --keys or --open.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 picks a free one.")] = 8765,
    keys: Annotated[
        Path | None, Option(callback=existing, help="File of keys (covis keys); every request then needs one.")
    ] = None,
    open_: Annotated[bool, Option("--open", help="Answer anyone who can reach the address, without keys.")] = False,
    allow_host: Annotated[list[str] | None, Option(help="Another host name that requests may use.")] = None,
    tiles: TilesOption = "",
    pictures: PicturesOption = None,
    json: Json = False,
) -> None:
    """Serve maps over HTTP, with a page to drop photos on. Needs: pip install 'covis[serve]'.

    \b
    Examples:
      covis serve town.map --tiles osm
      covis keys keys.json --add phone
      covis serve town.map campus.map --host 0.0.0.0 --keys keys.json
    """
    local = host in LOOPBACK
    if not local and keys is None and not open_:
        hint = "add --keys FILE, or --open to allow requests without a key"
        raise InputError(f"--host {host} is reachable by others; {hint}")
    if keys is not None and open_:
        raise InputError("--keys and --open contradict each other; give one")
    maps = [_map_of(path) for path in maps]
    for path in maps:
        if not path.is_dir():
            raise missing(path, MAKE_A_MAP)
    from covis.service.app import create_app
    from covis.service.keys import Keys

    hosts = frozenset({*LOOPBACK, "[::1]", host, *(n.lower() for n in allow_host or ())}) if local else None
    opened = None if keys is None else Keys(keys)
    _run(create_app(maps, keys=opened, hosts=hosts, pictures=pictures or (), tiles=tiles), host, port, json)


def _map_of(path: Path) -> Path:
    """A map, or that of a photo library that `covis geotag` has read."""
    from covis.geotagging import map_of, memory_of

    library = map_of(str(path.resolve()), None)
    return library if path.is_dir() and memory_of(library).is_dir() else path


def _run(app: Any, host: str, port: int, json: bool) -> None:
    import socket
    import sys

    import uvicorn

    from covis.core.progress import say

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError(f"{host}:{port} cannot be opened ({error.strerror}); choose another --port") from None
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    cache = app.state.server.cache
    photos = {name: len(cache.now(name).map) for name in cache.names}
    emit({"url": url, "maps": photos}, json)
    sys.stdout.flush()
    say(f"serving {', '.join(f'{name} ({count} photos)' for name, count in photos.items())} at {url} (Ctrl-C to stop)")
    config = uvicorn.Config(
        app, http="h11", log_level="warning", access_log=False, timeout_keep_alive=15, timeout_graceful_shutdown=10,
        server_header=False, limit_concurrency=1000, h11_max_incomplete_event_size=32 * 1024,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


@verb("keys", section=LOCALISE, order=9)
def keys(
    file: Annotated[Path, Argument(metavar="FILE", help="The key file; it holds hashes only.")],
    add: Annotated[str, Option(metavar="NAME", help="Make a key for this user, and print it once.")] = "",
    role: Annotated[Literal["read", "write"], Option(help="add: what the key may do.")] = "read",
    remove: Annotated[str, Option(metavar="NAME", help="Remove this user's key; it is refused at once.")] = "",
    json: Json = False,
) -> None:
    """List, make or remove API keys for covis serve.

    \b
    Examples:
      covis keys keys.json
      covis keys keys.json --add phone
      covis keys keys.json --add importer --role write
      covis keys keys.json --remove phone
    """
    if add and remove:
        raise InputError("--add and --remove contradict each other; give one")
    if not add:
        existing(file)
    from covis.core.progress import say
    from covis.service.keys import add_key, read_keys, remove_key

    if add:
        secret = add_key(file, add, role)
        emit({"name": add, "role": role, "key": secret}, json, secret, f"covis serve MAP --keys {file}")
        say(f"save this key now: {file} holds only its hash")
    elif remove:
        remove_key(file, remove)
        emit({"removed": remove}, json, f"{file}: {remove} removed")
    else:
        rows = [{"name": key.name, "role": key.role} for key in read_keys(file)]
        emit(rows, json, table(rows))

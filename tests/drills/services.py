"""Services under kills: two of them on one map, an engine that dies under one, and a map of many photos."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import victims
from killing import LONGEST_S, Server, photos, processes
from served import jpeg
from simulated import tiny

PLACE = json.dumps([{"easting": 5.0, "northing": 5.0}])


def serve(place: Path, where: str, listener: socket.socket, keys: Path) -> None:
    """A victim: serves a map until it is killed."""
    import uvicorn

    from covis.service.app import create_app
    from covis.service.keys import Keys

    os.environ["COVIS_CACHE"] = str(place / "cache")
    config = uvicorn.Config(create_app([place / where], keys=Keys(keys)), http="h11", log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


def two_services(kills: int, seed: int, work: Path) -> Counter[str]:
    """Photos are added and removed through either service, and one is killed in the middle; its successor goes on."""
    import httpx

    from covis.service.keys import add_key

    rng = np.random.default_rng(seed)
    place = photos(work / "served")
    victims.change(place, "map", "index", "", 0)
    head = {"Authorization": f"Bearer {add_key(work / 'keys.json', 'me', 'write')}"}
    found: Counter[str] = Counter(kills=0, acknowledged=0, lost=0, mixed=0)
    known = set(_names(place))
    unsure: set[str] = set()

    def start() -> tuple[Any, str]:
        listener = socket.create_server(("127.0.0.1", 0))
        process = processes().Process(target=serve, args=(place, "map", listener, work / "keys.json"))
        process.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        httpx.get(f"{address}/readyz", timeout=LONGEST_S)
        return process, address

    running = [start(), start()]
    number = 0
    try:
        while found["kills"] < kills:
            which = int(rng.integers(0, 2))
            process, address = running[which]
            steps = int(rng.integers(1, 6))
            for step in range(steps):
                number += 1
                name, last = f"new-{number}.jpg", step == steps - 1
                killer = threading.Timer(float(rng.uniform(0.0, 0.1)), os.kill, (process.pid, signal.SIGKILL))
                if last:
                    killer.start()
                try:
                    added = sorted(n for n in known - unsure if n.startswith("new-"))
                    if added and rng.random() < 0.4:
                        name = str(rng.choice(added))
                        answer = httpx.delete(f"{address}/v1/maps/map/photos/{name}", headers=head, timeout=LONGEST_S)
                        change = known.discard
                    else:
                        url, sent = f"{address}/v1/maps/map/photos", {"photo": (name, jpeg(number))}
                        answer = httpx.post(url, files=sent, data={"positions": PLACE}, headers=head, timeout=LONGEST_S)
                        change = known.add
                    if answer.is_success:
                        found["acknowledged"] += 1
                        change(name)
                    else:
                        assert answer.status_code in (409, 503), answer.text
                except httpx.TransportError:
                    unsure.add(name)
                killer.join() if last else None
            process.join(LONGEST_S)
            found["kills"] += 1
            now = set(_names(place))
            found["lost"] += len((known ^ now) - unsure)
            known, unsure = now, set()
            running[which] = start()
    finally:
        for process, _ in running:
            process.kill()
            process.join()
    return found


def _names(place: Path) -> list[str]:
    from covis.maps.map import Map

    return victims._names(Map.open(place / "map", verify=True))


def engine_dies(kills: int, work: Path) -> Counter[str]:
    """PostgreSQL dies under a service and comes back: its map answers 503 meanwhile, another goes on."""
    from fastapi.testclient import TestClient

    from covis.service.app import create_app

    place = photos(work / "engines")
    victims.change(place, "folder", "index", "", 0)
    found: Counter[str] = Counter(kills=0, lost=0, wrong=0)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = Server(Path(folder))
        stack.callback(server.stop)
        victims.change(place, "engine", "index", server.url, 0)
        client = stack.enter_context(TestClient(create_app([place / "folder", place / "engine"])))

        def ask(name: str) -> tuple[int, Any]:
            answer = client.post("/v1/locate", files={"photo": (place / "003.png").read_bytes()}, data={"map": name})
            return answer.status_code, answer.json()

        for _ in range(kills):
            _, before = ask("engine")
            victims.die(server.pid)
            found["kills"] += 1
            found["wrong"] += ask("engine")[0] != 503
            found["wrong"] += ask("folder")[0] != 200
            found["wrong"] += client.get("/v1/maps").status_code != 200
            server.start()
            status, after = ask("engine")
            found["lost"] += status != 200 or after["answers"][0]["matches"] != before["answers"][0]["matches"]
    return found


def many_photos(count: int, questions: int, seed: int, work: Path) -> Counter[str]:
    """A map of `count` photos under a service answers as comparing with each of them does."""
    from fastapi.testclient import TestClient

    from covis.descriptors import DescriptorStore
    from covis.images import ImageSet
    from covis.maps.map import Map
    from covis.poses import Poses
    from covis.service.app import create_app

    rng, model = np.random.default_rng(seed), tiny()
    vectors = rng.standard_normal((count, model.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [f"{i:06d}.jpg" for i in range(count)]
    xy = np.column_stack([np.arange(count) % 500, np.arange(count) // 500]) * 10.0
    images = ImageSet.of(work, names, Poses(xy, np.full(count, np.nan)))
    store = DescriptorStore.in_memory(names, vectors, model.fingerprint())
    made = Map.create(work / "many", images, model, index="exact", descriptors=store, calibrate=False)
    found: Counter[str] = Counter(photos=count, questions=0, wrong=0)
    with TestClient(create_app([work / "many"])) as client:
        for i in range(questions):
            photo = work / "question.jpg"
            photo.write_bytes(jpeg(1000 + i))
            answer = client.post("/v1/locate", files={"photo": photo.read_bytes()}, data={"k": "3"}).json()["answers"][
                0
            ]
            vector = made.describe([photo]).vectors[0]
            nearest = np.argsort(np.linalg.norm(vectors - vector, axis=1))[:3]
            found["wrong"] += [m["image"] for m in answer["matches"]] != [names[j] for j in nearest]
            found["questions"] += 1
    return found


def run(count: int, seed: int, work: Path) -> dict[str, Any]:
    """`count` kills of a service and half as many of an engine; a map of 1,000 photos per kill, at most 200,000."""
    work.mkdir(parents=True, exist_ok=True)
    found = {"two services on one map": two_services(count, seed, work)}
    found["an engine dies under a service"] = engine_dies(max(1, count // 2), work)
    many = min(200_000, 1000 * count)
    found["a map of many photos"] = many_photos(many, 5, seed, work)
    shutil.rmtree(work / "many")
    return {name: dict(figures) for name, figures in found.items()}

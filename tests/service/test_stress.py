"""The service under fire: overload, kills while photos come in, thousands of made-up requests, a long soak.

With COVIS_WRITE_RESULTS=1 what was counted goes into benchmarks/results/stress.json, which docs/service.md shows.
"""

import asyncio
import json
import os
import signal
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from served import LAT, LON, build, jpeg, process, running

from covis.maps.map import Map
from covis.service.app import create_app
from covis.service.keys import add_key
from covis.service.limits import Limits

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "stress.json"


def note(drill, **figures):
    """Figures of a drill, for the page."""
    print(drill, figures)
    if os.environ.get("COVIS_WRITE_RESULTS"):
        held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(held | {drill: figures}, indent=2) + "\n")


def memory_mb(pid="self"):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def burst(address, clients, each, seconds=900):
    """Statuses of `clients` that ask `each` times at once, and whether each refusal says when to come again."""
    statuses, polite = [], []
    photo = jpeg(7)
    limits = httpx.Limits(max_connections=clients)

    async def client(line):
        for _ in range(each):
            response = await line.post(f"{address}/v1/locate", files={"photo": ("a.jpg", photo)})
            statuses.append(response.status_code)
            if response.status_code == 503:
                polite.append("retry-after" in response.headers)

    async with httpx.AsyncClient(timeout=seconds, limits=limits) as line:
        await asyncio.gather(*(client(line) for _ in range(clients)))
    return statuses, all(polite)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_overload_is_refused_and_passes(made):
    app = create_app([made / "town.map"], limits=Limits(queue=8))
    server = app.state.server
    network = server.cache.now("town").network
    describe = network.describe

    def slow(pixels):
        time.sleep(0.02)
        return describe(pixels)

    network.describe = slow
    try:
        with running(app) as address:
            statuses, polite = asyncio.run(burst(address, 200, 2))
            note("overload", clients=200, requests=400, answered=statuses.count(200), refused=statuses.count(503))
            assert {*statuses} <= {200, 503}
            assert statuses.count(503) > 50
            assert statuses.count(200) > 8
            assert polite
            assert (server.batcher.slots.used, server.bodies.used) == (0, 0)
            assert httpx.post(f"{address}/v1/locate", files={"photo": jpeg(7)}).status_code == 200
            assert httpx.get(f"{address}/readyz").status_code == 200
    finally:
        network.describe = describe


def test_bytes_in_flight_are_bounded(made):
    """A client that holds an upload open takes its share; another that would go beyond it is refused at once."""
    limits = Limits(total_bytes=300_000, request_bytes=250_000)
    app = create_app([made / "town.map"], limits=limits)
    with running(app) as address:
        hold = threading.Event()

        def parts():
            yield b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a"\r\n\r\n' + bytes(200_000)
            hold.wait(120)
            yield b"\r\n--x--\r\n"

        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        first = threading.Thread(
            target=lambda: httpx.post(f"{address}/v1/locate", content=parts(), headers=kind, timeout=240)
        )
        first.start()
        deadline = time.monotonic() + 120
        while app.state.server.bodies.used < 200_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        refused = httpx.post(f"{address}/v1/locate", files={"photo": bytes(150_000)}, timeout=120)
        hold.set()
        first.join(240)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        deadline = time.monotonic() + 120  # the answer may arrive before the server has let go of the body
        while app.state.server.bodies.used and time.monotonic() < deadline:
            time.sleep(0.01)
        assert app.state.server.bodies.used == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_while_photos_come_in_lose_nothing_acknowledged(tmp_path):
    build(tmp_path, 12)
    key = add_key(tmp_path / "keys.json", "writer", "write")
    headers = {"Authorization": f"Bearer {key}"}
    place = json.dumps([{"lat": LAT, "lon": LON}])
    acknowledged = set()
    number = 0
    for delay in (0.02, 0.1):
        with process(tmp_path / "town.map", "--keys", tmp_path / "keys.json") as (child, address):
            for turn in range(200):
                if turn == 2:  # two were acknowledged; then at any moment
                    threading.Timer(delay, os.kill, (child.pid, signal.SIGKILL)).start()
                number += 1
                name = f"new-{number}.jpg"
                try:
                    answer = httpx.post(
                        f"{address}/v1/maps/town/photos", files={"photo": (name, jpeg(1000 + number))},
                        data={"positions": place}, headers=headers, timeout=300,
                    )  # fmt: skip
                except httpx.TransportError:
                    break
                assert answer.status_code == 201, answer.text
                acknowledged.add(name)
            child.wait(300)
        now = Map.open(tmp_path / "town.map", verify=True)
        names = {now.images.name(i) for i in range(len(now))}
        assert acknowledged <= names
        assert len(names) - 12 - len(acknowledged) <= 2  # at most one per kill was done and not yet told
    note("kills", kills=2, acknowledged=len(acknowledged), lost=0, sent=number)
    assert acknowledged


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.drill)])
def test_made_up_requests_never_break_it(made, examples):
    """schemathesis over the OpenAPI: every answer is a documented status with the body that it promises."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    bounded = settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    count = 0

    def attempt(case):
        nonlocal count
        count += 1
        case.call_and_validate(checks=checks, timeout=20)

    with running(create_app([made / "town.map"])) as address:
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for found in schema.get_all_operations():
            operation = found.ok()
            known = {"name": "town"} if "{name}" in operation.path else None
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                strategy = operation.as_strategy(generation_mode=mode)
                if known and mode is GenerationMode.POSITIVE:
                    strategy = strategy.map(lambda case: (case.path_parameters.update(name="town"), case)[1])
                try:
                    bounded(given(strategy)(attempt))()
                except Exception as error:  # nothing to get wrong in a request without parameters
                    if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
                        raise
    note("made_up", requests=count, broken=0)
    assert count > 10 * examples


def ask_again_and_again(address, count, clients=8):
    """Statuses of `count` requests over a few lines that stay open; a refusal is asked again when it says."""
    left, statuses = iter(range(count)), []
    photos = [jpeg(i) for i in range(32)]

    def client():
        line = HTTPConnection(address.removeprefix("http://"), timeout=900)
        for i in left:
            head = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="a.jpg"\r\n\r\n'
            body = head + photos[i % 32] + b"\r\n--x--\r\n"
            while True:
                line.request("POST", "/v1/locate", body, {"Content-Type": "multipart/form-data; boundary=x"})
                answer = line.getresponse()
                answer.read()
                statuses.append(answer.status)
                if answer.status != 503:
                    break
                time.sleep(float(answer.headers["Retry-After"]))

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_ten_thousand_requests_in_flat_memory(tmp_path):
    build(tmp_path)
    with process(tmp_path / "town.map") as (child, address):
        ask_again_and_again(address, 1000)
        memory, statuses = [memory_mb(child.pid)], []
        for _ in range(10):
            statuses += ask_again_and_again(address, 1000)
            memory.append(memory_mb(child.pid))
    note(
        "soak",
        requests=statuses.count(200),
        refused=statuses.count(503),
        before_mb=memory[0],
        after_mb=memory[-1],
        most_mb=max(memory),
    )
    assert statuses.count(200) == 10_000
    assert {*statuses} <= {200, 503}
    assert memory[-1] < memory[0] + 30

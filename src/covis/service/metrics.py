"""Metrics of the service for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covis.service.batching import Batcher, Unusable
from covis.service.limits import Budget
from covis.service.map_cache import MapCache

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter("covis_requests", "Requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "covis_request_seconds", "Time of a request", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.photos = Counter("covis_photos", "Photos by outcome", ["outcome"], registry=self.registry)
        self.batch = Histogram(
            "covis_batch_photos", "Photos through the network at once", buckets=(1, 2, 4, 8), registry=self.registry
        )

    def count(self, described: Sequence[Any]) -> None:
        """Counts photos that were described, or why they were not."""
        for one in described:
            self.photos.labels(one.reason if isinstance(one, Unusable) else "described").inc()

    def watch(self, cache: MapCache, batcher: Batcher, bodies: Budget) -> None:
        """Shows the state of maps and queues at each reading."""
        self.registry.register(_State(cache, batcher, bodies))

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Counts and times requests by route, never by the address that was asked for."""

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            start, status = time.perf_counter(), 500

            async def answer(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, answer)
            finally:
                route = getattr(scope.get("route"), "path", "other")
                self.requests.labels(route, str(status)).inc()
                self.seconds.labels(route).observe(time.perf_counter() - start)

        return measured


class _State(Collector):
    """Gauges that are read from the server itself."""

    def __init__(self, cache: MapCache, batcher: Batcher, bodies: Budget) -> None:
        self.cache, self.batcher, self.bodies = cache, batcher, bodies

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges, at each reading by Prometheus."""
        yield _gauge("covis_queue_photos", "Photos that wait or are being answered", [([], self.batcher.slots.used)])
        yield _gauge("covis_upload_bytes", "Bytes of uploads in memory", [([], self.bodies.used)])
        snapshot = [self.cache.now(name) for name in self.cache.names]
        yield _gauge("covis_map_photos", "Photos of a map", [([s.name], len(s.map)) for s in snapshot], ["map"])
        yield _gauge("covis_map_version", "State of a map", [([s.name], s.map.version) for s in snapshot], ["map"])

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing in advance."""
        return iter(())


def _gauge(
    name: str, says: str, values: list[tuple[list[str], float]], labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, says, labels=list(labels))
    for label, value in values:
        family.add_metric(label, value)
    return family

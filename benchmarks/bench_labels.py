"""Field-of-view labels: exactness against integration in extended precision, speed against shapely, scale.

Run: python benchmarks/bench_labels.py [--quick]. CPU seconds of one thread each, in one run. "shapely" is shapely 2,
vectorised, with 64 points per arc, polygons included. Ratios of kernels are medians over rounds that measure both in turn.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from _common import cpu_seconds, report
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "labels"))

from sector_families import families, largest_error

from covis.core.arrays import Floats
from covis.images import ImageSet
from covis.labels import FovOverlap, fov_similarity
from covis.poses import Poses

ARC_POINTS = 64
QUICK = "--quick" in sys.argv
ROWS: list[dict[str, Any]] = []


def main() -> None:
    exactness()
    kernels()
    city()
    scale()
    report("labels", ROWS, {"quick": QUICK, "arc_points": ARC_POINTS})


def note(what: str, wanted: str, measured: str, **more: Any) -> None:
    """Adds a row to the result and prints it at once, because the whole run takes minutes."""
    ROWS.append({"what": what, "wanted": wanted, "measured": measured, **more})
    print(f"… {what}: {measured} (wanted {wanted})", file=sys.stderr, flush=True)


def exactness() -> None:
    """The largest error of ψ over all degenerate families."""
    worst = {f.name: largest_error(f) for f in families(40 if QUICK else 400, seed=0)}
    name = max(worst, key=lambda n: worst[n])
    note("largest error against extended precision", "≤ 1e-9", f"{worst[name]:.1e} ({name})", families=len(worst))


def polygons(xy: Floats, heading: Floats, radius: Any, fov: Any) -> NDArray[Any]:
    """Sectors as shapely polygons."""
    step = np.linspace(-0.5, 0.5, ARC_POINTS)
    radius, fov = (np.broadcast_to(v, len(xy))[:, None] for v in (radius, fov))
    angle = np.radians(heading[:, None] + fov * step)
    arc = np.stack([xy[:, :1] + radius * np.sin(angle), xy[:, 1:] + radius * np.cos(angle)], axis=-1)
    return np.asarray(shapely.polygons(np.concatenate([xy[:, None], arc, xy[:, None]], axis=1)))


def kernels() -> None:
    """Aligned pairs against shapely."""
    rng = np.random.default_rng(1)
    n = 2_000 if QUICK else 10_000
    b, turn = rng.uniform(-100, 100, (8 * n, 2)), rng.uniform(0, 360, (2, 8 * n))
    near = np.hypot(*b.T) < 100
    b, turn = b[near], turn[:, near]
    meets = fov_similarity(np.zeros_like(b), turn[0], b, turn[1]) > 0
    any_radius, any_fov = rng.uniform(5, 95, (2, len(b))), rng.uniform(1, 360, (2, len(b)))
    alike = np.full((2, len(b)), 50.0), np.full((2, len(b)), 90.0)
    for name, wanted, pick, (radius, fov) in (
        ("overlapping pairs, equal r, θ = 90°", 600, np.flatnonzero(meets)[:n], alike),
        ("random pairs closer than 2r, θ = 90°", 130, np.arange(n), alike),
        ("any r and θ", 200, np.arange(n), (any_radius, any_fov)),
    ):
        one_kernel(name, wanted, np.zeros((len(pick), 2)), b[pick], turn[:, pick], radius[:, pick], fov[:, pick])


def one_kernel(name: str, wanted: int, a: Floats, b: Floats, turn: Floats, radius: Floats, fov: Floats) -> None:
    uniform = len(np.unique(radius)) == 1
    settings: dict[str, Any] = {"radius_m": (radius[0], radius[1]), "fov_deg": (fov[0], fov[1])}
    if uniform:
        settings = {"radius_m": float(radius[0, 0]), "fov_deg": float(fov[0, 0])}
    sides = list(zip(radius, fov, strict=True))
    one, two = polygons(a, turn[0], *sides[0]), polygons(b, turn[1], *sides[1])
    repeat = 20
    many = [np.tile(v, (repeat, 1)) for v in (a, b)]
    headings = np.tile(turn, repeat)
    if not uniform:
        settings = {k: tuple(np.tile(v, repeat) for v in pair) for k, pair in settings.items()}
    rounds = np.array([
        (
            cpu_seconds(lambda: fov_similarity(many[0], headings[0], many[1], headings[1], **settings), 3) / repeat,
            cpu_seconds(lambda: (polygons(a, turn[0], *sides[0]), polygons(b, turn[1], *sides[1])), 1),
            cpu_seconds(lambda: shapely.area(shapely.intersection(one, two)), 1),
        )
        for _ in range(1 if QUICK else 5)
    ])  # fmt: skip
    ours, build, meet = np.median(rounds, axis=0)
    ratio = np.median((rounds[:, 1] + rounds[:, 2]) / rounds[:, 0])
    exact = fov_similarity(a, turn[0], b, turn[1], radius_m=(radius[0], radius[1]), fov_deg=(fov[0], fov[1]))
    area = 0.5 * np.minimum(*(radius**2 * np.radians(fov)))
    agrees = float(np.abs(exact - shapely.area(shapely.intersection(one, two)) / area).max())
    facts: dict[str, Any] = {
        "ours_ns": ours / len(a) * 1e9,
        "shapely_us": (build + meet) / len(a) * 1e6,
        "ratio_without_polygons": meet / ours,
        "largest_difference": agrees,
    }
    note(name, f"≥ {wanted}×", f"{ratio:.0f}×", **facts)


def streets(n: int, rng: np.random.Generator, metres_an_image: float = 2.0) -> tuple[Floats, Floats]:
    """A city of 100 m blocks: positions along streets with 3 m scatter, headings along them with 8°."""
    side = np.sqrt(n * metres_an_image * 100 / 2)
    up = rng.random(n) < 0.5
    street, along = rng.integers(0, int(side // 100) + 1, n) * 100.0, rng.uniform(0, side, n)
    xy = np.where(up[:, None], np.stack([street, along], 1), np.stack([along, street], 1)) + rng.normal(0, 3, (n, 2))
    return xy + 5e5, np.where(up, 0.0, 90.0) + 180.0 * rng.integers(0, 2, n) + rng.normal(0, 8, n)


def images(xy: Floats, heading: Floats, group: Any = "") -> ImageSet:
    """A set with made-up names."""
    return ImageSet.of(".", np.arange(len(xy)).astype("S9"), Poses(xy, heading), group)


def city() -> None:
    """30k queries × 60k map images on streets, against STRtree + shapely."""
    share = 20 if QUICK else 1
    xy, heading = streets(90_000, np.random.default_rng(2))
    queries, database = images(xy[: 30_000 // share], heading[: 30_000 // share]), images(xy[30_000:], heading[30_000:])
    graph = FovOverlap()(queries, database)
    ours = cpu_seconds(lambda: FovOverlap()(queries, database), 5)
    start = time.process_time()
    one = polygons(queries.poses.xy, queries.poses.heading, 50.0, 90.0)
    two = polygons(database.poses.xy, database.poses.heading, 50.0, 90.0)
    left, right = shapely.STRtree(two).query(one, predicate="intersects")
    area = shapely.area(shapely.intersection(one[left], two[right]))
    peer = time.process_time() - start
    difference = float(np.abs(graph.lookup(left, right) - area / shapely.area(one)[left]).max())
    note(
        f"city of {len(queries)} × {len(database)}, against STRtree + shapely", "≥ 200×", f"{peer / ours:.0f}×",
        ours_s=ours, shapely_s=peer, pairs=graph.pairs, largest_difference=difference,
    )  # fmt: skip


def scale() -> None:
    """1.4 million images in 22 cities, and growth at constant density; each in a process of its own."""
    total = 140_000 if QUICK else 1_400_000
    seconds, memory, pairs = in_process(f"cities:{total}")
    note(f"{total} images in 22 cities", "≤ 8 CPU-s, ≤ 1.2 GB", f"{seconds:.1f} CPU-s, {memory:.2f} GB", pairs=pairs)
    sizes = [9_000, 90_000] if QUICK else [9_000, 90_000, 810_000]
    each = [in_process(f"one:{n}")[0] / n * 1e6 for n in sizes]
    note("growth at constant density, µs an image", "linear", " → ".join(f"{t:.2f}" for t in each), sizes=sizes)


def in_process(job: str) -> tuple[float, float, int]:
    """CPU seconds of labelling, peak resident GB of the whole process, pairs."""
    command = [sys.executable, __file__, "--job", job]
    seconds, memory, pairs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), float(memory), int(pairs)


def run_job(job: str) -> None:
    """What `in_process` runs: a third of the images are queries."""
    kind, size = job.split(":")
    cities, n = (22, int(size) // 22) if kind == "cities" else (1, int(size))
    rng = np.random.default_rng(3)
    parts = [streets(n, rng) for _ in range(cities)]
    group = np.repeat(np.arange(cities), n // 3), np.repeat(np.arange(cities), n - n // 3)
    queries = images(
        np.concatenate([p[0][: n // 3] for p in parts]), np.concatenate([p[1][: n // 3] for p in parts]), group[0]
    )
    database = images(
        np.concatenate([p[0][n // 3 :] for p in parts]), np.concatenate([p[1][n // 3 :] for p in parts]), group[1]
    )
    del parts
    rule = FovOverlap(within_group=True)
    rule(queries.subset(np.arange(9)), database.subset(np.arange(9)))
    start = time.process_time()
    graph = rule(queries, database)
    print(time.process_time() - start, peak_gb(), graph.pairs)


def peak_gb() -> float:
    """Peak resident memory of this process; getrusage would count the parent's before the start."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(float(line.split()[1]) / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    if "--job" in sys.argv:
        run_job(sys.argv[sys.argv.index("--job") + 1])
    else:
        main()

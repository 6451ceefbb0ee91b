"""Each step of the work beside what one would use instead, all in one run: `python benchmarks/bench_market.py [--quick]`.

One thread, CPU time of all processes, both sides in turn, three rounds or more; a ratio above 1 says how many times
faster covis is. Where there is only one right answer, both sides give it, which is checked before they are timed.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import report, versus
from numpy.typing import NDArray

Row = dict[str, Any]
AREAS: dict[str, Callable[[int], Iterator[Row]]] = {}


def area(function: Callable[[int], Iterator[Row]]) -> Callable[[int], Iterator[Row]]:
    AREAS[function.__name__] = function
    return function


def row(
    what: str, peer: str, size: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, repeat: int = 1
) -> Row:
    """One row, also printed at once because the whole run takes minutes; `ours` does the work `repeat` times."""
    figures = versus(ours, theirs, rounds)
    figures |= {key: figures[key] * repeat for key in ("ratio", "low", "high")} | {"ours_s": figures["ours_s"] / repeat}
    spread = f"{figures['ratio']:.2f} ({figures['low']:.2f} to {figures['high']:.2f})"
    print(f"… {what}, {peer}: {spread}", file=sys.stderr, flush=True)
    return {"what": what, "instead of": peer, "size": size, **figures}


@area
def labels(rounds: int) -> Iterator[Row]:
    """Graded labels of pairs and of a city: shapely's polygons, geopandas' overlay."""
    import geopandas
    import shapely
    from bench_labels import images, polygons, streets

    from covis.labels import FovOverlap, fov_similarity

    rng = np.random.default_rng(1)
    b, turn = rng.uniform(-100, 100, (200_000, 2)), rng.uniform(0, 360, (2, 200_000))
    zero = np.zeros_like(b)
    met = np.flatnonzero(fov_similarity(zero, turn[0], b, turn[1]) > 0)[:5_000]
    some = [v[met] for v in (zero, turn[0], b, turn[1])]
    repeat = 40

    def shapely_pairs() -> Any:
        one, two = (polygons(xy, t, 50.0, 90.0) for xy, t in (some[:2], some[2:]))
        return shapely.area(shapely.intersection(one, two)) / shapely.area(one)

    many = [np.concatenate([v] * repeat) for v in some]
    assert np.abs(shapely_pairs() - fov_similarity(*some)).max() < 1e-2
    yield row("graded labels of overlapping pairs", "shapely 2, vectorised", f"{len(met):,} pairs",
              lambda: fov_similarity(*many), shapely_pairs, rounds, repeat)  # fmt: skip
    xy, heading = streets(6_000, np.random.default_rng(2))
    queries, database = images(xy[:2_000], heading[:2_000]), images(xy[2_000:], heading[2_000:])

    def overlay() -> Any:
        sides = (
            geopandas.GeoDataFrame(
                {name: np.arange(len(part))}, geometry=polygons(part.poses.xy, part.poses.heading, 50.0, 90.0)
            )
            for name, part in (("query", queries), ("map", database))
        )
        return geopandas.overlay(*sides, how="intersection", keep_geom_type=True).area.sum()

    sector = 0.5 * 50.0**2 * np.radians(90.0)
    ours_area = float(FovOverlap()(queries, database).to_scipy().sum()) * sector
    assert abs(ours_area / overlay() - 1) < 1e-2
    yield row("graded labels of a city", "geopandas overlay", f"{len(queries):,} × {len(database):,} images",
              lambda: FovOverlap()(queries, database), overlay, rounds)  # fmt: skip


@area
def sampling(rounds: int) -> Iterator[Row]:
    """Pairs of an epoch: scanning dense label rows, as the method's published loader does."""
    from bench_sampling import draw, label, photos, scan_rows

    from covis.sampling import Pairs, PairSampler

    rng = np.random.default_rng(0)
    queries, database = photos(10_000, 2_500.0, rng), photos(20_000, 2_500.0, rng)
    graph = label(queries, database)
    dense = graph.to_scipy()[:1_000].toarray()
    sampler = PairSampler(Pairs(), graph)
    pairs = 5_000
    repeat = 40
    yield row("pairs of an epoch", "scan of dense label rows (the method's loader, restated)", f"{pairs:,} pairs, map of 20,000",
              lambda: draw(sampler, repeat * pairs), lambda: scan_rows(dense, pairs, 1), rounds, repeat)  # fmt: skip


@area
def loading(rounds: int) -> Iterator[Row]:
    """JPEG files to batches: Pillow in a torch Dataset."""
    from bench_loading import ours, photographs, plain

    with tempfile.TemporaryDirectory() as folder:
        images = photographs(Path(folder), (480, 640))
        yield row("JPEG files to batches of 224 × 224", "Pillow in a torch DataLoader", f"{len(images)} files of 640 × 480",
                  lambda: list(ours(images, (224, 224), 0)), lambda: list(plain(images, (224, 224), 0)), rounds)  # fmt: skip


@area
def losses(rounds: int) -> Iterator[Row]:
    """A contrastive loss, forward and backward."""
    import torch
    from bench_losses import peers, unit

    from covis.losses import GeneralizedContrastive

    torch.set_num_threads(1)
    torch.manual_seed(0)
    za, zb, psi = unit(256, 2048), unit(256, 2048), torch.rand(256)
    loss = GeneralizedContrastive()

    def calls(forward: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [torch.autograd.grad(forward(), [za, zb]) for _ in range(40)]

    for name, forward in peers(za, zb, (psi > 0.5).long()).items():
        yield row("generalised contrastive loss, forward and backward", name, "256 pairs × 2,048, 40 calls",
                  calls(lambda: loss(za, zb, psi).mean()), calls(forward), rounds)  # fmt: skip


@area
def training(rounds: int) -> Iterator[Row]:
    """A training step of the last two blocks: a plain torch loop."""
    from bench_training import PAIRS, loops, network, town_data

    data = town_data()
    with tempfile.TemporaryDirectory() as folder:
        for backbone in ("mobilenetv2_100",):
            plain, ours = loops(network(backbone), data, Path(folder))
            for name, step in ours.items():
                yield row(f"training step, {backbone}, frozen part {name}", "plain torch loop", f"{PAIRS} pairs of 160 × 120",
                          lambda step=step: step().backward(), lambda plain=plain: plain().backward(), rounds)  # type: ignore[misc]  # fmt: skip


@area
def embedding(rounds: int) -> Iterator[Row]:
    """Photos to descriptors: a plain torch loop, sentence-transformers' image encoder left out (no weights here)."""
    import torch
    from bench_embed import photo

    from covis.describing.embedding import embed
    from covis.models import ModelConfig, OnnxPlaceModel, PlaceModel, export_onnx
    from covis.reading.sources import list_images

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos"
        root.mkdir()
        for i in range(64):
            (root / f"{i:03d}.jpg").write_bytes(photo(i % 16, (480, 640)))
        images = list_images(root)
        model = PlaceModel.build(ModelConfig("mobilenetv2_100", "gem", (224, 224), "none"))
        export_onnx(model, Path(folder) / "m.onnx")
        fast = OnnxPlaceModel.open(Path(folder) / "m.onnx", threads=1)
        loop = plain_embedding("mobilenetv2_100", model, root)
        assert np.abs(embed(fast, images, workers=0) - loop()).max() < 0.05  # Pillow resizes differently
        yield row("photos to descriptors, MobileNetV2", "timm and Pillow in a plain torch loop", f"{len(images)} photos of 640 × 480",
                  lambda: embed(fast, images, workers=0), loop, rounds)  # fmt: skip


def plain_embedding(backbone: str, model: Any, root: Path) -> Callable[[], NDArray[np.float32]]:
    """The loop that most place recognition code has: Pillow, normalisation, eager network, GeM, unit norm."""
    import timm
    import torch
    from bench_loading import Plain
    from torch.utils.data import DataLoader

    net = timm.create_model(backbone, num_classes=0).eval()
    net.load_state_dict(model.backbone.net.state_dict(), strict=False)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (model.preprocessing.mean, model.preprocessing.std))

    def loop() -> NDArray[np.float32]:
        descriptors = []
        with torch.no_grad():
            for pixels in DataLoader(Plain(sorted(map(str, root.iterdir())), (224, 224)), 32):
                maps = net.forward_features((pixels.float() / 255 - mean) / std).clamp(min=1e-6)
                descriptors.append(torch.nn.functional.normalize(maps.pow(3).mean((-2, -1)).pow(1 / 3)))
        return torch.cat(descriptors).numpy()

    return loop


@area
def search(rounds: int) -> Iterator[Row]:
    """Exact search: numpy, torch, faiss Flat. Approximate search: faiss HNSW and hnswlib at the same recall or lower."""
    import faiss
    import torch
    from bench_search import DIM, asked, drive

    from covis.search import build_index, rank

    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    count = 20_000
    database, queries = drive(count), asked(500, count)
    flat = faiss.IndexFlatL2(DIM)
    flat.add(database)
    size = f"{len(queries)} queries, {count:,} × {DIM}"

    def with_numpy() -> Any:
        likeness = queries @ database.T
        best = np.argpartition(-likeness, 10, axis=1)[:, :10]
        return np.take_along_axis(best, np.argsort(-np.take_along_axis(likeness, best, 1), axis=1), 1)

    tensors = torch.from_numpy(queries), torch.from_numpy(database)
    exact = rank(queries, database, 10).ids
    assert (exact == flat.search(queries, 10)[1]).mean() > 0.999
    for name, work in (
        ("numpy", with_numpy),
        ("torch matmul and topk", lambda: torch.topk(tensors[0] @ tensors[1].T, 10)),
        ("faiss IndexFlatL2", lambda: flat.search(queries, 10)),
    ):
        yield row("exact search", name, size, lambda: rank(queries, database, 10), work, rounds)
    index, _ = build_index(database, "hnsw", queries=queries)
    yield from graphs(index, database, queries, exact, size, rounds)


def graphs(index: Any, database: Any, queries: Any, exact: Any, size: str, rounds: int) -> Iterator[Row]:
    """Graphs of other libraries, searched as deeply as they need to find as much as ours."""
    import faiss

    def recall(ids: Any) -> float:
        return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(ids, exact, strict=True)])) / exact.shape[1]

    ours = recall(index.search(queries, 10).ids)
    theirs = faiss.IndexHNSWFlat(database.shape[1], 32)
    theirs.hnsw.efConstruction = 100
    theirs.add(database[np.random.default_rng(0).permutation(len(database))])
    order = np.random.default_rng(0).permutation(len(database))
    for depth in (16, 32, 64, 128, 256):
        theirs.hnsw.efSearch = depth
        reached = recall(order[theirs.search(queries, 10)[1]])
        if reached >= ours:
            break
    size_and_recall = f"{size}, recall {ours:.3f} and {reached:.3f}"
    yield row("approximate search, queries at once", "faiss IndexHNSWFlat", size_and_recall,
              lambda: index.search(queries, 10), lambda: theirs.search(queries, 10), rounds)  # fmt: skip
    try:
        import hnswlib
    except ImportError:
        return
    graph = hnswlib.Index("l2", database.shape[1])
    graph.init_index(len(database), M=32, ef_construction=100)
    graph.set_num_threads(1)
    graph.add_items(database[order], order)
    for depth in (16, 32, 64, 128, 256):
        graph.set_ef(depth)
        reached = recall(graph.knn_query(queries, 10)[0])
        if reached >= ours:
            break
    size_and_recall = f"{size}, recall {ours:.3f} and {reached:.3f}"
    yield row("approximate search, queries at once", "hnswlib", size_and_recall,
              lambda: index.search(queries, 10), lambda: graph.knn_query(queries, 10), rounds)  # fmt: skip


@area
def scoring(rounds: int) -> Iterator[Row]:
    """Recall at nine ranks: the method's and the community's loops."""
    from bench_scoring import KS, LOOPED, _edges, city, dense_loop, list_loop, ranked

    from covis.evaluation import recall_at_k
    from covis.graph import SimilarityGraph
    from covis.labels import Radius

    relevant = Radius(25.0)(*city())
    ids = ranked(relevant).ids[:LOOPED]
    part = SimilarityGraph.from_edges(
        *_edges(relevant, LOOPED), np.ones(int(relevant.indptr[LOOPED])), (LOOPED, relevant.shape[1])
    )
    dense, lists = part.to_scipy().toarray() > 0, [part.row(query)[0] for query in range(LOOPED)]
    ours, repeat = recall_at_k(ids, part, KS), 100
    for name, work in (
        ("the method's evaluation loop, restated", lambda: dense_loop(dense, ids)),
        ("membership loop of VPR evaluators, restated", lambda: list_loop(lists, ids)),
    ):
        assert all(np.isclose(work()[k], ours[k]) for k in KS)
        yield row("recall at 9 ranks", name, f"{LOOPED} queries × {relevant.shape[1]:,}",
                  lambda: [recall_at_k(ids, part, KS) for _ in range(repeat)], work, rounds, repeat)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(AREAS), help="these areas alone, without writing the result")
    given = parser.parse_args()
    rows = [result for name in given.only or AREAS for result in AREAS[name](given.rounds)]
    if given.only is None:
        report("market", rows, {"threads": 1})


if __name__ == "__main__":
    from covis.core.machine import prepare_process

    prepare_process()
    main()

"""One small artefact of every kind, and a question for each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from mutations import digest
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "maps"))
from simulated import image_set, simulated_map, tiny

from covis import artifacts


def make(work: Path) -> dict[str, Path]:
    """Name → folder."""
    os.environ["COVIS_CACHE"] = str(work / "cache")
    rng = np.random.default_rng(0)
    photos = work / "photos"
    photos.mkdir(parents=True)
    for i in range(8):
        Image.fromarray(rng.integers(0, 256, (48, 48, 3), np.uint8)).save(photos / f"{i:05d}.jpg")
    exact, _ = simulated_map(work / "exact", 10, 10, full=True)
    hnsw, _ = simulated_map(work / "hnsw", 52, 20, index="hnsw")
    return {
        "map": exact.path, "map-hnsw": hnsw.path, "store": work / "exact" / "store", "index": _index(work, exact),
        "graph": _graph(work), "model": exact.path / "model", "evaluation": _evaluation(work),
        "checkpoints": _checkpoints(work), "descriptor-cache": _descriptor_cache(work, photos),
        "feature-cache": _feature_cache(work), "onnx-cache": _onnx_cache(work), "notes": _notes(work, exact),
        "map-file": _map_file(work, exact), "keys": _keys(work), "run": _run(work), "folders": _folders(work),
        "unfinished": _unfinished(work, photos),
    }  # fmt: skip


def _vectors(dim: int, count: int = 6, seed: int = 3) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ask_map(work: Path):
    from covis.maps.map import Map

    def ask(path: Path) -> str:
        now = Map.open(path)
        vectors = np.asarray(now.descriptors[now.state.rows[:20]], np.float32)
        found = now.search(vectors, 5)
        told = [(a.matches[0].image, a.matches[0].probability) for a in now.locate([work / "photos" / "00001.jpg"], 3)]
        photos = [now.images.name(int(i)) for i in found.ids[:, 0]]
        images, poses = now.images, now.images.poses
        full = [v for v in (poses.rotation, images.intrinsics, images.columns.get("camera_params")) if v is not None]
        return f"{photos} {digest(found.distances, poses.xy, *full)} {told} {poses.frame} {len(full)}"

    return ask


ask_map_hnsw = ask_map


def ask_store(work: Path):
    from covis.descriptors import DescriptorStore

    def ask(path: Path) -> str:
        store = DescriptorStore.open(path, verify=False)
        return f"{store.model} {store.shape} {digest(np.asarray(store), store.names)} {dict(store.facts)}"

    return ask


def _index(work: Path, map_) -> Path:
    from covis.search import build_index

    index, _ = build_index(np.asarray(map_.descriptors), "exact")
    index.save(work / "index")
    return work / "index"


def ask_index(work: Path):
    from covis.search import open_index

    def ask(path: Path) -> str:
        index = open_index(path, verify=False)
        found = index.search(_vectors(index.dim), 5)
        return f"{index.kind} {index.model} {found.ids.tolist()} {digest(found.distances, index.xy)}"

    return ask


def _graph(work: Path) -> Path:
    from covis.labels.exchange import Labels, save_labels
    from covis.labels.rules import FovOverlap

    rng = np.random.default_rng(1)
    images = image_set(work, rng.uniform(0, 60, (30, 2)), rng.uniform(0, 360, 30))
    save_labels(Labels(FovOverlap()(images, images), images, images), work / "graph")
    return work / "graph"


def ask_graph(work: Path):
    from covis.labels.exchange import open_labels

    def ask(path: Path) -> str:
        labels = open_labels(path)
        graph = labels.graph
        return (
            f"{graph.shape} {dict(graph.facts)} {digest(graph.indptr, graph.indices, graph.psi, labels.queries.names)}"
        )

    return ask


def ask_model(work: Path):
    from covis.models import PlaceModel

    def ask(path: Path) -> str:
        import torch

        model = PlaceModel.load(path)
        pixels = torch.arange(3 * 32 * 32, dtype=torch.uint8).reshape(1, 3, 32, 32)
        with torch.inference_mode():
            return f"{model.card} {digest(model(model.normalise(pixels)).numpy())}"

    return ask


def _evaluation(work: Path) -> Path:
    from covis.evaluation.result import Evaluation

    rng = np.random.default_rng(2)
    arrays = {"ids": rng.integers(0, 9, (20, 5)), "relevant": np.ones(20, int), "first_hit": rng.integers(0, 5, 20)}
    figures = {"benchmark": "toy", "fingerprint": "0123", "recall": {"1": 51.5, "5": 80.25}, "queries": 20}
    Evaluation(figures, {"name": "toy", "denominator": "all"}, arrays, {"label": "x"}).save(work / "evaluation")
    return work / "evaluation"


def ask_evaluation(work: Path):
    from covis.evaluation.result import Evaluation

    def ask(path: Path) -> str:
        found = Evaluation.open(path, verify=False)
        told = {k: v for k, v in found.json().items() if k != "subject"}
        return (
            f"{told} {found.label} {digest(*(found.arrays[k] for k in sorted(found.arrays)))} {found.hits(1).tolist()}"
        )

    return ask


def _checkpoints(work: Path) -> Path:
    import torch

    from covis.training.loop import save_checkpoint

    for step in (10, 20):
        save_checkpoint(
            work / "checkpoints", step, {"weight": torch.full((4, 50), float(step))}, {"seed": 7, "step": step}
        )
    return work / "checkpoints"


def ask_checkpoints(work: Path):
    from covis.training.loop import latest_checkpoint

    def ask(path: Path) -> str:
        latest = latest_checkpoint(path)
        if latest is None:
            return "none"
        step, tensors, facts = latest
        return f"{step} {facts} {digest(tensors['weight'].numpy())}"

    return ask


def _photos(photos: Path):
    return image_set(photos, np.arange(16.0).reshape(8, 2))


def _descriptor_cache(work: Path, photos: Path) -> Path:
    from covis.describing.describers import ModelDescriber

    ModelDescriber(tiny(), cache=work / "descriptor-cache").describe(_photos(photos))
    return work / "descriptor-cache"


def ask_descriptor_cache(work: Path):
    from covis.describing.describers import ModelDescriber

    def ask(path: Path) -> str:
        found, lost = ModelDescriber(tiny(), cache=path).describe(_photos(work / "photos"))
        return f"{digest(np.asarray(found))} {lost.tolist()}"

    return ask


def _feature_cache(work: Path) -> Path:
    folder = work / "feature-cache"
    _features(work, folder)
    return folder


def _features(work: Path, folder: Path):
    import torch

    from covis.describing import features

    return features._fill(tiny(), _photos(work / "photos"), folder, (3, 32, 32), "uint8", 0, torch.device("cpu"))


def ask_feature_cache(work: Path):
    def ask(path: Path) -> str:
        rows, replaced = _features(work, path)
        return f"{digest(rows, replaced)}"

    return ask


def _onnx_cache(work: Path) -> Path:
    tiny().save(work / "onnx-model")
    _fast(work, work / "onnx-cache")
    return work / "onnx-cache"


def _fast(work: Path, cache: Path):
    import torch

    from covis.models import load_fast

    before, os.environ["COVIS_CACHE"] = os.environ.get("COVIS_CACHE", ""), str(cache)
    try:
        model = load_fast(work / "onnx-model", 100_000)
    finally:
        os.environ["COVIS_CACHE"] = before
    pixels = torch.arange(3 * 32 * 32, dtype=torch.uint8).reshape(1, 3, 32, 32)
    with torch.inference_mode():
        return np.round(np.asarray(model(model.normalise(pixels))), 4)


def ask_onnx_cache(work: Path):
    def ask(path: Path) -> str:
        return str(_fast(work, path).tolist())

    return ask


def _notes(work: Path, map_) -> Path:
    """What this machine remembers of large files that it has read; here all files count as large."""
    folder = work / "notes"
    ask_notes(work)(folder)
    return folder


def ask_notes(work: Path):
    def ask(cache: Path) -> str:
        before = os.environ["COVIS_CACHE"], artifacts.SMALL_BYTES, artifacts._SETTLED_S
        os.environ["COVIS_CACHE"], artifacts.SMALL_BYTES, artifacts._SETTLED_S = str(cache), 100, -1.0
        try:
            return ask_map(work)(work / "exact" / "map")
        finally:
            os.environ["COVIS_CACHE"], artifacts.SMALL_BYTES, artifacts._SETTLED_S = before

    return ask


def _unfinished(work: Path, photos: Path) -> Path:
    """A store whose embedding was interrupted after its third shard of four."""
    from covis.describing import embedding

    real = embedding.write_part

    def stopping(path: Path, number: int, *args, **options) -> None:
        if number == 3:
            raise KeyboardInterrupt
        real(path, number, *args, **options)

    embedding.write_part = stopping
    try:
        _resumed(work, work / "unfinished")
    except KeyboardInterrupt:
        pass
    finally:
        embedding.write_part = real
    return work / "unfinished"


def _resumed(work: Path, path: Path):
    from covis.describing.embedding import embed

    return embed(tiny(), _photos(work / "photos"), path, shard_rows=2, batch_size=1, workers=0)


def ask_unfinished(work: Path):
    import shutil

    def ask(path: Path) -> str:
        target = path.parent / "resumed"
        shutil.copytree(path, target)
        try:
            store = _resumed(work, target)
            return f"{store.model} {digest(np.asarray(store), store.names)} {dict(store.facts)}"
        finally:
            shutil.rmtree(target)

    return ask


def _map_file(work: Path, map_) -> Path:
    from covis.maps.care import export_map

    (work / "map-file").mkdir()
    export_map(map_, work / "map-file" / "town.covis")
    return work / "map-file"


def ask_map_file(work: Path):
    import shutil

    from covis.maps.care import import_map

    def ask(path: Path) -> str:
        target = path / "imported"
        try:
            now = import_map(path / "town.covis", target)
            names = [now.images.name(i) for i in range(len(now))]
            return f"{names} {digest(np.asarray(now.descriptors), now.images.poses.xy)} {now.state.calibration}"
        finally:
            shutil.rmtree(target, ignore_errors=True)

    return ask


def _keys(work: Path) -> Path:
    from covis.service.limits import add_key

    (work / "keys").mkdir()
    for name, role in (("phone", "read"), ("desk", "write")):
        add_key(work / "keys" / "keys.json", name, role)
    return work / "keys"


def ask_keys(work: Path):
    from covis.service.limits import read_keys

    return lambda path: str(read_keys(path / "keys.json"))


def _run(work: Path) -> Path:
    """What a training run leaves, without the training."""
    from covis.files import sha256, write_json
    from covis.training.loop import METRICS, RESULT, Record

    folder = work / "run"
    with artifacts.claim(folder, "run", {"recipe": {"epochs": 3}, "seed": 7}):
        record = Record(folder, 0, False)
        for step in range(1, 9):
            record.add(
                {"step": step, "images": 8 * step, "pairs": 4 * step, "loss": 0.5 / step, "recall@10": 10.0 * step}
            )
        tiny().save(folder / "model")
        write_json(folder / RESULT, {"model": "model", "step": 8, "metrics_sha256": sha256(folder / METRICS)})
    return folder


def ask_run(work: Path):
    from covis.describing.describers import open_place_model
    from covis.training.loop import RESULT, read_metrics

    def ask(path: Path) -> str:
        config = artifacts.read_json(path / "run.json")["config"]
        result = artifacts.read_json(path / RESULT)
        return f"{config} {result} {read_metrics(path)} {open_place_model(path).fingerprint()}"

    return ask


def _folders(work: Path) -> Path:
    """Which folders were given to a map on this machine: damaged, fewer pictures are shown, never more."""
    from covis.maps.storage import note_folders

    before, os.environ["COVIS_CACHE"] = os.environ["COVIS_CACHE"], str(work / "folders")
    try:
        note_folders(work / "some.map", [str(work / "photos")])
    finally:
        os.environ["COVIS_CACHE"] = before
    return work / "folders"


def ask_folders(work: Path):
    from covis.maps.storage import Pictures
    from covis.progress import warn

    def ask(path: Path) -> str:
        before, os.environ["COVIS_CACHE"] = os.environ["COVIS_CACHE"], str(path)
        try:
            pictures = Pictures.of(work / "some.map")
            if not pictures.shows(work / "photos" / "0.jpg"):
                warn("photos are shown without a picture")  # as pages do
            return str(sorted(pictures.folders))
        finally:
            os.environ["COVIS_CACHE"] = before

    return ask

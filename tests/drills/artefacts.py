"""One small artefact of every kind, and a question for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
from mutations import digest
from PIL import Image

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "maps")]
from simulated import image_set, simulated_map, tiny

from covis.core import artifacts


def make(work: Path, only: Collection[str] = ()) -> dict[str, Path]:
    """Name → folder; `only` those, if any are named."""
    os.environ["COVIS_CACHE"] = str(work / "cache")
    rng = np.random.default_rng(0)
    photos = work / "photos"
    photos.mkdir(parents=True)
    for i in range(8):
        Image.fromarray(rng.integers(0, 256, (48, 48, 3), np.uint8)).save(photos / f"{i:05d}.jpg")
    exact, _ = simulated_map(work / "exact", 10, 10, full=True)
    makers = {
        "map": lambda: exact.path, "map-hnsw": lambda: simulated_map(work / "hnsw", 52, 20, index="hnsw")[0].path,
        "store": lambda: work / "exact" / "store", "index": lambda: _index(work, exact), "graph": lambda: _graph(work),
        "model": lambda: exact.path / "model", "evaluation": lambda: _evaluation(work),
        "checkpoints": lambda: _checkpoints(work), "descriptor-cache": lambda: _descriptor_cache(work, photos),
        "feature-cache": lambda: _feature_cache(work), "onnx-cache": lambda: _onnx_cache(work),
        "notes": lambda: _notes(work, exact), "map-file": lambda: _map_file(work, exact), "keys": lambda: _keys(work),
        "run": lambda: _run(work), "folders": lambda: _folders(work), "unfinished": lambda: _unfinished(work, photos),
        "local-cache": lambda: _local_cache(work), "engine-map": lambda: _engine_map(work),
        "carried": lambda: _carried(work), "pins": lambda: _pins(work), "town": lambda: _town(work),
        "training": lambda: _training(work), "published": lambda: _published(work),
    }  # fmt: skip
    return {name: maker() for name, maker in makers.items() if not only or name in only}


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
        full = [v for v in (poses.rotation, images.intrinsics, images.columns.get("lens")) if v is not None]
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
    np.save(work / "vectors.npy", index.vectors[:])
    index.save(work / "index")
    return work / "index"


def ask_index(work: Path):
    from covis.search import open_index

    def ask(path: Path) -> str:
        index = open_index(path, np.load(work / "vectors.npy"), verify=False)
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

    from covis.training.checkpoint import save_checkpoint

    for step in (10, 20):
        save_checkpoint(
            work / "checkpoints", step, {"weight": torch.full((4, 50), float(step))}, {"seed": 7, "step": step}
        )
    return work / "checkpoints"


def ask_checkpoints(work: Path):
    from covis.training.checkpoint import latest_checkpoint

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

    return features._fill(
        tiny(), _photos(work / "photos"), folder, (32, 32, 3), "uint8", 0, torch.device("cpu"), "float32"
    )


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
    from covis.maps.archive import export_map

    (work / "map-file").mkdir()
    export_map(map_, work / "map-file" / "town.covis")
    return work / "map-file"


def ask_map_file(work: Path):
    import shutil

    from covis.maps.archive import import_map

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
    from covis.service.keys import add_key

    (work / "keys").mkdir()
    for name, role in (("phone", "read"), ("desk", "write")):
        add_key(work / "keys" / "keys.json", name, role)
    return work / "keys"


def ask_keys(work: Path):
    from covis.service.keys import read_keys

    return lambda path: str(read_keys(path / "keys.json"))


def _run(work: Path) -> Path:
    """What a training run leaves, without the training."""
    from covis.core.files import sha256, write_json
    from covis.training.record import METRICS, RESULT, Record

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
    from covis.training.record import RESULT, read_metrics

    def ask(path: Path) -> str:
        config = artifacts.read_json(path / "run.json")["config"]
        result = artifacts.read_json(path / RESULT)
        return f"{config} {result} {read_metrics(path)} {open_place_model(path).fingerprint()}"

    return ask


def _folders(work: Path) -> Path:
    """Which folders were given to a map on this machine: damaged, fewer pictures are shown, never more."""
    from covis.maps.pictures import note_folders

    before, os.environ["COVIS_CACHE"] = os.environ["COVIS_CACHE"], str(work / "folders")
    try:
        note_folders(work / "some.map", [str(work / "photos")])
    finally:
        os.environ["COVIS_CACHE"] = before
    return work / "folders"


def ask_folders(work: Path):
    from covis.core.progress import warn
    from covis.maps.pictures import Pictures

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


def _local_cache(work: Path) -> Path:
    """Local features of photos, as a re-ranker keeps them."""
    ask_local_cache(work)(work / "local-cache")
    return work / "local-cache"


def ask_local_cache(work: Path):
    from covis.search.local import EXTRACTORS, FeatureCache

    extractor = EXTRACTORS["sift"](None)

    def ask(path: Path) -> str:
        kept = FeatureCache(_photos(work / "photos").path, extractor, path)
        found = [kept(i) for i in range(3)]
        return " ".join(f"{f.size} {digest(f.xy.astype(np.float32), f.descriptors)}" for f in found)

    return ask


def _engine_map(work: Path) -> Path:
    """The folder of a map whose photos live in Milvus Lite; the engine's own file is its own concern."""
    from covis.descriptors import DescriptorStore
    from covis.maps.map import Map

    held = Map.open(work / "exact" / "map")
    store = DescriptorStore.open(work / "exact" / "store")
    Map.create(work / "engine-map", held.images, tiny(), engine=f"milvus:{work / 'engine.db'}", descriptors=store)
    return work / "engine-map"


def ask_engine_map(work: Path):
    from covis.maps.map import Map

    def ask(path: Path) -> str:
        now = Map.open(path)
        answers = now.locate([work / "photos" / "00001.jpg", work / "photos" / "00005.jpg"], 3)
        return str([[(m.image, round(m.distance, 4), m.probability) for m in a.matches] for a in answers])

    return ask


def _carried(work: Path) -> Path:
    """A map that carries its network as ONNX, and the photos' full poses' scene."""
    from covis.maps.map import Map

    made = Map.create(work / "carried", _photos(work / "photos"), tiny())
    made.network.carry_runtime()
    made.keep_scene(work / "photos")
    return work / "carried"


def ask_carried(work: Path):
    from covis.maps.map import Map

    def ask(path: Path) -> str:
        now = Map.open(path)
        answers = now.locate([work / "photos" / "00001.jpg", work / "photos" / "00005.jpg"], 3)
        return f"{[[(m.image, round(m.distance, 3)) for m in a.matches] for a in answers]} {now.scene}"

    return ask


def _pins(work: Path) -> Path:
    """The checksums of weights that this machine's user accepted."""
    from covis.core.files import write_json
    from covis.models import pins

    write_json(work / "pins" / pins._PINNED, {"timm/resnet18.a1_in1k": 64 * "a"})
    return work / "pins"


def ask_pins(work: Path):
    from covis.core.progress import warn
    from covis.models import pins

    def ask(path: Path) -> str:
        before, os.environ["COVIS_CACHE"] = os.environ["COVIS_CACHE"], str(path)
        try:
            if not (path / pins._PINNED).is_file():
                warn("a SHA-256 is expected from now on")  # as the next download says
            return str(pins._accepted())
        finally:
            os.environ["COVIS_CACHE"] = before

    return ask


def _town(work: Path) -> Path:
    ask_town(work)(work / "town")
    return work / "town"


def ask_town(work: Path):
    """The rendered town: what is damaged is rendered anew."""
    from covis.reading.decoding import decode
    from covis.town.config import TownConfig
    from covis.town.dataset import load

    config = TownConfig.small()

    def ask(path: Path) -> str:
        split = load(path, "test", config)
        pixels = [decode(split.database.path(i), (32, 32)) for i in range(0, len(split.database), 9)]
        return f"{len(split.queries)} {digest(split.queries.poses.xy, *pixels)}"

    return ask


def _training(work: Path) -> Path:
    """A run with mined tuples that was stopped: labels, metrics, checkpoints."""
    from covis.training.loop import Loop

    real = Loop._validate

    def stopping(self, row, *, due: bool = False) -> None:
        self.save()
        if row["step"] == 4:
            raise KeyboardInterrupt
        real(self, row, due=due)

    Loop._validate = stopping
    try:
        _trained(work, work / "training")
    except KeyboardInterrupt:
        pass
    finally:
        Loop._validate = real
    return work / "training"


def _trained(work: Path, run: Path):
    from dataclasses import replace

    from covis import experiments, losses
    from covis.datasets.dataset import Split
    from covis.models import ModelConfig
    from covis.sampling import Tuples
    from covis.training.run import Resources, train

    start = experiments.get("town_quick")
    batches = Tuples(2, negatives=2, mined=True, refresh=2, pool=6)
    recipe = replace(
        start, model=ModelConfig("tiny", "gem", image_size=(32, 32), trainable="all"), batches=batches, steps=6,
        validation="", loss=losses.Triplet(), cache_gb=0.1,
    )  # fmt: skip
    xy = np.repeat(np.arange(4.0) * 200, 2)[:, None] + np.arange(8)[:, None] % 2 * np.array([[3.0, 0.0]])
    images = image_set(work / "photos", xy, np.zeros(8))
    quiet = Resources(workers=0, cache=work / "training-cache", tensorboard=False, plan=False)
    return train(recipe, run, data=Split(images, images), resources=quiet)


def ask_training(work: Path):
    import shutil

    def ask(path: Path) -> str:
        target = path.parent / "trained"
        shutil.copytree(path, target)
        try:
            return str(_trained(work, target)["fingerprint"])
        finally:
            shutil.rmtree(target)

    return ask


def _published(work: Path) -> Path:
    """A folder for a model hub."""
    tiny().publish(work / "published")
    return work / "published"


def ask_published(work: Path):
    from covis.models import PlaceModel

    def ask(path: Path) -> str:
        import torch

        model = PlaceModel.from_pretrained(path)
        pixels = torch.arange(3 * 32 * 32, dtype=torch.uint8).reshape(1, 3, 32, 32)
        with torch.inference_mode():
            return f"{model.config} {digest(model(model.normalise(pixels)).numpy())}"

    return ask

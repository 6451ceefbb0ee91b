"""Local features by name, from networks that others published or by SIFT, kept in the cache; re-ranking with them.

    local:sift   local:xfeat   local:alike   local:xfeat+lighterglue   local:xfeat=FILE   local:xfeat,both
    local:model=transvpr   local:model=selavpr,none   local:h5=FEATURES.h5

Weights are a file of the user's (`NAME=FILE`), or lie under that name in `COVIS_WEIGHTS` or the cache's `weights` folder.
`model` is a model folder whose pooling provides patches to match, `h5` a file of features that any tool made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from covis.core import artifacts
from covis.core.arrays import Floats, Ids
from covis.core.errors import Damaged, InputError, unknown_name
from covis.core.files import first_line, load_arrays, replacing, sha256
from covis.core.machine import cache_folder, cpu_seconds, weights_folder
from covis.core.progress import Meter, say
from covis.core.registry import Registry
from covis.descriptors import Describer
from covis.images import ImageSet
from covis.models import PlaceModel, weights
from covis.ranking import Ranking
from covis.reading.decoding import Reject, decode
from covis.runtime import open_session
from covis.search.rerank import (
    MAX_ERROR,
    RATIO,
    RERANK_DEPTH,
    LocalFeatures,
    LocalRerank,
    Matcher,
    ViewGeometry,
    match,
    peaks,
    sampled,
    sift,
)

_MOST = 1024
"""Features of a picture, the strongest first."""
SIDE = 640
"""Pictures are scaled so that their longer side has this many pixels, small ones to at most twice their size."""
_CELL = 32
_IN_MEMORY = 512
"""Pictures whose features stay in memory: at most about 0.3 GB."""
_STORED = {"xy": ("f", (None, 2)), "descriptors": ("f", (None, None)), "size": ("i", (2,))}


class Extractor(Protocol):
    """Finds features in pictures."""

    def facts(self) -> dict[str, Any]:
        """All that decides the features, as plain values for JSON."""
        ...

    def __call__(self, path: Path) -> LocalFeatures: ...


EXTRACTORS: Registry[Callable[[Path | None], Extractor]] = Registry("local features")
"""Name → function from the file of weights that was given, if any."""


@EXTRACTORS.register("sift")
@dataclass(frozen=True)
class Sift:
    """SIFT (Lowe 2004), square roots of its histograms; needs no weights."""

    file: Path | None = None

    def __post_init__(self) -> None:
        if self.file is not None:
            raise InputError(f"sift has no weights; write --rerank local:sift, not {self.file}")

    def facts(self) -> dict[str, Any]:
        """Name and bounds."""
        return {"features": "sift", "most": _MOST, "side": SIDE}

    def __call__(self, path: Path) -> LocalFeatures:
        """Up to `_MOST` features."""
        return sift(path, _MOST, SIDE)


@EXTRACTORS.register("xfeat")
class XFeat:
    """XFeat (Potje et al., CVPR 2024) as an ONNX file that gives descriptors, key-point logits and reliability."""

    radius, threshold, stride = 2, 0.05, 8

    def __init__(self, file: Path | None = None) -> None:
        self.file = _weights_file("xfeat", file, (".onnx",))
        self.session = _onnx(self.file, {"descriptors", "keypoint_logits", "reliability"})

    def facts(self) -> dict[str, Any]:
        """Name, weights and bounds."""
        return {"features": "xfeat", "weights": sha256(self.file), "most": _MOST, "side": SIDE}

    def __call__(self, path: Path) -> LocalFeatures:
        """Up to `_MOST` features, by how sure the network is of the place and of the descriptor."""
        pixels, size = _pixels(path)
        wanted = ["descriptors", "keypoint_logits", "reliability"]
        descriptors, logits, reliability = (v[0] for v in self.session.run(wanted, {"input": pixels[None]}))
        xy, value = peaks(_heat(logits, self.stride), self.radius, self.threshold)
        at = xy.astype(np.float64) + 0.5
        sure = np.asarray(value * sampled(reliability, at, self.stride)[:, 0], np.float32)
        return _strongest(at, sure, descriptors, self.stride, pixels, size)


def _heat(logits: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """(side² + 1, h, w) logits of the pixels of each cell, and of none → (h·side, w·side) probabilities."""
    odds = np.exp(logits - logits.max(axis=0, keepdims=True))
    share = (odds / odds.sum(axis=0, keepdims=True))[: side * side]
    _, rows, columns = share.shape
    cells = share.reshape(side, side, rows, columns).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(cells.reshape(rows * side, columns * side))


@EXTRACTORS.register("alike")
class Alike:
    """ALIKE (Zhao et al., TMM 2022), its small, tiny and normal networks, as their authors' .pth file."""

    radius, threshold = 2, 0.2

    def __init__(self, file: Path | None = None) -> None:
        self.file = _weights_file("alike", file, (".pth", "-n.pth", "-t.pth", "-s.pth", ".safetensors"))
        self.net = AlikeNetwork.of(weights.read_tensors(self.file, plain=False), self.file)

    def facts(self) -> dict[str, Any]:
        """Name, weights and bounds."""
        return {"features": "alike", "weights": sha256(self.file), "most": _MOST, "side": SIDE}

    def __call__(self, path: Path) -> LocalFeatures:
        """Up to `_MOST` features, the most confident first."""
        pixels, size = _pixels(path)
        with torch.inference_mode():
            score, descriptors = (v[0].numpy() for v in self.net(torch.from_numpy(pixels)[None]))
        xy, value = peaks(score, self.radius, self.threshold)
        return _strongest(xy.astype(np.float64) + 0.5, value, descriptors, 1, pixels, size)


class AlikeNetwork(nn.Module):
    """Four stages, each brought back to full size: (B, 3, H, W) in [0, 1] → scores (B, H, W), descriptors (B, D, H, W).

    H and W are multiples of 32. Parameters are named as in the published files.
    """

    def __init__(self, channels: tuple[int, ...], dim: int) -> None:
        super().__init__()
        for stage, (before, now) in enumerate(zip((3, *channels[:3]), channels, strict=True), 1):
            self.add_module(f"block{stage}", _Stage(before, now, residual=stage > 1))
            self.add_module(f"conv{stage}", nn.Conv2d(now, dim // 4, 1, bias=False))
        self.convhead2 = nn.Conv2d(dim, dim + 1, 1, bias=False)

    @classmethod
    def of(cls, state: Mapping[str, Tensor], source: Path) -> AlikeNetwork:
        """The network of the sizes that the tensors have."""
        try:
            channels = tuple(state[f"block{stage}.conv1.weight"].shape[0] for stage in range(1, 5))
            net = cls(channels, state["convhead2.weight"].shape[1])
            net.load_state_dict(dict(state))
        except (KeyError, RuntimeError) as error:
            detail = " ".join(str(error).split())[:120]
            raise InputError(
                f"{source} is not an ALIKE network with a single head ({detail}); give alike-t, -s or -n"
            ) from None
        return net.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images → scores and descriptors."""
        size, parts = x.shape[-2:], []
        for stage, shrink in enumerate((1, 2, 4, 4), 1):
            x = self.get_submodule(f"block{stage}")(functional.max_pool2d(x, shrink) if shrink > 1 else x)
            part = functional.relu(self.get_submodule(f"conv{stage}")(x))
            parts.append(functional.interpolate(part, size, mode="bilinear", align_corners=True) if stage > 1 else part)
        outputs = self.convhead2(torch.cat(parts, 1))
        return torch.sigmoid(outputs[:, -1]), functional.normalize(outputs[:, :-1], dim=1)


class _Stage(nn.Module):
    def __init__(self, before: int, now: int, *, residual: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, now, 3, padding=1, bias=False), nn.BatchNorm2d(now)
        self.conv2, self.bn2 = nn.Conv2d(now, now, 3, padding=1, bias=False), nn.BatchNorm2d(now)
        self.downsample = nn.Conv2d(before, now, 1) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y if self.downsample is None else y + self.downsample(x))


@EXTRACTORS.register("model")
class ModelPatches:
    """Patches of a place model whose pooling chooses them: TransVPR's by its attention, SelaVPR's of a finer map."""

    def __init__(self, file: Path | None = None) -> None:
        if file is None:
            raise InputError("local:model needs the model's folder: local:model=FOLDER")
        self.model = PlaceModel.load(file)
        if not hasattr(self.model.pool, "patches"):
            raise InputError(
                f"{file} pools by {self.model.config.pool}, which has no patches of its own; use --rerank patches"
            )
        self.max_error = float(cast(Any, self.model.pool).max_error)

    def facts(self) -> dict[str, Any]:
        """The model by its fingerprint."""
        return {"features": "model", "weights": self.model.fingerprint()}

    def __call__(self, path: Path) -> LocalFeatures:
        """The patches that count, at their places in the picture."""
        full = decoded(path)
        with torch.inference_mode():
            x = self.model.normalise(self.model.preprocessing.pixels(full)[None])
            local, counts = cast(Any, self.model.pool).patches(self.model.local_features(x))
        rows, columns = np.nonzero(counts[0].numpy())
        height, width = full.shape[:2]
        cell = np.array([width, height]) / counts.shape[:0:-1]
        xy = (np.column_stack([columns, rows]) + 0.5) * cell
        return LocalFeatures(
            xy, np.ascontiguousarray(local[0, :, rows, columns].T.numpy(), np.float32), (width, height)
        )


@EXTRACTORS.register("h5")
class StoredFeatures:
    """Features that another tool wrote, in the layout of hloc: a group per picture with key points and descriptors.

    `keypoints` (N, 2) in pixels, centre of the first at 0; `descriptors` (D, N); `image_size` (width, height). A group is
    found by the longest end of a picture's path that names one.
    """

    def __init__(self, file: Path | None = None) -> None:
        if file is None or not file.expanduser().is_file():
            raise InputError("local:h5 needs a file of features: local:h5=FEATURES.h5")
        self.file = file.expanduser()
        with self._open() as groups:
            if not len(groups):
                raise InputError(f"{self.file} holds no features; write a group per picture, as hloc does")

    def _open(self) -> Any:
        import h5py

        try:
            return h5py.File(self.file, "r")
        except OSError as error:
            raise InputError(
                f"{self.file} is not an HDF5 file ({first_line(error)}); give features as hloc writes them"
            ) from None

    def facts(self) -> dict[str, Any]:
        """The file by its checksum."""
        return {"features": "h5", "file": sha256(self.file)}

    def __call__(self, path: Path) -> LocalFeatures:
        """All features of a picture."""
        with self._open() as groups:
            parts = path.resolve().parts
            names = ("/".join(parts[start:]) for start in range(1, len(parts)))
            name = next((name for name in names if name in groups and "keypoints" in groups[name]), None)
            if name is None:
                raise InputError(
                    f"{self.file} has no features of {path}; name groups by paths below the folder of pictures"
                )
            group = groups[name]
            try:
                xy = np.asarray(group["keypoints"], np.float64)[:, :2] + 0.5
                descriptors = np.asarray(group["descriptors"], np.float32).T
                size = tuple(int(side) for side in group["image_size"]) if "image_size" in group else None
            except (KeyError, IndexError, ValueError) as error:
                raise InputError(f"{self.file}: {name} is not a group of features ({first_line(error)})") from None
        if xy.ndim != 2 or len(xy) != len(descriptors):
            raise InputError(f"{self.file}: {name} has {len(xy)} key points and {len(descriptors)} descriptors")
        descriptors = descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-9)
        width, height = size or decoded(path).shape[1::-1]
        return LocalFeatures(xy, descriptors, (width, height))


class LighterGlue:
    """LighterGlue, the matcher that was trained for XFeat, as an ONNX file (key points in [0, 1] of the picture)."""

    least = 0.1

    def __init__(self, file: Path | None = None) -> None:
        self.file = _weights_file("lighterglue", file, (".onnx", "_L3.onnx", "_L6.onnx"))
        self.session = _onnx(self.file, {"matches", "scores"})

    def facts(self) -> dict[str, Any]:
        """Name and weights."""
        return {"matcher": "lighterglue", "weights": sha256(self.file)}

    def __call__(self, first: LocalFeatures, second: LocalFeatures) -> NDArray[np.int64]:
        """(M, 2) matches that the network gives at least 10 %."""
        if not len(first.xy) or not len(second.xy):
            return np.zeros((0, 2), np.int64)
        given: dict[str, NDArray[np.float32]] = {}
        for k, side in enumerate((first, second)):
            given[f"kpts{k}"] = (side.xy / np.maximum(side.size, 1)).astype(np.float32)[None]
            given[f"desc{k}"] = side.descriptors.astype(np.float32)[None]
        pairs, scores = self.session.run(["matches", "scores"], given)
        return np.asarray(pairs, np.int64).reshape(-1, 2)[np.asarray(scores).reshape(-1) >= self.least]


def decoded(path: Path) -> NDArray[np.uint8]:
    """The picture as (h, w, 3)."""
    try:
        return decode(path)
    except Reject as reject:
        raise InputError(f"{reject}; replace or remove the file") from None


def _pixels(path: Path) -> tuple[NDArray[np.float32], tuple[int, int]]:
    """The picture as (3, h, w) in [0, 1], its longer side about `SIDE`, both multiples of 32; and its own (width, height)."""
    full = decoded(path)
    height, width = full.shape[:2]
    scale = min(2.0, SIDE / max(height, width))
    size = tuple(max(_CELL, round(side * scale / _CELL) * _CELL) for side in (height, width))
    planes = torch.from_numpy(np.ascontiguousarray(full.transpose(2, 0, 1)))[None].float()
    small = functional.interpolate(planes, size, mode="bilinear", antialias=scale < 1, align_corners=False)[0] / 255
    return small.numpy(), (width, height)


def _strongest(
    at: Floats,
    value: NDArray[np.float32],
    descriptors: NDArray[np.float32],
    stride: int,
    pixels: NDArray[np.float32],
    size: tuple[int, int],
) -> LocalFeatures:
    """The `_MOST` surest points with their descriptors, in pixels of the full picture."""
    best = np.argsort(-value, kind="stable")[:_MOST]
    vectors = sampled(descriptors, at[best], stride)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return LocalFeatures(at[best] * (np.array(size) / pixels.shape[:0:-1]), vectors, size)


def _weights_file(name: str, given: Path | None, endings: tuple[str, ...]) -> Path:
    """The file of weights of `name`: as given, else from where weights are kept."""
    places = [given.expanduser()] if given is not None else [weights_folder() / f"{name}{end}" for end in endings]
    for path in places:
        if path.is_file():
            return path
    raise InputError(
        f"{places[0]} does not exist; give the weights of {name} as local:{name}=FILE, or put the file there "
        "(another folder: COVIS_WEIGHTS)"
    )


def _onnx(path: Path, outputs: set[str]) -> Any:
    """A session of someone else's ONNX file that has these outputs."""
    session = open_session(path, remedy="download it again")
    lacking = sorted(outputs - {output.name for output in session.get_outputs()})
    if lacking:
        raise InputError(f"{path} has no output {lacking[0]!r}; docs/search.md says which file is meant")
    return session


# Kept, and used to re-rank


@dataclass(frozen=True)
class PictureFiles:
    """Files by number."""

    files: Sequence[Path]

    def path(self, image: int) -> Path:
        """The file of picture `image`."""
        return self.files[image]


@dataclass(frozen=True, eq=False)
class KeptFeatures:
    """Features of images by id: from memory, from the cache, else extracted now and kept in both.

    A file of the cache belongs to one state of one image file and to one extractor; a damaged one is made again.
    """

    images: ImageSet | PictureFiles
    extractor: Extractor
    folder: Path

    def __call__(self, image: int) -> LocalFeatures:
        """Features of image `image`."""
        return self._recent(image)

    @cached_property
    def _recent(self) -> Callable[[int], LocalFeatures]:
        return lru_cache(_IN_MEMORY)(self._features)

    def _features(self, image: int) -> LocalFeatures:
        path = self.images.path(image)
        file = self.file(path)
        if file.is_file():
            try:
                stored = load_arrays(file, _STORED, "it is made again")
                width, height = stored["size"].tolist()
                return LocalFeatures(
                    stored["xy"].astype(np.float64), stored["descriptors"].astype(np.float32), (width, height)
                )
            except Damaged as error:
                say(str(error))
        features = self.extractor(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, durable=False) as partial, partial.open("wb") as handle:
            np.savez(
                handle,
                xy=features.xy.astype(np.float32),
                descriptors=features.descriptors.astype(np.float16),
                size=np.array(features.size, np.int64),
            )
        return LocalFeatures(features.xy, features.descriptors.astype(np.float16).astype(np.float32), features.size)

    def file(self, path: Path) -> Path:
        """Where the features of a picture are kept."""
        status = path.stat() if path.is_file() else None
        state = (None, None) if status is None else (status.st_size, status.st_mtime_ns)
        key = artifacts.fingerprint(os.fsencode(path.resolve()), state)
        return self.folder / artifacts.fingerprint(self.extractor.facts()) / f"{key}.npz"


@dataclass(eq=False)
class LocalReranking:
    """Re-ranks the first `depth` results by local features that agree on one geometry."""

    queries: KeptFeatures
    database: KeptFeatures
    depth: int
    matcher: Matcher
    geometry: ViewGeometry
    max_error: float = MAX_ERROR
    cost: dict[str, float] = field(default_factory=dict)
    """After a call: CPU milliseconds per image for features, per pair for matching and geometry."""

    def __call__(self, ranking: Ranking) -> Ranking:
        """The ranking with its head in a new order."""
        started = cpu_seconds()
        head = ranking.ids[:, : self.depth]
        wanted = np.unique(head[head >= 0])
        sides = ((self.queries, range(len(ranking))), (self.database, wanted.tolist()))
        images = sum(len(ids) for _, ids in sides)
        with Meter("local features", images, "images") as meter:
            for kept, ids in sides:
                for i in ids:
                    kept(i)
                    meter.advance()
        extracted = cpu_seconds()
        result = LocalRerank(self.queries, self.database, self.depth, self.matcher, self.geometry, self.max_error)(
            ranking
        )
        self.cost |= {
            "cpu_ms_per_image": 1000 * (extracted - started) / max(1, images),
            "cpu_ms_per_pair": 1000 * (cpu_seconds() - extracted) / max(1, int((head >= 0).sum())),
        }
        return result


@dataclass(frozen=True)
class ByLocal:
    """Counts local features of two pictures that agree on one geometry."""

    features: str
    file: Path | None = None
    matcher: str = ""
    matcher_file: Path | None = None
    geometry: ViewGeometry = "homography"
    depth: int = RERANK_DEPTH

    @classmethod
    def parse(cls, text: str, depth: int | None = None) -> ByLocal:
        """From `NAME[=FILE][+lighterglue[=FILE]][,GEOMETRY]`."""
        head, _, geometry = text.partition(",")
        name, _, matcher = head.partition("+")
        (features, _, file), (glue, _, glue_file) = name.partition("="), matcher.partition("=")
        if features not in EXTRACTORS:
            raise unknown_name("local features", features, EXTRACTORS)
        if glue not in ("", "lighterglue"):
            raise unknown_name("matcher", glue, ("lighterglue",))
        if glue and features != "xfeat":
            raise InputError(f"lighterglue was trained for xfeat; write --rerank local:xfeat+lighterglue, not {text!r}")
        if geometry and geometry not in get_args(ViewGeometry):
            raise unknown_name("geometry", geometry, get_args(ViewGeometry))
        chosen = cls(features, _path(file), glue, _path(glue_file), cast(ViewGeometry, geometry or "homography"))
        return chosen if depth is None else replace(chosen, depth=depth)

    @property
    def name(self) -> str:
        """As the command line knows it, without files."""
        glue = f"+{self.matcher}" if self.matcher else ""
        return f"local:{self.features}{glue}{'' if self.geometry == 'homography' else ',' + self.geometry}"

    @cached_property
    def _parts(self) -> tuple[Extractor, LighterGlue | None]:
        return EXTRACTORS[self.features](self.file), LighterGlue(self.matcher_file) if self.matcher else None

    def facts(self) -> dict[str, Any]:
        """Depth, features, matcher, geometry; weights by their checksum."""
        extractor, glue = self._parts
        matcher = "mutual nearest" if glue is None else glue.facts()
        return {"depth": self.depth, **extractor.facts(), "matcher": matcher, "geometry": self.geometry}

    def prepare(self, describer: Describer, queries: ImageSet, database: ImageSet) -> Callable[[Ranking], Ranking]:
        """Needs the pictures themselves; any descriptors will do."""
        return self._between(queries, database)

    def _between(self, queries: ImageSet | PictureFiles, database: ImageSet | PictureFiles) -> LocalReranking:
        extractor, glue = self._parts
        folder = cache_folder() / "local"
        kept = KeptFeatures(database, extractor, folder)
        asked = kept if queries is database else KeptFeatures(queries, extractor, folder)
        matcher = partial(match, ratio=None if self.features != "sift" else RATIO) if glue is None else glue
        max_error = float(getattr(extractor, "max_error", MAX_ERROR))
        return LocalReranking(asked, kept, self.depth, matcher, self.geometry, max_error)

    def count(self, queries: Sequence[Path], database: Sequence[Path], ids: Ids) -> Ids:
        """(Q, K) features that query q and picture ids[q, k] of `database` have in common on one geometry; 0 for an id of −1."""
        between = self._between(PictureFiles(queries), PictureFiles(database))
        pair = LocalRerank(between.queries, between.database, 0, between.matcher, between.geometry, between.max_error)
        counts = np.zeros(ids.shape, np.int64)
        with Meter("matching local features", len(queries), "photos") as meter:
            for q, row in enumerate(ids):
                for k in np.flatnonzero(row >= 0):
                    counts[q, k] = pair.agreeing(between.queries(q), between.database(int(row[k])))
                meter.advance()
        return counts


def _path(text: str) -> Path | None:
    return Path(text) if text else None

"""Local indexes on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from covis import artifacts
from covis.descriptors import DescriptorStore, Matrix
from covis.errors import InputError
from covis.search.approximate import Approximate
from covis.search.index import Exact, LocalIndex

KIND = "index"
_ROWS = 16384


def save_index(index: LocalIndex, path: Path, with_vectors: bool, store: DescriptorStore | None, replace: bool) -> None:
    """Writes an index as an artefact at `path`."""
    if store is not None and store.shape != index.vectors.shape:
        raise InputError(
            f"{store.path} holds {store.shape} descriptors, the index {index.vectors.shape}; save the vectors"
        )
    facts: dict[str, Any] = {
        "index": index.kind, "dim": index.dim, "rows": len(index.row_ids), "model": index.model,
        "vectors": "inside" if with_vectors else "outside",
    }  # fmt: skip
    if store is not None:
        place = os.path.relpath(store.path.resolve(), path.resolve())
        facts["store"] = {"path": place, "fingerprint": store.fingerprint()}
    with artifacts.create(path, KIND, facts, replace=replace) as draft:
        np.save(draft.path / "ids.npy", index.row_ids)
        np.save(draft.path / "live.npy", index.live)
        np.save(draft.path / "xy.npy", index.xy)
        if with_vectors:
            _write_vectors(index, draft.path / "vectors.npy")
        if isinstance(index, Approximate):
            draft.facts |= {"effort": index.effort, "seed": index.seed}
            np.save(draft.path / "order.npy", index.order)
            if index.structure is not None:
                import faiss

                faiss.write_index(index.structure, str(draft.path / "structure.faiss"))


def open_index(path: Path | str, vectors: Matrix | None = None, *, verify: bool = True) -> LocalIndex:
    """Opens a saved index; `vectors` are needed, row for row the same, where it was saved without them."""
    path = Path(path)
    manifest = artifacts.open_manifest(path, KIND, verify=verify)
    dim, model = manifest["dim"], manifest["model"]
    index: LocalIndex = Exact(dim, model)
    if manifest["index"] != Exact.kind:
        index = approximate = Approximate(dim, manifest["index"], model, seed=manifest["seed"])
        approximate.effort = manifest["effort"]
        approximate.order = np.load(path / "order.npy")
        if (path / "structure.faiss").exists():
            import faiss

            approximate.structure = faiss.read_index(str(path / "structure.faiss"))
    index.row_ids, index.live = np.load(path / "ids.npy"), np.load(path / "live.npy")
    index.xy = np.load(path / "xy.npy")
    if manifest["vectors"] == "inside":
        vectors = np.load(path / "vectors.npy", mmap_mode="r")
    elif vectors is None and "store" in manifest:
        vectors = _named_store(path, manifest["store"])
    if vectors is None or vectors.shape != (manifest["rows"], dim):
        found = "none were given" if vectors is None else f"these are {tuple(vectors.shape)}"
        raise InputError(
            f"{path} was saved without its ({manifest['rows']}, {dim}) vectors, and {found}; give its store"
        )
    index._bind(vectors)
    index.vectors = index.vectors.extended(vectors)
    return index


def _named_store(path: Path, store: dict[str, str]) -> DescriptorStore:
    """The store that an index was made over, unchanged."""
    found = DescriptorStore.open((path / store["path"]).resolve(), verify=False)
    if found.fingerprint() != store["fingerprint"]:
        raise InputError(f"{found.path} is not what {path} was made over any more; build the index again")
    return found


def _write_vectors(index: LocalIndex, path: Path) -> None:
    """All rows as one .npy, a bounded number at a time."""
    rows = len(index.row_ids)
    dtype = np.asarray(index.vectors[:1]).dtype
    target = np.lib.format.open_memmap(path, "w+", dtype, (rows, index.dim)) if rows else None
    if target is None:
        np.save(path, np.zeros((0, index.dim), np.float32))
        return
    for start in range(0, rows, _ROWS):
        target[start : start + _ROWS] = index.vectors[start : start + _ROWS]
    target.flush()

"""What a new map is made of: its model, the queries it may be calibrated with, segments of descriptors, other places."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from covis.core import artifacts
from covis.core.errors import InputError
from covis.core.progress import warn
from covis.descriptors import DescriptorStore
from covis.images import ImageSet
from covis.maps.elsewhere import Bank
from covis.maps.held_out import HeldOut, photos_key
from covis.maps.storage.layout import ELSEWHERE, clear_segment, segment_folder

if TYPE_CHECKING:
    from covis.models import Embedder
    from covis.whitening import Whitening


def held_out_for(model: Embedder | None, images: ImageSet) -> HeldOut | None:
    """Held-out queries for a pose-trained model: empty if trained on these photos, else None (use all)."""
    whitening: Whitening | None = getattr(model, "whitening", None)
    learned = {} if whitening is None else whitening.facts
    if learned.get("labels", "none") == "none" or "images" not in learned:
        return None
    if learned["images"] == photos_key(images):
        return HeldOut.empty(len(images))
    warn(
        "the model learned from the positions of its own photos; if some of them are indexed now, the map promises too much: "
        "index without --model"
    )
    return None


def identity_of(model: Embedder | None, descriptors: DescriptorStore | None) -> tuple[str, int]:
    """Fingerprint and length of the descriptors of a map that is being made."""
    if model is not None:
        return model.fingerprint(), model.dim
    if descriptors is None:
        raise ValueError("a map needs a model, or descriptors")
    return descriptors.model, descriptors.dim


def keep_model(folder: Path, model: Embedder | None, descriptors: DescriptorStore | None) -> None:
    """Writes the model into a map that does not have it yet; without a model, only the name of the descriptors."""
    if (folder / artifacts.MANIFEST).is_file():
        return
    if model is not None:
        model.save(folder, replace=True)
        return
    from covis.models.config import write_without_weights

    identity, dim = identity_of(model, descriptors)
    assert descriptors is not None
    card = {"backbone": f"descriptors of {descriptors.path.name}"}
    write_without_weights(folder, identity, dim, card, replace=True)


def copied_segment(path: Path, key: str, images: ImageSet, given: DescriptorStore, fingerprint: str) -> DescriptorStore:
    """The descriptors of `images` in `given`, as a segment of a map of the model `fingerprint`."""
    if given.model != fingerprint:
        raise InputError(
            f"{path} holds descriptors of model {fingerprint}, {given.path} of model {given.model}; embed with one model"
        )
    rows = given.rows(images.names)
    if (rows < 0).any():
        lacking = images.name(int(np.flatnonzero(rows < 0)[0]))
        raise InputError(f"{given.path} has no descriptor of {lacking!r}; embed the photos that you add")
    clear_segment(path, key)
    store = DescriptorStore.create(segment_folder(path, key), given.model, given.dim)
    return store.append(images.names, np.asarray(given[rows], np.float32), model=given.model)


def keep_bank(path: Path, fingerprint: str, dim: int, bank: Bank | None) -> None:
    """Puts pictures of other places, as the model describes them, into a map that has none yet."""
    if bank is None or (path / ELSEWHERE / artifacts.MANIFEST).is_file():
        return
    store = DescriptorStore.create(path / ELSEWHERE, fingerprint, dim)
    store.append([f"{family}/{i}" for i, family in enumerate(bank.family)], bank.descriptors, model=fingerprint)


def open_bank(path: Path) -> Bank | None:
    """The pictures of other places in a map; None where it has none."""
    if not (path / ELSEWHERE / artifacts.MANIFEST).is_file():
        return None
    store = DescriptorStore.open(path / ELSEWHERE, links=False)
    family = np.array([int(bytes(name).partition(b"/")[0]) for name in store.names])
    return Bank(np.asarray(store[:], np.float32), family)

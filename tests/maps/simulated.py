"""Maps without cameras: descriptors that fall off with distance on the ground, as a trained network's do."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from covis.descriptors import DescriptorStore
from covis.images import ImageSet
from covis.maps.map import Map
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.reading.cameras import Camera, calibration
from layouts.builders import view_rotation


def tiny(seed: int = 0) -> PlaceModel:
    """The smallest network there is."""
    return PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)), seed=seed)


class World:
    """Random waves over the ground: near places look alike; `noise` is what weather and people add."""

    def __init__(self, dim: int, seed: int = 0, length_m: float = 18.0, noise: float = 0.6) -> None:
        rng = np.random.default_rng(seed)
        self.waves = rng.standard_normal((2, dim)) / length_m
        self.phase = rng.uniform(0, 2 * np.pi, dim)
        self.noise, self.dim = noise, dim

    def describe(self, xy: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        level = self.noise * rng.uniform(0.2, 2.0, (len(xy), 1))
        x = np.cos(xy @ self.waves + self.phase) + level * rng.standard_normal((len(xy), self.dim))
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def walks(rng: np.random.Generator, groups: int, photos: int, side_m: float = 220.0) -> tuple[np.ndarray, np.ndarray]:
    """Positions and headings of walks: (groups · photos, 2) metres and degrees."""
    start = rng.uniform(0, side_m, (groups, 1, 2))
    turn = rng.uniform(0, 2 * np.pi, (groups, 1)) + np.cumsum(rng.normal(0, 0.2, (groups, photos)), axis=1)
    steps = 6.0 * np.stack([np.sin(turn), np.cos(turn)], axis=2)
    xy = np.abs((start + np.cumsum(steps, axis=1)) % (2 * side_m) - side_m)  # turns back at the border
    return xy.reshape(-1, 2), np.degrees(turn).reshape(-1)


def image_set(root: Path, xy: np.ndarray, heading: np.ndarray | None = None, group=None, start: int = 0) -> ImageSet:
    names = [f"{i + start:05d}.jpg" for i in range(len(xy))]
    angle = np.full(len(xy), np.nan) if heading is None else heading
    groups = "" if group is None else [f"walk {g}" for g in group]
    return ImageSet.of(root, names, Poses(xy, angle), groups)


def with_full_poses(images: ImageSet) -> ImageSet:
    """The same with rotations and two cameras; every fifth photo has neither."""
    turn = [view_rotation(h, 3.0 * np.sin(i)) for i, h in enumerate(np.nan_to_num(images.poses.heading))]
    unknown = np.arange(len(images)) % 5 == 4
    rotation = np.where(unknown[:, None, None], np.nan, np.array(turn))
    lenses = (Camera("OPENCV", 640, 480, (500.1, 501.2, 320.3, 240.4, -0.1, 0.02, 1e-3, 2e-4)),
              Camera("SIMPLE_PINHOLE", 800, 600, (1 / 3, 400.0, 300.0)))  # fmt: skip
    intrinsics, columns = calibration([None if unknown[i] else lenses[i % 2] for i in range(len(images))])
    poses = replace(images.poses, rotation=rotation, z=np.arange(len(images)) / 7)
    return replace(images, poses=poses, intrinsics=intrinsics, columns={**images.columns, **columns})


def store(path: Path, images: ImageSet, vectors: np.ndarray, model: str) -> DescriptorStore:
    return DescriptorStore.create(path, model, vectors.shape[1]).append(images.names, vectors, model=model)


def simulated_map(
    tmp_path: Path,
    groups: int = 20,
    photos: int = 20,
    *,
    seed: int = 0,
    world: World | None = None,
    index: str = "auto",
    full: bool = False,
) -> tuple[Map, World]:
    """A map of walks through a simulated world."""
    model = tiny()
    world = world or World(model.dim, seed)
    rng = np.random.default_rng(seed + 1)
    xy, heading = walks(rng, groups, photos)
    images = image_set(tmp_path, xy, heading, np.repeat(np.arange(groups), photos))
    images = with_full_poses(images) if full else images
    vectors = world.describe(xy, rng)
    made = Map.create(
        tmp_path / "map", images, model, index=index,
        descriptors=store(tmp_path / "store", images, vectors, model.fingerprint()),
    )  # fmt: skip
    return made, world

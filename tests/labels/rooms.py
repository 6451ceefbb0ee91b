"""A room of points and cameras in it, and the slow way to say what they see."""

import numpy as np

from covis.images import ImageSet
from covis.poses import Poses

INTRINSICS = (525.0, 520.0, 318.0, 243.0, 640.0, 480.0)


def room(n, seed=0, size=(6.0, 5.0, 3.0)):
    """n points on the walls, floor and ceiling."""
    rng = np.random.default_rng(seed)
    wall, xyz = rng.integers(0, 6, n), rng.uniform(0, 1, (n, 3))
    xyz[np.arange(n), wall // 2] = wall % 2
    return xyz * size


def cameras(n, seed=0, group="", origin=0.0):
    """n cameras in the middle of the room, looking around."""
    rng = np.random.default_rng(seed)
    centre = rng.uniform([1.5, 1.5, 1.0], [4.5, 3.5, 2.0], (n, 3)) + origin
    heading, pitch = rng.uniform(0, 2 * np.pi, n), rng.normal(0, 0.3, n)
    ahead = np.stack([np.sin(heading) * np.cos(pitch), np.cos(heading) * np.cos(pitch), np.sin(pitch)], 1)
    right = np.stack([np.cos(heading), -np.sin(heading), np.zeros(n)], 1)
    rotation = np.stack([right, np.cross(ahead, right), ahead], axis=2)
    matrices = np.concatenate([rotation, centre[:, :, None]], axis=2)
    names = [f"{i:04d}.jpg" for i in range(n)]
    return ImageSet.of("photos", names, Poses.from_matrices(matrices), group, intrinsics=np.tile(INTRINSICS, (n, 1)))


def pixels(images, i, xyz):
    """Column, row and depth of every point in image i."""
    fx, fy, cx, cy, _, _ = images.intrinsics[i]
    x, y, z = ((xyz - images.poses.centre[i]) @ images.poses.rotation[i]).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return fx * x / z + cx, fy * y / z + cy, z


def seen(images, xyz):
    """(N, points) whether a point projects into an image."""
    masks = np.zeros((len(images), len(xyz)), bool)
    for i in range(len(images)):
        u, v, z = pixels(images, i, xyz)
        masks[i] = (z > 0) & (u >= 0) & (u < images.intrinsics[i, 4]) & (v >= 0) & (v < images.intrinsics[i, 5])
    return masks

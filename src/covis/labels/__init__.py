"""Graded similarity labels from poses: two-dimensional fields of view, three-dimensional surfaces, plain radius."""

from covis.labels.fov import fov_similarity
from covis.labels.rules import FovOverlap, Radius, SurfaceOverlap

__all__ = ["FovOverlap", "Radius", "SurfaceOverlap", "fov_similarity"]

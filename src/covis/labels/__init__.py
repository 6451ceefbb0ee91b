"""Graded similarity labels from poses: two-dimensional fields of view, three-dimensional surfaces, plain radius."""

from covis.labels.fov import fov_similarity
from covis.labels.rules import FovOverlap, Radius

__all__ = ["FovOverlap", "Radius", "fov_similarity"]

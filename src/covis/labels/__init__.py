"""Graded similarity labels from poses: two-dimensional fields of view, three-dimensional surfaces, plain radius."""

from covis.labels.fov import fov_similarity
from covis.labels.rules import FovOverlap, Radius, SurfaceOverlap, TrackOverlap

__all__ = ["FovOverlap", "Radius", "SurfaceOverlap", "TrackOverlap", "fov_similarity"]

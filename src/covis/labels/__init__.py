"""Graded similarity labels: fields of view, surfaces, tracks, a plain radius, or a graph from a file."""

from covis.labels.fov import fov_similarity
from covis.labels.rules import RULES, FovOverlap, GraphFile, LabelRule, Radius, SamePlace, SurfaceOverlap, TrackOverlap

__all__ = [
    "RULES",
    "FovOverlap",
    "GraphFile",
    "LabelRule",
    "Radius",
    "SamePlace",
    "SurfaceOverlap",
    "TrackOverlap",
    "fov_similarity",
]

"""What a search is given, checked before any work."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covis.descriptors import DescriptorStore, Matrix
from covis.errors import InputError

Groups = Literal["any", "same", "other"]


def as_queries(queries: Matrix, database: Matrix, k: int) -> NDArray[np.float32]:
    """Queries as float32 (Q, D), after checking that they fit the map."""
    if isinstance(queries, DescriptorStore) and isinstance(database, DescriptorStore):
        database.require(queries.model)
    matrix = np.ascontiguousarray(queries, np.float32)
    for what, shape in (("queries", matrix.shape), ("map", database.shape)):
        if len(shape) != 2:
            raise InputError(f"descriptors of the {what} must be (rows, dimensions), not {tuple(shape)}")
    if matrix.shape[1] != database.shape[1]:
        raise InputError(f"queries have {matrix.shape[1]} dimensions, the map has {database.shape[1]}; use one model")
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    if not np.isfinite(matrix).all():
        bad = int(np.flatnonzero(~np.isfinite(matrix).all(1))[0])
        raise InputError(f"descriptor {bad} of the queries is not finite; make it again")
    return matrix


def allowed_rows(allowed: ArrayLike | None, total: int) -> NDArray[np.int64] | None:
    """Rows of the map that may be found, ascending, from a mask or a list of them; None for all."""
    if allowed is None:
        return None
    chosen = np.asarray(allowed)
    if chosen.dtype == bool:
        if chosen.shape != (total,):
            raise InputError(f"the mask of allowed images has shape {chosen.shape}, the map has {total}")
        return np.flatnonzero(chosen)
    return np.unique(chosen.astype(np.int64))


def group_codes(
    query_group: ArrayLike | None, database_group: ArrayLike | None, queries: Any, database: Any, groups: Groups
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group codes (Q,) and (N,), after checking that the rule has what it needs."""
    if groups not in ("any", "same", "other"):
        raise InputError(f"groups is {groups!r}; use any, same or other")
    if groups == "any":
        return np.zeros(len(queries), np.int64), np.zeros(0, np.int64)
    if query_group is None or database_group is None:
        raise InputError(f"groups={groups!r} needs query_group and database_group")
    codes = np.asarray(query_group, np.int64), np.asarray(database_group, np.int64)
    if codes[0].shape != (len(queries),) or codes[1].shape != (len(database),):
        raise InputError(f"group codes have shapes {codes[0].shape}, {codes[1].shape}; expected one code a descriptor")
    return codes

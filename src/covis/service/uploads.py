"""Photos as requests bring them: bodies are counted and timed as they come in, before memory is taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import python_multipart  # noqa: F401 - Starlette asks for it late
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from covis.service.limits import MEGABYTE, Limits

FIELD = "photo"
_FIELDS = 32
_FIELD_BYTES = 256 * 1024


@dataclass(frozen=True, eq=False)
class Upload:
    """A photo as it was sent."""

    name: str
    """The client's file name without folders, for answers only: nothing is opened or written by it."""
    data: bytes


@dataclass(frozen=True, eq=False)
class Form:
    """What a request held."""

    photos: tuple[Upload, ...]
    fields: dict[str, str]


async def read_form(request: Request, limits: Limits, take: Callable[[int], None]) -> Form:
    """The photos and fields of a request, each part taken from the budget; raises 400, 408, 413, 415, 422 or 503."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data" and not kind.startswith("image/"):
        raise HTTPException(415, f"send photos as multipart/form-data in fields named {FIELD!r}, or one as image/jpeg")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "send the body as it is, without Content-Encoding", {"Accept-Encoding": "identity"})
    parts = await _read_body(request, limits, take)
    if kind.startswith("image/"):
        form = Form((Upload(FIELD, b"".join(parts)),), {})
    else:
        form = await _parse(request, parts, limits)
    for photo in form.photos:
        if len(photo.data) > limits.photo_bytes:
            raise HTTPException(413, f"{photo.name}: a photo may have {limits.photo_bytes // MEGABYTE} MB")
    if not form.photos:
        raise HTTPException(422, f"the form has no photo; send at least one file in a field named {FIELD!r}")
    return form


async def _read_body(request: Request, limits: Limits, take: Callable[[int], None]) -> deque[bytes]:
    parts: deque[bytes] = deque()
    clock = asyncio.get_running_loop().time
    end, received, stream = clock() + limits.body_s, 0, request.stream()
    length = request.headers.get("content-length", "")
    declared = int(length) if length.isascii() and length.isdigit() else 0
    while max(declared, received) <= limits.request_bytes:
        try:
            async with asyncio.timeout_at(min(end, clock() + limits.idle_s)):
                part = await anext(stream, None)
        except TimeoutError:
            raise HTTPException(408, "the request came too slowly; send it again") from None
        if part is None:
            return parts
        take(len(part))
        parts.append(part)
        received += len(part)
    raise HTTPException(413, f"a request may have {limits.request_bytes // MEGABYTE} MB; send fewer photos")


async def _parse(request: Request, parts: deque[bytes], limits: Limits) -> Form:
    async def stream() -> AsyncGenerator[bytes]:
        while parts:
            yield parts.popleft()

    parser = MultiPartParser(
        request.headers, stream(), max_files=limits.photos, max_fields=_FIELDS, max_part_size=_FIELD_BYTES
    )
    parser.spool_max_size = 2 * limits.request_bytes  # beyond it Starlette would write a file
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, LookupError) as error:
        if "Too many files" in str(error):
            raise HTTPException(413, f"a request may have {limits.photos} photos; send the others in another") from None
        raise HTTPException(400, f"the form cannot be read ({str(error) or type(error).__name__})") from None
    photos: list[Upload] = []
    fields: dict[str, str] = {}
    for key, value in form.multi_items():
        if not isinstance(value, UploadFile):
            fields[key] = value
        elif key == FIELD:
            photos.append(Upload(_file_name(value.filename, len(photos)), await value.read()))
        else:
            raise HTTPException(422, f"the form has a file {key[:40]!r}; photos are fields named {FIELD!r}")
    return Form(tuple(photos), fields)


def _file_name(name: str | None, number: int) -> str:
    """A file name without folders and control characters."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in last)[:200].strip()
    kept = kept.encode("utf-8", "replace").decode()
    return kept or f"photo-{number + 1}"

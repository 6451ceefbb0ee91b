"""Multipart forms with photos, within the limits."""

from __future__ import annotations

from dataclasses import dataclass

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


class _FormParser(MultiPartParser):
    """Starlette's parser, which also notes whether the form came to its end."""

    ended = False

    def on_end(self) -> None:
        """The last boundary was read."""
        self.ended = True


async def read_form(request: Request, limits: Limits) -> Form:
    """The form of a request; raises 400, 413, 415 or 422."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise HTTPException(415, f"send photos as multipart/form-data, in fields named {FIELD!r}")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "send the form as it is, without Content-Encoding", {"Accept-Encoding": "identity"})
    parser = _FormParser(
        request.headers,
        request.stream(),
        max_files=limits.photos,
        max_fields=_FIELDS,
        max_part_size=_FIELD_BYTES,
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
    if not parser.ended:
        await form.close()
        raise HTTPException(400, "the form ends before its last boundary; send it whole")
    try:
        for key, value in form.multi_items():
            if isinstance(value, UploadFile):
                if key != FIELD:
                    raise HTTPException(422, f"the form has a file {key[:40]!r}; photos are fields named {FIELD!r}")
                photos.append(Upload(_file_name(value.filename, len(photos)), await value.read()))
            else:
                fields[key] = value
    finally:
        await form.close()
    for photo in photos:
        if len(photo.data) > limits.photo_bytes:
            raise HTTPException(413, f"{photo.name}: a photo may have {limits.photo_bytes // MEGABYTE} MB")
    if not photos:
        raise HTTPException(422, f"the form has no photo; send at least one file in a field named {FIELD!r}")
    return Form(tuple(photos), fields)


def _file_name(name: str | None, number: int) -> str:
    """A file name without folders and control characters."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    kept = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in last)[:200].strip()
    kept = kept.encode("utf-8", "replace").decode()
    return kept or f"photo-{number + 1}"

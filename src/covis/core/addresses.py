"""Addresses of services, which may carry passwords that must not be stored or printed."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

_SECRET = ("password", "passwd", "token", "secret", "key", "passfile")
_ODD = re.compile(r"((?:--[\w-]+=)?(?:postgres(?:ql)?:(?=.*[@=])|milvus:(?=[^/]*:.*@)))(?!.*://)", re.IGNORECASE)
"""The beginning of what no client takes as an address, but may hold a password."""
_AMBIGUOUS = set("/?#[]@")
"""Characters that a password has only percent-encoded."""


def without_password(address: str) -> str:
    """The address without its password and the secret options of its query, as it may be stored.

    >>> without_password("postgresql://me:p@ss/word@host:5432/db?sslmode=require&sslpassword=x")
    'postgresql://me@host:5432/db?sslmode=require'
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        odd = _ODD.match(address)
        return f"{odd[1]}…" if odd else address
    credentials, at, place = rest.rpartition("@")  # a password may hold any character, a host no @
    try:
        parts = urlsplit(f"//{place}")
    except ValueError:  # brackets that do not match
        return f"{scheme}://…"
    if "?" in credentials:  # where the password ends cannot be known
        return f"{scheme}://…"
    options = [
        (k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if not any(s in k.lower() for s in _SECRET)
    ]
    user = credentials.partition(":")[0] + at if credentials else ""
    query = f"?{urlencode(options, safe='/')}" if options else ""
    return f"{scheme}://{user}{parts.netloc}{parts.path}{query}"


def is_ambiguous(address: str) -> bool:
    """Whether the password has characters that clients take for the end of it; they would print what follows."""
    credentials = address.partition("://")[2].rpartition("@")[0]
    hidden = without_password(address).endswith("://…")
    return hidden or bool(_AMBIGUOUS & set(credentials)) or re.search(r"%(?![0-9A-Fa-f]{2})", address) is not None


def printed(address: str) -> str:
    """Host and database of an address, for messages."""
    scheme, mark, rest = without_password(address).partition("://")
    if not mark or rest.startswith("…"):
        return scheme + mark + rest
    parts = urlsplit(f"//{rest.rpartition('@')[2]}")
    return f"{scheme}://{parts.netloc}{parts.path}"

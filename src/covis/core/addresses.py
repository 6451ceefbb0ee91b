"""Addresses of services, which may carry passwords that must not be stored or printed."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

_SECRET = ("password", "token", "secret", "key", "passfile")


def without_password(address: str) -> str:
    """The address without its password and the secret options of its query, as it may be stored.

    >>> without_password("postgresql://me:p@ss/word@host:5432/db?sslmode=require&sslpassword=x")
    'postgresql://me@host:5432/db?sslmode=require'
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return address
    credentials, at, place = rest.rpartition("@")  # a password may hold any character, a host no @
    parts = urlsplit(f"//{place}")
    options = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if not any(s in k for s in _SECRET)]
    user = credentials.partition(":")[0] + at if credentials else ""
    query = f"?{urlencode(options, safe='/')}" if options else ""
    return f"{scheme}://{user}{parts.netloc}{parts.path}{query}"


def printed(address: str) -> str:
    """Host and database of an address, for messages."""
    scheme, mark, rest = without_password(address).partition("://")
    if not mark:
        return address
    parts = urlsplit(f"//{rest.rpartition('@')[2]}")
    return f"{scheme}://{parts.netloc}{parts.path}"

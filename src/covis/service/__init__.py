"""A map over HTTP: the service behind `covis serve`, and its page. Needs the extra `covis[serve]`."""

from covis.service.limits import Limits

__all__ = ["Limits"]

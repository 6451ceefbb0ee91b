"""The named protocols, each a function from a folder to a `Benchmark`, found by scanning this folder; they fill `BENCHMARKS`."""

from covis.core.registry import import_modules

import_modules(__name__, __path__)

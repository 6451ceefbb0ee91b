"""Experiments on photographs that are not public: a plugin that registers itself as any user's module would.

`import evidence` (`covis --import evidence`, from the top of the repository) adds the datasets `campus`, `cambridge`,
`racetrack` and `photo_sets`, their benchmarks, recipes and tables, and the local features `xfeat`. The scripts `bench_*.py` measure recalls and
calibration on these photographs (`python -m evidence.bench_NAME`); `results/` is what they and `covis reproduce` wrote.
"""

from evidence import campus, datasets, protocols, surveys, xfeat

__all__ = ["campus", "datasets", "protocols", "surveys", "xfeat"]

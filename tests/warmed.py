"""What the fork server of `forked` loads once for all commands: imports and compiled kernels, nothing that starts threads."""

import torch._inductor
import torch.utils.tensorboard  # noqa: F401
import victims  # noqa: F401 - networks; a process has one fork server, and what the drills kill comes from it too

import covis.cli.listing
import covis.demo  # noqa: F401
from covis.images import ImageSet
from covis.labels import FovOverlap
from covis.poses import Poses

_one = ImageSet.of(".", ["a.jpg"], Poses([[0.0, 0.0]], [0.0]))
FovOverlap()(_one, _one)

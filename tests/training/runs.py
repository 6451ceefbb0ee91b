"""What tests of training runs share: resources of a test, and the weights that a run left."""

import torch

from covis.models import PlaceModel
from covis.training.run import Resources

QUIET = Resources(workers=0, tensorboard=False, plan=False)


def weights(run, name="model"):
    return PlaceModel.load(run / name).state_dict()


def same(a, b):
    return all(torch.equal(x, b[k]) for k, x in a.items())

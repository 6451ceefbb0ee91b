"""Steps of every kind of batch on 1, 2 and 4 ranks over gloo: losses, weights and running statistics of each in a file.

python rank_steps.py FILE
"""

import os
import signal
import sys
import traceback
from dataclasses import replace

import numpy as np
import torch
from torch import distributed

from covis import losses, sampling
from covis.describing.features import Fetched
from covis.experiments.recipes import RECIPES
from covis.images import ImageSet, Split
from covis.labels import FovOverlap
from covis.models import ModelConfig, PlaceModel
from covis.poses import Poses
from covis.training.batch_images import BatchImages
from covis.training.data import TrainingData
from covis.training.descriptors import describe_images
from covis.training.ranks import Ranks
from covis.training.recipe import configure
from covis.training.step import Step

SIZE, STEPS = (32, 32), 1
KINDS = {
    "pairs": (losses.GeneralizedContrastive(), sampling.Pairs(size=9)),
    "two sets": (losses.Contrastive(), sampling.Pairs(size=8)),
    "all pairs": (losses.GeneralizedContrastive(), sampling.AllPairs(size=13)),
    "lists": (losses.ListwiseSoftmax(), sampling.AllPairs(size=16)),
    "tuples": (losses.Triplet(), sampling.Tuples(size=4, negatives=3)),
    "mined": (losses.Triplet(), sampling.Tuples(size=4, negatives=3, mined=True, refresh=2, pool=40)),
    "accumulated": (losses.MultiSimilarity(), sampling.Tuples(size=3, negatives=2)),
    "places": (losses.BatchMultiSimilarity(), sampling.Places(places=5, images=3)),
    "resnet": (losses.GeneralizedContrastive(), sampling.Pairs(size=7)),
}


def images(seed, count=120):
    rng = np.random.default_rng(seed)
    poses = Poses(rng.uniform(0, 120, (count, 2)), rng.uniform(0, 360, count))
    return ImageSet.of(".", np.arange(count).astype("S5"), poses, group=[f"place {k % 24}" for k in range(count)])


def features(model, sets, request):
    """The images of a request: each id has pixels of its own, so that neighbours differ as photos do."""
    pixels = [
        torch.from_numpy(np.random.default_rng((which, int(i))).integers(0, 255, (3, *SIZE), dtype=np.uint8))
        * (1 + which)
        // 2
        for which, ids in enumerate(request)
        for i in ids
    ]
    with torch.no_grad():
        return Fetched(request, model.prefix(model.normalise(torch.stack(pixels).to(torch.uint8))))


class Source:
    """The images of a split by request, as the loop has them described for mining."""

    precision = "float32"

    def __init__(self, model, split):
        self.model, self.split = model, split

    def fetch(self, requests):
        return (features(self.model, self.split, request) for request in requests)


def steps(kind, ranks):
    """The losses of some steps, and the model's state after them."""
    loss, batches = KINDS[kind]
    queries = images(1)
    split = Split(queries, images(2) if kind == "two sets" else queries)
    labels = FovOverlap()(*split)
    sampler = batches.sampler(labels, split, 0, loss=loss, graphs={})
    data = TrainingData(split, labels, sampler)
    backbone, part = ("resnet18", "last1") if kind == "resnet" else ("tiny", "all")
    model = PlaceModel.build(ModelConfig(backbone, "gem", SIZE, part), seed=0)
    recipe = replace(RECIPES["town_quick"](), model=model.config, loss=loss, batches=batches, validation="")
    recipe = configure(recipe, ["optimiser.name=sgd", *(["accumulate=2"] if kind == "accumulated" else [])])
    step, miner = Step(recipe, model, data, ranks, seed=0), batches.miner(sampler)
    if miner is not None:
        miner.renew(0, lambda _, ids: describe_images(model, Source(model, split), 0, ids, ranks))
    found = []
    for number in range(STEPS):
        micro = []
        for k in range(recipe.accumulate):
            batch = BatchImages.of(data.batch(number * recipe.accumulate + k, miner), data.one_set)
            share = ranks.share(len(batch))
            limits = np.cumsum([len(part) for part in batch.request])[:-1]
            own = np.split(np.concatenate(batch.request)[share], np.searchsorted(share, limits))
            micro.append((batch, features(model, split, own)))
        found.append(step(number, 0.01, micro))
    return {"loss": torch.tensor(found), **model.state_dict()}


def work(rank, world, port, file):
    """One of the ranks, in a process of its own."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    told |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True}
    os.environ |= {key: str(value) for key, value in told.items()}
    try:
        ranks = Ranks.join()
        torch.save({kind: steps(kind, ranks) for kind in KINDS}, f"{file}.{world}.{rank}")
        ranks.leave()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def together(world, file):
    """Runs `world` ranks that are forked from here, where everything is imported and compiled."""
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    children = {os.fork() or work(rank, world, store.port, file) for rank in range(world)}
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:  # the others would wait for it
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save({kind: steps(kind, Ranks()) for kind in KINDS}, f"{sys.argv[1]}.1.0")
    for world in (2, 4):
        together(world, sys.argv[1])

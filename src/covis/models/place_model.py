"""A place model: preprocessing, backbone, pooling, unit norm and fitted whitening; saved to and loaded from a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from covis.core import artifacts
from covis.core.artifacts import fingerprint
from covis.core.errors import InputError
from covis.core.plugins import require_plugins
from covis.core.progress import say
from covis.models import backbones, weights
from covis.models.adapters import LowRankAddition
from covis.models.backbone import Backbone
from covis.models.checkpoints import fill_published, find_published, keep_published
from covis.models.config import IMAGENET_MEAN, IMAGENET_STD, ORIGIN, ModelConfig, Preprocessing
from covis.models.hub_folder import fetch_from_hub, is_hub_folder, read_hub_folder, write_hub_folder
from covis.models.model_folder import read_model_folder, write_model_folder
from covis.models.parts import ModelParts
from covis.models.pooling import POOLS, PerLevel, Pool
from covis.models.published import HUB_PREFIX, published_folder
from covis.models.wrapped import Wrapped, wrapped_name
from covis.runtime import WEIGHTS_FILE

if TYPE_CHECKING:
    from covis.whitening import Whitening

_NORM_FLOOR = 1e-6


class PlaceModel(nn.Module):
    """Images (B, 3, H, W) → unit descriptors (B, dim). Cut in two where the frozen part ends: prefix, suffix.

    >>> import torch
    >>> model = PlaceModel.build(ModelConfig("tiny", image_size=(32, 32))).eval()
    >>> pixels = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)
    >>> descriptors = model(model.normalise(pixels)).detach()
    >>> tuple(descriptors.shape), round(float(descriptors[0].norm()), 3)
    ((2, 256), 1.0)
    """

    def __init__(
        self, config: ModelConfig, backbone: Backbone, pool: Pool, preprocessing: Preprocessing, card: dict[str, Any]
    ) -> None:
        super().__init__()
        self.config, self.card = config, card
        self.backbone = backbone
        self.pool = pool
        self.whitening: Whitening | None = None
        self._mean: Tensor
        self._std: Tensor
        self._centre: Tensor
        self._projection: Tensor
        for name in ("_mean", "_std", "_centre", "_projection"):  # kept in files of their own, so not persistent here
            self.register_buffer(name, None, persistent=False)
        self.set_preprocessing(preprocessing)
        self._learns_from = backbone.plan.cut(config.trainable)
        self._cut = 0 if config.batchnorm == "everywhere" else self._learns_from
        if config.levels and 0 < self._cut < len(backbone.plan.steps):
            raise InputError(
                f'trainable="{config.trainable}" with levels={config.levels}: use "none" (the pooling learns) or "all"'
            )
        self._choose_trained()

    @classmethod
    def build(cls, config: ModelConfig, seed: int = 0) -> PlaceModel:
        """A model of `config`: its weights read as `config.weights` says, all else drawn from `seed`."""
        model = cls.skeleton(config, seed)
        if config.weights is not None and Path(config.weights).expanduser().is_dir():
            model._take_weights(Path(config.weights).expanduser())
        elif config.weights is not None:
            weights.fill(model, config.weights)
        if config.adapters:
            with _drawn_from(seed):
                model.adapt(config.adapters)
        return model.eval()

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, file: str | Path | None = None, weights_file: str | Path = ""
    ) -> PlaceModel:
        """A model folder or a run's, or a model that others published (`covis list models`) from its checkpoint `file`.

        `hub:OWNER/NAME@REVISION` is a model that `publish` wrote, on a hub. Without `file`, the checkpoint is looked for in
        the cache's `weights` folder, then fetched from its authors' place; the model is kept in the cache.
        weights_file: the backbone's weights, if `file` is only a vocabulary (AnyLoc).
        """
        if str(name_or_path).startswith(HUB_PREFIX):
            return cls._from_hub(fetch_from_hub(str(name_or_path)))
        folder = Path(name_or_path).expanduser()
        if file is None and is_hub_folder(folder):
            return cls._from_hub(folder)
        if file is None and folder.is_dir():
            return cls.load(folder / "model" if (folder / "model" / artifacts.MANIFEST).is_file() else folder)
        if file is None and (folder.exists() or len(folder.parts) > 1):
            reason = "is a file" if folder.exists() else "does not exist"
            raise InputError(
                f"{folder} {reason}; give a model folder, or a published model (`covis list models`) and its checkpoint"
            )
        name = str(name_or_path)
        if file is None and (published_folder(name) / artifacts.MANIFEST).is_file():
            return cls.load(published_folder(name))
        entry, path = find_published(name, None if file is None else Path(file))
        model = fill_published(cls.skeleton(entry.config), entry, path, str(weights_file))
        if file is None:
            keep_published(model, name, path)
        return model

    @classmethod
    def _from_hub(cls, folder: Path) -> PlaceModel:
        return cls._assemble(read_hub_folder(folder), f"{folder} holds weights that do not fit its config")

    @classmethod
    def _assemble(cls, parts: ModelParts, misfit: str) -> PlaceModel:
        """The model of these parts; `misfit` says what is wrong where the weights are of another architecture."""
        model = cls.skeleton(parts.config)
        try:
            model.load_state_dict(parts.state)
        except RuntimeError as error:
            raise InputError(f"{misfit} ({' '.join(str(error).split())[:200]}); make it again") from None
        model.set_preprocessing(parts.preprocessing)
        model.card = parts.card
        return model.whiten(parts.whitening).eval()

    def _take_weights(self, path: Path) -> None:
        """The weights of the model at `path`: backbone, and pooling and whitening where the pooling is the same."""
        other = PlaceModel.load(path)
        if other.config.backbone != self.config.backbone:
            raise InputError(f"{path} holds backbone {other.config.backbone}, not {self.config.backbone}")
        self.backbone.load_state_dict(other.backbone.state_dict())
        if other.config.pool == self.config.pool:
            self.pool.load_state_dict(other.pool.state_dict())
            self.whiten(other.whitening)
        self.set_preprocessing(replace(other.preprocessing, image_size=self.config.image_size))
        self.card["weights"] = {"model": path.name, "fingerprint": other.fingerprint()}

    @classmethod
    def skeleton(cls, config: ModelConfig, seed: int = 0) -> PlaceModel:
        """A model of `config` with random weights, whatever `config.weights` says."""
        with _drawn_from(seed):
            backbone = backbones.create_backbone(
                config.backbone,
                config.image_size,
                config.stride_on,
                blocks=config.blocks,
                levels=config.levels,
                positions=config.positions,
                final_norm=config.final_norm,
                facet=config.facet,
            )
        return cls.around(backbone, config, seed)

    @classmethod
    def around(cls, backbone: Backbone, config: ModelConfig, seed: int = 0) -> PlaceModel:
        """A model of `config` around an existing backbone; its pooling is drawn from `seed`."""
        size = backbone.fit(config.image_size)
        if size != config.image_size:
            say(f"{config.backbone} takes whole patches: image size {config.image_size} becomes {size}")
            config = replace(config, image_size=size)
        with _drawn_from(seed):
            pools = [
                POOLS[config.pool](channels, lambda: _map_size(backbone, size)) for channels in backbone.level_channels
            ]
            pool = PerLevel(pools, backbone.level_channels) if config.levels else pools[0]
        mean, std = backbones.normalisation(config.backbone)
        model = cls(config, backbone, pool, Preprocessing(size, mean, std), {})
        channels_last(model)
        return model.eval()

    @classmethod
    def wrap(
        cls,
        module: nn.Module,
        image_size: tuple[int, int],
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> PlaceModel:
        """Any module that turns normalised images (B, 3, H, W) into vectors (B, dim), as a place model.

        It embeds, evaluates, makes maps and exports to ONNX like others; only a folder cannot hold it, since covis does
        not know how to build it.
        """
        if not isinstance(module, nn.Module):
            raise InputError(
                f"wrap takes a torch module, not {type(module).__name__}; call a function in a module's forward"
            )
        config = ModelConfig(wrapped_name(module), "avg", image_size, "none")
        backbone = Wrapped(module, config.image_size)
        pool = POOLS["avg"](backbone.channels, lambda: (1, 1))
        return cls(config, backbone, pool, Preprocessing(config.image_size, mean, std), {}).eval()

    @property
    def dim(self) -> int:
        """Length of a descriptor."""
        return self.pool.dim if self.whitening is None else self.whitening.dim

    def preprocess(self, image: Any) -> Tensor:
        """A photo (path, Pillow image, array, tensor, bytes or file) → (3, H, W) float, ready for the model."""
        return self.normalise(self.preprocessing.pixels(image)[None])[0]

    def normalise(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 RGB → float, as the backbone's weights expect it."""
        pixels = images.to(self._mean.device, torch.float32, memory_format=torch.channels_last)
        return (pixels / 255 - self._mean) / self._std

    def set_preprocessing(self, preprocessing: Preprocessing) -> None:
        """Replaces mean, standard deviation and size of the images."""
        self.preprocessing = preprocessing
        self._mean = torch.tensor(preprocessing.mean).view(3, 1, 1)
        self._std = torch.tensor(preprocessing.std).view(3, 1, 1)

    def forward(self, x: Any) -> Tensor:
        """(B, 3, H, W) normalised, or photos of any form that is no tensor → (B, dim), unit norm."""
        if not isinstance(x, Tensor):
            x = self.normalise(self.preprocessing.batch(x))
        return self.suffix(self.prefix(x), self.backbone.grid(x.shape[-2:]))

    @torch.no_grad()
    def prefix(self, x: Tensor) -> Tensor:
        """The frozen part, without gradient: (B, 3, H, W) → a map (B, C, h, w) or tokens (B, N, C), worth caching."""
        x = x.contiguous(memory_format=torch.channels_last)
        return self.backbone.run(x, 0, self._cut, self.backbone.grid(x.shape[-2:]))

    def suffix(self, features: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """The trained part, pooling, unit norm and whitening: the output of `prefix` → (B, dim).

        `grid` is the number of patches (rows, columns), needed for a transformer at a size other than the model's.
        """
        return self._whitened(_unit(self.pool(*self._pooling_input(features, grid))))

    def _pooling_input(self, features: Tensor, grid: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """The output of `prefix` → all that the pooling sees: map (B, C, h, w) and summary (B, C)."""
        grid = grid or self.backbone.grid(self.config.image_size)
        if features.ndim == 4:
            features = features.contiguous(memory_format=torch.channels_last)
        return self.backbone.to_map(self.backbone.run(features, self._cut, len(self.backbone.plan.steps), grid), grid)

    def _whitened(self, vectors: Tensor) -> Tensor:
        """(B, pooled) unit vectors → (B, dim), by the whitening if there is one."""
        if self.whitening is None:
            return vectors
        # A batch of one: ONNX Runtime would copy a plain matrix of 100 MB and more each time it opens an exported file.
        return _unit(torch.bmm((vectors - self._centre)[None], self._projection.float())[0])

    def local_features(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) normalised → the map (B, C, h, w) that the pooling sees."""
        return self.pooling_input(x)[0]

    def pooling_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) normalised → all that the pooling sees: map (B, C, h, w) and summary (B, C)."""
        return self._pooling_input(self.prefix(x), self.backbone.grid(x.shape[-2:]))

    @torch.no_grad()
    def initialise_pool(self, batches: Iterable[Tensor], seed: int = 0, per_image: int = 100) -> int:
        """Starts the pooling from local features of (B, 3, H, W) uint8 batches, or of their `prefix`.

        Returns the number of local features used.

        NetVLAD places its cluster centres this way, as its authors do with 50,000 features; others need no start.
        """
        rng = np.random.default_rng(seed)
        parts = []
        for images in batches:
            pixels = images.dtype == torch.uint8
            maps = self.local_features(self.normalise(images)) if pixels else self._pooling_input(images)[0]
            places = maps.flatten(2).transpose(1, 2).cpu().float().numpy()
            picked = min(per_image, places.shape[1])
            parts += [local[rng.choice(len(local), picked, replace=False)] for local in places]
        local_features = np.concatenate(parts)
        self.pool.initialise(local_features, seed)
        return len(local_features)

    def whiten(self, whitening: Whitening | None) -> PlaceModel:
        """Makes a fitted whitening part of this model (None takes it out again); returns the model."""
        if whitening is not None and len(whitening.mean) != self.pool.dim:
            raise ValueError(f"whitening of {len(whitening.mean)} dims for descriptors of {self.pool.dim}")
        self.whitening = whitening
        device = self._mean.device
        centre, projection = (None, None) if whitening is None else (whitening.mean, whitening.projection[None])
        for name, value in (("_centre", centre), ("_projection", projection)):
            half = value is not None and value.dtype == np.float16  # stays so, and is exported so
            dtype = torch.float16 if half else torch.float32
            setattr(self, name, None if value is None else torch.as_tensor(value, dtype=dtype, device=device))
        return self

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that learn: the trained blocks and the pooling."""
        return ((name, p) for name, p in self.named_parameters() if p.requires_grad)

    def train(self, mode: bool = True) -> PlaceModel:
        """As in torch, except that the frozen part stays in evaluation mode, unless its statistics are to move too."""
        super().train(False)
        self.training = mode
        self.pool.train(mode)
        if self._cut == 0:
            self.backbone.train(mode)
        for module in self.backbone.step_modules(self._cut, len(self.backbone.plan.steps)):
            module.train(mode)
        if self.config.batchnorm == "frozen" or self.config.adapters:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def _choose_trained(self) -> None:
        self.backbone.requires_grad_(self._learns_from == 0)
        for module in self.backbone.step_modules(self._learns_from, len(self.backbone.plan.steps)):
            module.requires_grad_(True)

    def adapt(self, rank: int) -> None:
        """Makes low-rank additions of `rank` to the trainable blocks' matrices learn, instead of the blocks themselves.

        They start at zero, so that the model does not change at first; a saved model has them merged into its weights.
        """
        modules = {m: None for step in self._trained_steps() for m in step.modules()}
        self.backbone.requires_grad_(False)
        for module in modules:
            if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
                parametrize.register_parametrization(module, "weight", LowRankAddition(module.weight, rank))

    def plain_state(self) -> dict[str, Tensor]:
        """The state dict, with low-rank additions merged into the weights that they belong to."""
        state = self.state_dict()
        for name, module in self.named_modules():
            if parametrize.is_parametrized(module, "weight"):
                for inner in [n for n in state if n.startswith(f"{name}.parametrizations.weight.")]:
                    del state[inner]
                state[f"{name}.weight"] = cast(Tensor, module.weight).detach()
        return state

    def _trained_steps(self) -> list[nn.Module]:
        last = len(self.backbone.plan.steps)
        return [self.backbone] if self._learns_from == 0 else self.backbone.step_modules(self._learns_from, last)

    def fingerprint(self) -> str:
        """Changes with anything that changes a descriptor: weights, architecture, preprocessing, whitening."""
        whitening = [] if self.whitening is None else [self.whitening.mean, self.whitening.projection]
        return fingerprint("model", self._architecture(), self.config.pool, *_content(self.plain_state()), *whitening)

    def learned_state(self) -> dict[str, Tensor]:
        """The state dict without the frozen part."""
        state = self.state_dict()
        return {n: t for n, t in state.items() if not (n.startswith("backbone.") and self._before_cut(n))}

    def prefix_fingerprint(self) -> str:
        """Changes with anything that changes the output of `prefix`: frozen weights, where they end, preprocessing."""
        trained = {name for name, _ in self.trained_parameters()}
        state = self.backbone.state_dict(prefix="backbone.")
        inside = [name for name in state if name not in trained and self._before_cut(name)]
        return fingerprint("prefix", self._architecture(), self._cut, *_content({n: state[n] for n in inside}))

    def _architecture(self) -> list[Any]:
        p = self.preprocessing
        c = self.config
        further: list[Any] = [c.levels] if c.levels else []  # counted only where they are used
        further += [] if (c.positions, c.final_norm) == ("library", True) else [c.positions, c.final_norm]
        further += [] if c.facet == "token" else [c.facet]
        return [c.backbone, c.stride_on, c.blocks, *further, p.image_size, p.mean, p.std]

    def _before_cut(self, name: str) -> bool:
        later = self.backbone.plan.steps[self._cut :]
        return self._cut > 0 and not any(name.startswith(f"backbone.net.{step}.") for step in later)

    def origin(self) -> dict[str, Any]:
        """Architecture, whitening, and where the weights came from."""
        known = {key: self.card[key] for key in ORIGIN if key in self.card}
        return {"config": self.config.to_dict(), "model_whitening": self._whitening_facts(), **known}

    def save(self, path: Path | str, card: Mapping[str, Any] | None = None, *, replace: bool = False) -> None:
        """Writes a model directory; `card` adds facts for its readers (data, licence, recalls)."""
        if isinstance(self.backbone, Wrapped):
            raise InputError(
                f"{self.config.backbone} is a module of your own, which no folder can hold; use export_onnx"
            )
        parts = self._parts(card or {})
        write_model_folder(Path(path), parts, parts.card["fingerprint"], replace=replace)

    @classmethod
    def load(cls, path: Path | str) -> PlaceModel:
        """Reads a model directory, checked against its manifest."""
        parts, fingerprint = read_model_folder(Path(path))
        if parts.config.pool not in POOLS:
            require_plugins(parts.card.get("plugins", ()), Path(path))
        model = cls._assemble(parts, f"{Path(path) / WEIGHTS_FILE} does not fit its config.json")
        if model.fingerprint() != fingerprint:
            raise InputError(
                f"{path} gives another fingerprint than it was saved with; make it again with this version"
            )
        return model

    def publish(self, path: Path | str, card: Mapping[str, Any] | None = None) -> None:
        """Writes the folder that a model hub takes: config, weights and card; `from_pretrained` reads it back."""
        write_hub_folder(Path(path), self._parts(card or {}))

    def _parts(self, card: Mapping[str, Any]) -> ModelParts:
        """What a folder holds of this model; the origin of its weights is on the card, additions are merged into them."""
        config = replace(self.config, weights=None, adapters=0)
        own = {
            "backbone": self.config.backbone,
            "pool": self.config.pool,
            "dim": self.dim,
            "whitening": self._whitening_facts(),
            "parameters": sum(p.numel() for p in self.parameters()),
            "fingerprint": self.fingerprint(),
        }
        return ModelParts(config, self.preprocessing, self.plain_state(), self.whitening, {**self.card, **card, **own})

    def _whitening_facts(self) -> dict[str, Any] | None:
        return None if self.whitening is None else {"dim": self.whitening.dim, **self.whitening.facts}


@contextlib.contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Random weights from `seed`, with the caller's random state left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _map_size(backbone: Backbone, image_size: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of the map of an image of this size, found by running the network."""
    with torch.inference_mode():
        features = backbone.eval()(torch.zeros(1, 3, *image_size))
        rows, columns = backbone.to_map(features, backbone.grid(image_size))[0].shape[-2:]
    return rows, columns


def channels_last(module: nn.Module) -> None:
    """Stores 4-D weights channels last, which makes convolutions on processors up to 1.6 times faster."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def _unit(vectors: Tensor) -> Tensor:
    return functional.normalize(vectors.float(), dim=-1, eps=_NORM_FLOOR)


def _content(state: Mapping[str, Tensor]) -> Iterator[str | NDArray[Any]]:
    for name in sorted(state):
        yield name
        yield state[name].detach().cpu().contiguous().numpy()

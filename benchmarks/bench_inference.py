"""Descriptors per second of one core: torch in both layouts, TorchScript, ONNX Runtime; and training speed of `tiny`.

The peer is torch in its own default layout, the way most place recognition code runs; every runtime gets the same
pixels and normalises them itself. In `ratio` the peer has the memory allocator that covis sets; `ratio without covis`
is against the same pass in a program of its own, where the C library allocates as it does by default. `of product` is
the rate of its operations relative to that of a matrix product in the same rounds; the rest, up to 1, is the most that
any runtime could gain with this arithmetic. `limit` is the ratio of a runtime that does the operations of the plain
pass at the speed of that product, and nothing else. Run: python benchmarks/bench_inference.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from _common import Apart, cpu_seconds, matrix_product, operations, report, versus

from covis.core.machine import prepare_process
from covis.models import ModelConfig, OnnxPlaceModel, PlaceModel, export_onnx

CASES = (
    ("mobilenetv2_100", "gem", (224, 224)),
    ("vit_small_patch14_reg4_dinov2", "token", (224, 224)),
    ("tiny", "gem", (96, 96)),
    ("resnet18", "gem", (240, 320)),
    ("resnet50", "gem", (240, 320)),
)
BATCH = 8
PEER = "torch, default layout"


def case(backbone: str) -> tuple[PlaceModel, torch.Tensor]:
    """A network of `CASES` and a batch of pixels, always the same."""
    pool, size = next((pool, size) for name, pool, size in CASES if name == backbone)
    pixels = torch.randint(0, 256, (BATCH, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return PlaceModel.build(ModelConfig(backbone, pool, size, "none")), pixels


def plain_pass(model: PlaceModel, pixels: torch.Tensor) -> Callable[[], torch.Tensor]:
    """One batch in torch's default layout, every block whole."""
    plain = PlaceModel.build(model.config)
    plain.load_state_dict(model.state_dict())
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()

    def describe() -> torch.Tensor:
        grid = plain.backbone.grid(pixels.shape[-2:])
        x = plain.normalise(pixels).contiguous()
        features = plain.backbone.run(x, 0, len(plain.backbone.plan.steps), grid)
        return torch.nn.functional.normalize(plain.pool(*plain.backbone.to_map(features, grid)), dim=-1)

    return describe


def plain_program(backbone: str) -> Callable[[], torch.Tensor]:
    """The plain pass for a process of its own."""
    torch.set_num_threads(1)
    return torch.inference_mode()(plain_pass(*case(backbone)))


def runtimes(model: PlaceModel, pixels: torch.Tensor, folder: Path) -> dict[str, Callable[[], torch.Tensor]]:
    """Name → one batch of descriptors."""
    traced = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(model, model.normalise(pixels))))
    export_onnx(model, folder / "model.onnx")
    onnx = OnnxPlaceModel.open(folder / "model.onnx", threads=1)

    return {
        PEER: plain_pass(model, pixels),
        "torch, channels last": lambda: model(model.normalise(pixels)),
        "TorchScript, frozen": lambda: traced(model.normalise(pixels)),
        "ONNX Runtime": lambda: onnx(onnx.normalise(pixels)),
    }


def inference(cases: tuple[tuple[str, str, tuple[int, int]], ...], repeats: int) -> list[dict[str, object]]:
    """One row per network and runtime, with the ratio to the peer."""
    rows: list[dict[str, object]] = []
    for backbone, _, size in cases:
        model, pixels = case(backbone)
        with (
            tempfile.TemporaryDirectory() as folder, torch.inference_mode(), warnings.catch_warnings(),
            Apart(plain_program, backbone) as apart,
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            ways = runtimes(model, pixels, Path(folder))
            expected = ways[PEER]()
            product = matrix_product()
            rounds = {name: versus(work, ways[PEER], repeats, apart, product) for name, work in ways.items()}
            difference = {name: float((work() - expected).abs().max()) for name, work in ways.items()}
            needed = operations(ways[PEER]) / 1e9
        for name, spent in rounds.items():
            rows.append(
                {
                    "backbone": backbone, "pixels": "×".join(map(str, size)), "runtime": name,
                    "images/s": BATCH / spent["ours_s"], **spent, "largest difference": difference[name],
                    "GFLOP/s": needed / spent["ours_s"], "of product": needed / spent["ours_product_GFLOP"],
                    "limit": spent["peer_product_GFLOP"] / needed,
                }
            )  # fmt: skip
    return rows


def learning(repeats: int) -> dict[str, float]:
    """Images per second of `tiny`, forward and backward, with all parameters trained."""
    rates = {}
    for side in (64, 96):
        model = PlaceModel.build(ModelConfig("tiny", "gem", (side, side), "all")).train()
        pixels = torch.randint(0, 256, (32, 3, side, side), dtype=torch.uint8)

        def step(model: PlaceModel = model, pixels: torch.Tensor = pixels) -> None:
            model.zero_grad(set_to_none=True)
            model(model.normalise(pixels))[:, 0].sum().backward()

        rates[f"{side} px"] = 32 / cpu_seconds(step, repeats)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two networks only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rates = learning(3)
    rows = inference(CASES[:2] if quick else CASES, 7)
    report("inference", rows, {"threads": 1, "batch": BATCH, "tiny_learning_images_per_second": rates})
    print("tiny, forward and backward:", ", ".join(f"{rate:.0f} images/s at {side}" for side, rate in rates.items()))


if __name__ == "__main__":
    prepare_process()
    main()

"""The exported file says what the model says, through the same call."""

import numpy as np
import pytest
import torch
from PIL import Image

from covis.core.errors import InputError
from covis.describing.embedding import embed
from covis.models import ModelConfig, OnnxPlaceModel, PlaceModel, export_onnx, load_fast
from covis.whitening import Whitening

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def pixels(model, count):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, *model.preprocessing.image_size), dtype=torch.uint8, generator=generator)


def agree(model, exported):
    for count in (1, 5):
        images = pixels(model, count)
        with torch.inference_mode():
            expected = model(model.normalise(images))
        got = exported(exported.normalise(images))
        assert got.shape == (count, model.dim)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "pool"),
    [("tiny", "transport16"), ("vit_tiny_patch16_224", "netvlad16"), ("vit_tiny_patch16_224", "token")],
)
def test_families_and_poolings_export(backbone, pool, tmp_path):
    model = PlaceModel.build(ModelConfig(backbone, pool, (64, 80)), seed=1).train()
    assert export_onnx(model, tmp_path / "m.onnx") < 1e-5
    assert model.training, "exporting leaves the model as it was"
    agree(model.eval(), OnnxPlaceModel.open(tmp_path / "m.onnx"))


@pytest.mark.slow
def test_the_fast_runtime_is_made_once_and_stands_in_for_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    model = PlaceModel.build(ModelConfig("tiny", "gem", (64, 80)), seed=1)
    rng = np.random.default_rng(0)
    model.whiten(Whitening.fit(rng.normal(size=(300, 256)), 32))
    model.save(tmp_path / "model")
    assert isinstance(load_fast(tmp_path / "model", images=10), PlaceModel), "ten images are not worth an export"
    fast = load_fast(tmp_path / "model")
    assert "once" in capsys.readouterr().err
    agree(model, fast)
    assert fast.dim == 32
    whitening = [
        list(weight.dims) for weight in onnx.load(fast.path).graph.initializer if weight.dims[-2:] == [256, 32]
    ]
    assert whitening == [[1, 256, 32]], "ONNX Runtime would copy a plain matrix each time it opens the file"
    assert fast.fingerprint() == model.fingerprint()
    assert fast.preprocessing == model.preprocessing
    photo = rng.integers(0, 256, (100, 100, 3), dtype=np.uint8)
    with torch.inference_mode():
        expected = model(model.preprocess(photo)[None])
    torch.testing.assert_close(fast(fast.preprocess(photo)[None]), expected, atol=1e-5, rtol=0)
    again = load_fast(tmp_path / "model", threads=1)
    assert "once" not in capsys.readouterr().err
    agree(model, again)
    embedded_alike(model, again, tmp_path / "photos", rng)


@pytest.mark.slow
def test_a_descriptor_depends_on_no_other_photo_and_on_no_number_of_threads(tmp_path):
    model = PlaceModel.build(ModelConfig("vit_tiny_patch16_224", "gem", (64, 64)), seed=1).eval()
    model.save(tmp_path / "model")
    fast = [load_fast(tmp_path / "model", threads=threads, keep=tmp_path / "kept") for threads in (1, 3)]
    assert [file.suffix for file in (tmp_path / "kept").iterdir()] == [".onnx"]
    images = pixels(model, 5)
    alone = torch.cat([fast[0](image[None]) for image in images])
    assert all(torch.equal(one(images), alone) for one in fast)
    assert fast[1](images[:0]).shape == (0, model.dim)
    agree(model, fast[1])


def test_an_export_must_be_worth_its_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    PlaceModel.build(ModelConfig("tiny", "gem", (64, 64))).save(tmp_path / "model")
    monkeypatch.setattr("covis.models.onnx.export_onnx", lambda *_: (_ for _ in ()).throw(RuntimeError("tried")))
    assert isinstance(load_fast(tmp_path / "model", 999), PlaceModel)
    assert "tried" not in capsys.readouterr().err
    assert isinstance(load_fast(tmp_path / "model", 1000), PlaceModel)
    assert "runs in torch instead: tried" in capsys.readouterr().err


def embedded_alike(model, fast, folder, rng):
    from covis.reading.sources import list_images

    folder.mkdir()
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    images = list_images(folder)
    np.testing.assert_allclose(embed(fast, images), embed(model, images), atol=1e-5)


def test_other_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        OnnxPlaceModel.open(tmp_path / "absent.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="cannot be opened by ONNX Runtime"):
        OnnxPlaceModel.open(tmp_path / "broken.onnx")
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value], [
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    ])  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(InputError, match="was not written by covis"):
        OnnxPlaceModel.open(tmp_path / "foreign.onnx")


@pytest.mark.slow
def test_evaluation_runs_in_the_fast_runtime_and_an_export_that_fails_stays_in_torch(tmp_path, monkeypatch, capsys):
    from covis.describing import describers, embedding
    from covis.images import ImageSet
    from covis.models import onnx
    from covis.poses import Poses

    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(onnx, "_WORTH_EXPORTING", 3)
    rng = np.random.default_rng(0)
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(tmp_path / name)
    images = ImageSet.of(tmp_path, ["a.jpg", "b.jpg", "c.jpg"], Poses(np.zeros((3, 2)), np.zeros(3)))
    PlaceModel.build(ModelConfig("tiny", "gem", (64, 80)), seed=1).save(tmp_path / "model")
    ran: list[object] = []
    inner = embedding.embed
    monkeypatch.setattr(embedding, "embed", lambda model, *a, **k: ran.append(model) or inner(model, *a, **k))
    with monkeypatch.context() as strict:
        strict.setattr(onnx, "PARITY_TOLERANCE", -1.0)
        kept, _ = describers.open_describer(tmp_path / "model", cache=tmp_path / "one").describe(images)
    assert "runs in torch instead" in capsys.readouterr().err
    fast, _ = describers.open_describer(tmp_path / "model", cache=tmp_path / "two").describe(images)
    assert [type(model) for model in ran] == [PlaceModel, OnnxPlaceModel]
    np.testing.assert_allclose(fast, kept, atol=1e-4)


@pytest.mark.parametrize("broken", [False, True], ids=["sound", "wrong"])
def test_another_device_is_used_where_it_describes_a_picture_as_the_cpu_does(broken, tmp_path, monkeypatch, capsys):
    """With a stand-in for a GPU: ONNX Runtime on the CPU, whose answers may be wrong."""
    import onnxruntime

    from covis.core import machine

    real, asked = onnxruntime.InferenceSession, []

    class StandIn:
        def __init__(self, source, options, providers):
            asked.append(providers)
            self.session, self.device = real(source, options, providers=providers[-1:]), providers[0]

        def get_providers(self):
            return [self.device[0]]

        def run(self, *given):
            [rows] = self.session.run(*given)
            return [np.roll(rows, 1, axis=1) if broken and self.device != "CPUExecutionProvider" else rows]

        def __getattr__(self, name):
            return getattr(self.session, name)

    monkeypatch.setattr(onnxruntime, "InferenceSession", StandIn)
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    model = PlaceModel.build(ModelConfig("tiny", "gem", (32, 32)), seed=1)
    monkeypatch.setattr(machine, "_chosen_device", "cpu")
    export_onnx(model, tmp_path / "m.onnx")
    for chosen, wanted in (
        (None, ("CUDAExecutionProvider", {})),
        ("cuda:1", ("CUDAExecutionProvider", {"device_id": "1"})),
    ):
        monkeypatch.setattr(machine, "_chosen_device", chosen)
        agree(model.eval(), OnnxPlaceModel.open(tmp_path / "m.onnx"))
        assert asked[-1][0] == wanted
        said = "runs on the CPU: CUDAExecutionProvider" if broken else "had no such device to try"
        assert said in capsys.readouterr().err
    monkeypatch.setattr(machine, "_chosen_device", "coreml")
    with pytest.raises(InputError, match="--device coreml needs a build of ONNX Runtime with CoreMLExecutionProvider"):
        OnnxPlaceModel.open(tmp_path / "m.onnx")

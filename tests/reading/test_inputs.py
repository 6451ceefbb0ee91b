"""Photos as people have them: what they become, and what is refused."""

import io

import numpy as np
import pytest
from PIL import Image

import covis
from covis.core.errors import InputError
from covis.models import ModelConfig, PlaceModel
from covis.reading.inputs import expand_photos

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 36, 3), np.uint8)


@pytest.fixture
def file(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def forms(file):
    import torch

    deep = PIXELS.astype(np.uint16) * 257
    return {
        "path": file, "text": str(file), "folder": file.parent, "pattern": str(file.parent / "*.png"),
        "image": Image.open(file), "bytes": file.read_bytes(), "file": file.open("rb"), "stream": io.BytesIO(file.read_bytes()),
        "array": PIXELS, "channels first": PIXELS.transpose(2, 0, 1), "deep": deep, "floats": PIXELS / 255, "batch": PIXELS[None],
        "alpha": np.dstack([PIXELS, PIXELS[..., :1]]), "tensor": torch.from_numpy(PIXELS).permute(2, 0, 1), "list": [[PIXELS]],
        "learned": torch.from_numpy(PIXELS / 255).permute(2, 0, 1)[None].requires_grad_(),
    }  # fmt: skip


def test_every_form_gives_the_same_pixels_and_descriptors(file):
    model = PlaceModel.build(ModelConfig("tiny", image_size=(32, 32)))
    expected = covis.embed(model, file)
    for name, given in forms(file).items():
        [photo] = photos = expand_photos(given)
        assert np.array_equal(photo.pixels(), PIXELS), name
        assert photo.path.name in ("a.png", "photo-1"), name
        assert np.array_equal(covis.embed(model, photos), expected), name
    assert np.allclose(model([file, PIXELS]).detach(), expected, atol=1e-6)
    assert np.allclose(model(model.preprocess(PIXELS)[None]).detach(), expected, atol=1e-6)


def test_grey_is_every_colour():
    [photo] = expand_photos(PIXELS[..., 0])
    assert np.array_equal(photo.pixels(), np.dstack([PIXELS[..., 0]] * 3))


def test_rotated_pillow_images_are_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        by_image, by_path = expand_photos([image, tmp_path / "turned.png"])
        assert np.array_equal(by_image.pixels(), by_path.pixels())
    assert by_path.pixels().shape == (36, 24, 3)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ("gone.jpg", InputError, "does not exist"),
        ("-", InputError, "no photo"),
        (3, TypeError, "not int"),
        (io.StringIO("text"), TypeError, "binary"),
        (np.zeros((5, 5, 7), np.uint8), ValueError, "not"),
        (np.full((5, 5, 3), 200.0), ValueError, "floats from 0 to 1"),
        (np.full((5, 5, 3), np.nan), ValueError, "floats from 0 to 1"),
        (np.zeros((5, 5, 3), np.int64), ValueError, "8 or 16 bits"),
    ],
)
def test_what_is_no_photo_is_refused(given, error, told):
    with pytest.raises(error, match=told):
        expand_photos([given])

"""Entry points for `torch.hub.load("OWNER/covis", "place_model", NAME_OR_PATH)`."""

import sys
from pathlib import Path

dependencies = ["torch", "timm", "safetensors", "numpy", "scipy"]
sys.path.insert(0, str(Path(__file__).parent / "src"))


def place_model(name_or_path, file=None):
    """A place model: a model folder, `hub:OWNER/NAME@REVISION`, or a published name with its checkpoint `file`."""
    from covis.models import PlaceModel

    return PlaceModel.from_pretrained(name_or_path, file)

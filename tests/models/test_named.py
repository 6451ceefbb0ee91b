"""Models by name, through a server on this machine that stands in for the hosts of their authors."""

import dataclasses
import hashlib
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from torch import nn

from covis.core.errors import InputError
from covis.describing.named import named_model
from covis.models import PlaceModel, backbones, pins
from covis.models.downloads import download
from covis.models.published import PUBLISHED
from layouts import builders

NAME = "cosplace_resnet18_32"
ADDRESS = PUBLISHED[NAME].address


class StandIn(BaseHTTPRequestHandler):
    """Serves `files` (host and path → content) with ranges; may stop half-way, or refuse as a proxy does."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    requests: list[str] = []  # noqa: RUF012
    breaks_at: int | None = None
    refuses = False
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self):
        self.send_error(403)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        content = self.files.get(self.path)
        if self.refuses or content is None:
            self.send_error(403 if self.refuses else 404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("Range") or "bytes=0-")[1])
        digest = hashlib.sha256(content).hexdigest()
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{digest}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command == "HEAD":
            return
        stop, type(self).breaks_at = self.breaks_at, None
        self.wfile.write(content[start:stop])
        self.close_connection = stop is not None

    def log_message(self, *_):
        pass


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """The stand-in, and an empty cache."""
    handler = type("Hosts", (StandIn,), {"files": {}, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COVIS_CACHE", str(tmp_path / "cache"))
    handler.base = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("COVIS_MIRROR", handler.base)
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Random weights as CosPlace's authors name them."""
    backbones.import_timm()
    import timm

    torch.manual_seed(0)
    net = timm.create_model("resnet18", num_classes=0)
    layers = list(net.children())[:8]
    state = {f"backbone.{i}.{k}": v for i, layer in enumerate(layers) for k, v in layer.state_dict().items()}
    state["aggregation.1.p"] = torch.tensor([2.5])
    state |= {f"aggregation.3.{k}": v for k, v in nn.Linear(512, 32).state_dict().items()}
    path = tmp_path_factory.mktemp("authors") / "ResNet18_32_cosplace.pth"
    torch.save(state, path)
    return path


@pytest.fixture
def cosplace(hosts, checkpoint, monkeypatch):
    """CosPlace's smallest network on the stand-in, for small images."""
    hosts.files[ADDRESS.removeprefix("https:/")] = checkpoint.read_bytes()
    entry = PUBLISHED[NAME]
    small = dataclasses.replace(entry, config=dataclasses.replace(entry.config, image_size=(64, 64)))
    monkeypatch.setitem(PUBLISHED._entries, NAME, small)
    return hosts


@pytest.fixture(scope="module")
def lane(tmp_path_factory):
    return builders.lane(tmp_path_factory.mktemp("lane"), photos=12)


def test_every_verb_takes_a_name_which_is_fetched_once_and_kept(cosplace, lane, tmp_path, covis):
    code, stored, err = covis("embed", NAME, lane / "lane.csv", "-o", tmp_path / "store", "--json")
    assert code == 0, err
    assert stored["dim"] == 32
    assert err.count("licence: MIT") == err.count(ADDRESS) - 1 == 1
    digest = hashlib.sha256(cosplace.files[ADDRESS.removeprefix("https:/")]).hexdigest()
    assert f"SHA-256 {digest}, which later downloads must match" in err
    if all(map(__import__, ("onnx", "onnxscript"))):
        [kept] = (tmp_path / "cache" / "onnx").iterdir()
        assert kept.stem == stored["model"]
    fetched = len(cosplace.requests)
    for command in (
        ["index", lane / "lane.csv", "-o", tmp_path / "town.map", "--model", NAME],
        ["evaluate", NAME, "table", "--data", lane / "lane.csv", "-o", tmp_path / "evaluation"],
        ["pairs", lane / "lane.csv", "--model", NAME, "-o", tmp_path / "pairs.txt"],
        ["train", "town_quick", "--init", NAME, "--dry-run"],
    ):
        code, _, err = covis(*command, "--json")
        assert code == 0, err
        assert "licence:" not in err
    model = PlaceModel.from_pretrained(NAME)
    assert (model.fingerprint(), model.card["licence"], model.card["weights"]["sha256"]) == (
        stored["model"],
        "MIT",
        digest,
    )
    assert len(cosplace.requests) == fetched
    assert not list((tmp_path / "cache" / "downloads").iterdir())  # the model folder holds the same weights


def test_a_fetched_model_runs_without_torch(cosplace, lane, tmp_path):
    pytest.importorskip("onnxscript")
    named_model(NAME)
    blocked = (
        "import sys\nfor n in ('torch', 'timm'): sys.modules[n] = None\nfrom covis.cli import main\nmain(sys.argv[1:])"
    )
    command = ["embed", NAME, str(lane / "lane.csv"), "-o", str(tmp_path / "store")]
    done = subprocess.run([sys.executable, "-c", blocked, *command], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def test_a_broken_download_resumes(cosplace, tmp_path, capsys):
    content = cosplace.files[ADDRESS.removeprefix("https:/")]
    cosplace.breaks_at = 3 << 20
    with pytest.raises(OSError, match="broke off at 3145728 of"):
        download(ADDRESS, tmp_path / "file.pth", "MIT")
    assert not (tmp_path / "file.pth").exists()
    assert download(ADDRESS, tmp_path / "file.pth", "MIT").read_bytes() == content
    assert cosplace.requests[-1].endswith("bytes=3145728-")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["file.pth"]
    cosplace.breaks_at = 1 << 20
    with pytest.raises(OSError, match="broke off"):
        download(ADDRESS, tmp_path / "other.pth", "MIT")
    cosplace.files[ADDRESS.removeprefix("https:/")] = b"another file"  # never joined to the first part of the old one
    assert download(ADDRESS, tmp_path / "other.pth", "MIT").read_bytes() == b"another file"


def test_another_file_than_the_pinned_one_is_refused(cosplace, monkeypatch):
    with pytest.raises(InputError, match="expected 0000"):
        named_model(f"{NAME}:{'0' * 64}")
    monkeypatch.setitem(pins.PINS, ADDRESS, "1" * 64)
    with pytest.raises(InputError, match="expected 1111"):
        named_model(NAME)
    with pytest.raises(InputError, match="'latest' is no SHA-256"):
        named_model(f"{NAME}:latest")


def test_blocked_networks_get_the_address_and_the_way_out(cosplace, checkpoint, lane, tmp_path, covis, monkeypatch):
    command = ["embed", NAME, lane / "lane.csv", "-o", tmp_path / "store"]

    def refused(reason):
        code, _, err = covis(*command, "--json")
        [line] = [line for line in err.splitlines() if line.startswith("covis: error")]
        assert (code, reason in line) == (2, True), line
        assert f"download {ADDRESS} elsewhere and give it by --weights FILE" in line

    cosplace.refuses = True
    refused("the answer is 403 Forbidden")
    monkeypatch.delenv("COVIS_MIRROR")
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, cosplace.base)
    refused("Tunnel connection failed: 403 Forbidden")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused("offline mode")
    code, facts, err = covis(*command, "--weights", checkpoint, "--json")
    assert code == 0, err
    assert facts["dim"] == 32


def test_a_proxy_that_refuses_the_model_hub_is_bad_input(hosts, monkeypatch, capsys, tmp_path, lane):
    """In a process of its own: the hub's client reads its settings when it is imported."""
    monkeypatch.setenv("HTTPS_PROXY", hosts.base)
    monkeypatch.setenv("https_proxy", hosts.base)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    command = [sys.executable, "-m", "covis", "embed", "megaloc", str(lane / "lane.csv"), "-o", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2, done.stderr
    assert "403" in done.stderr.splitlines()[-1]
    assert "https://huggingface.co/gberton/MegaLoc/resolve/main/model.safetensors" in done.stderr.splitlines()[-1]


def test_the_model_hub_is_reached_at_its_endpoint(hosts, monkeypatch, tmp_path):
    hosts.files["/gberton/MegaLoc/resolve/main/model.safetensors"] = b"weights"
    monkeypatch.setenv("HF_ENDPOINT", hosts.base)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    program = "from covis.models.hub import fetch; print(fetch('gberton/MegaLoc', 'model.safetensors', '', 'MIT').read_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "b'weights'", done.stderr
    assert hashlib.sha256(b"weights").hexdigest() in done.stderr
    assert "licence: MIT" in done.stderr


def test_a_file_is_not_taken_unseen_over_an_open_connection(hosts):
    with pytest.raises(InputError, match=r"not be encrypted: say gem_resnet50_2048:SHA256.*http://cmp\.felk"):
        named_model("gem_resnet50_2048")
    assert not hosts.requests


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_model_says_where_its_file_is(name, hosts):
    """Nothing is there: the error names the address, or in words the place, and the option that takes the file."""
    entry = PUBLISHED[name]
    if entry.hub is not None:
        return
    with pytest.raises(InputError) as caught:
        named_model(name)
    assert (entry.address or entry.source) in str(caught.value)
    assert "--weights FILE" in str(caught.value)


def test_weights_go_with_a_name(lane, tmp_path, checkpoint, covis):
    for command in (
        ["embed", lane, lane / "lane.csv", "-o", tmp_path / "x"],
        ["pairs", lane / "lane.csv", "-o", tmp_path / "x"],
        ["train", "town_quick", "-o", tmp_path / "x"],
        ["evaluate", NAME, "salad", "table", "--data", lane / "lane.csv"],
    ):
        code, _, err = covis(*command, "--weights", checkpoint, "--json")
        assert code == 2
        assert "--weights is" in err

"""Bad images, tables, tracks, labels, weights and arguments: refused in one line with exit 2, or left out; never exit 1."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from mutations import mutate
from outcomes import Outcome, asked
from PIL import Image

Case = tuple[str, Callable[[], str]]
DAMAGE = ("bit", "digit", "block", "zeros", "swap", "cut", "longer", "empty")


def run(count: int, seed: int, work: Path) -> dict[str, dict[str, int]]:
    """About `count` bad inputs, each kind its share; outcomes by kind."""
    return _run(
        {images: 0.5, tables: 0.2, tracks: 0.08, labels: 0.1, weights: 0.04, arguments: 0.08}, count, seed, work
    )


def run_sources(count: int, seed: int, work: Path) -> dict[str, dict[str, int]]:
    """`count` damaged sources of posed images, layers, clouds, videos and bags."""
    from sources import sources

    return _run({sources: 1.0}, count, seed, work)


def _run(shares: dict[Callable, float], count: int, seed: int, work: Path) -> dict[str, dict[str, int]]:
    results = {}
    for make, share in shares.items():
        folder = work / make.__name__
        folder.mkdir(parents=True)
        found: Counter[str] = Counter()
        cases = make(folder, np.random.default_rng((seed, len(make.__name__))))
        for _ in range(max(1, round(count * share))):
            name, call = next(cases)
            outcome = asked(call)
            found["taken" if outcome.kind == "same" else outcome.kind] += 1
            if outcome.kind in Outcome.BAD:
                print(f"{outcome.kind}: {make.__name__} {name}: {outcome.line}")
        results[make.__name__] = dict(sorted(found.items()))
    return results


def _pick(rng: np.random.Generator, values):
    return values[int(rng.integers(0, len(values)))]


def _damage(content: bytes, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.integers(1, 4))):
        content = mutate(content, _pick(rng, DAMAGE), rng)
    return content


def images(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Damaged files of every common format."""
    from covis.reading.decoding import Reject, _available_formats, decode
    from covis.reading.exif import read_photo
    from covis.reading.screening import look

    pixels = Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8))
    whole = []
    for kind in (kind for kind in _available_formats() if kind != "MPO"):
        target = io.BytesIO()
        pixels.save(target, kind)
        whole.append((kind, target.getvalue()))
    exif = Image.Exif()
    exif[0x0112], exif[0x8825] = 6, {1: "N", 2: (55.0, 42.0, 1.5), 3: "E", 4: (13.0, 11.0, 2.0), 17: 90.0}
    target = io.BytesIO()
    pixels.save(target, "JPEG", exif=exif)
    whole += [("JPEG with GPS", target.getvalue())] * 4
    while True:
        kind, content = _pick(rng, whole)
        path = folder / "photo.jpg"
        path.write_bytes(_damage(content, rng))

        def call(path: Path = path) -> str:
            for attempt in (lambda: decode(path, (32, 32)), lambda: look(path), lambda: read_photo(path)):
                with contextlib.suppress(Reject):
                    attempt()
            return ""

        yield kind, call


_ODD = ["", "nan", "inf", "-inf", "1e400", "0", "-1", "90.0001", "361", "x", "ä", "1,2", "'", '"', "\\", "NULL", "0x10",
        "١", "1_000", " 5 ", "\t", "\x00", "true", "[]", "{}", "9" * 400, "-0", "\ud800", "2024-13-45T00:00:00Z"]  # fmt: skip


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def tables(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """CSV and Parquet tables with odd cells, odd columns, odd kinds and damage."""
    from covis.reading.table import read_table

    makers = [_csv_table, _parquet_table]
    while True:
        make = _pick(rng, makers)
        path = make(folder, rng)
        if rng.random() < 0.4:
            path.write_bytes(_damage(path.read_bytes(), rng))
        yield make.__name__, lambda path=path: str(len(read_table(path)))


def _csv_table(folder: Path, rng: np.random.Generator) -> Path:
    head = _pick(
        rng, ["image,lat,lon,heading", "image,easting,northing,group", "image,lat,lon,altitude,extra", "lat,lon"]
    )
    width = head.count(",") + 1
    rows = [["a.jpg", *[f"{rng.uniform(10, 11):.5f}" for _ in range(width - 1)]] for _ in range(4)]
    for _ in range(int(rng.integers(0, 4))):
        row = _pick(rng, rows)
        row[int(rng.integers(0, len(row)))] = _pick(rng, _ODD)
    if rng.random() < 0.2:
        _pick(rng, rows).append("more")
    path = folder / "table.csv"
    path.write_bytes(b"\n".join(_bytes(",".join(row)) for row in [[head], *rows]))
    return path


def _parquet_table(folder: Path, rng: np.random.Generator) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    odd = [
        pa.array([[1], [2]]), pa.array([{"a": 1}, {"a": 2}]), pa.array([b"\xff", b"\xfe"]), pa.array([None, None]),
        pa.array([1, 2], pa.decimal128(9, 2)), pa.array([1, 2], pa.timestamp("us")), pa.array(["x", "y"]),
        pa.array([1, 2], pa.uint8()), pa.array([True, False]), pa.array([1.5, float("nan")], pa.float16()),
        pa.array(["x", "x"]).dictionary_encode(), pa.array([1, 2], pa.duration("s")), pa.array([{"a": [1]}, None]),
    ]  # fmt: skip
    columns = {"image": pa.array(["a.jpg", "b.jpg"]), "lat": pa.array([1.0, 2.0]), "lon": pa.array([1.0, 2.0])}
    columns[_pick(rng, ["image", "lat", "lon", "heading", "group", "extra", "altitude"])] = _pick(rng, odd)
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def tracks(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """GPX and CSV tracks."""
    from covis.reading.tracks import names_images, read_track

    while True:
        kind = _pick(rng, ["gpx", "csv"])
        path = folder / f"track.{kind}"
        if kind == "gpx":
            encoding = _pick(rng, ["UTF-8", "UTF-8", "utf-99", "UTF-16", "latin-1"])
            cells = [_pick(rng, _ODD) if rng.random() < 0.2 else "13.1" for _ in range(4)]
            stamp = _pick(rng, ["2024-01-01T00:00:00Z", "2024-01-01", "x", "", "99999999999999999999"])
            points = f'<trkpt lat="{cells[0]}" lon="{cells[1]}"><ele>{cells[2]}</ele><time>{stamp}</time></trkpt>'
            text = f'<?xml version="1.0" encoding="{encoding}"?><gpx><trk><trkseg>{points}{points}</trkseg></trk></gpx>'
            path.write_bytes(_bytes(text))
        else:
            rows = [",".join(_pick(rng, _ODD) if rng.random() < 0.2 else "1.5" for _ in range(3)) for _ in range(3)]
            path.write_bytes(_bytes("time,lat,lon\n" + "\n".join(rows)))
        if rng.random() < 0.4:
            path.write_bytes(_damage(path.read_bytes(), rng))
        yield kind, lambda path=path: f"{names_images(path)} {len(read_track(path).time_s)}"


def labels(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Label files: edges (CSV, Parquet), hloc's pairs, released HDF5, MATLAB lists."""
    import h5py
    import scipy.io

    from covis.datasets.dbstruct import read_struct
    from covis.images import ImageSet
    from covis.labels.exchange import read_edges, read_hloc
    from covis.labels.released import read_released
    from covis.poses import Poses

    names = [f"{i}.jpg" for i in range(6)]
    set_ = ImageSet.of(folder, names, Poses(rng.uniform(0, 9, (6, 2)), np.zeros(6)))
    while True:
        kind = _pick(rng, ["csv", "parquet", "hloc", "h5", "h5", "mat", "mat"])
        path = folder / f"labels.{kind}"
        if kind in ("csv", "hloc"):
            cells = [[_pick(rng, names), _pick(rng, names), f"{rng.random():.3f}"] for _ in range(5)]
            for _ in range(int(rng.integers(0, 3))):
                _pick(rng, cells)[int(rng.integers(0, 3))] = _pick(rng, _ODD)
            rows = (
                [",".join(c) for c in cells]
                if kind == "csv"
                else [" ".join(c[: int(rng.integers(1, 4))]) for c in cells]
            )
            path.write_bytes(_bytes("\n".join((["query,database,similarity"] if kind == "csv" else []) + rows)))
            call = (
                (lambda path=path: str(read_edges(path, set_, set_).pairs))
                if kind == "csv"
                else (lambda path=path: str(read_hloc(path, set_, set_).pairs))
            )
        elif kind == "parquet":
            _parquet_edges(path, rng, names)
            call = lambda path=path: str(read_edges(path, set_, set_).pairs)  # noqa: E731
        elif kind == "h5":
            path.unlink(missing_ok=True)
            with h5py.File(path, "w") as file:
                _odd_h5(file, rng)
            call = lambda path=path: str(read_released(path, set_, set_).pairs)  # noqa: E731
        else:
            scipy.io.savemat(path, {"dbStruct": _odd_mat(rng)})
            call = lambda path=path: str(read_struct(path))  # noqa: E731
        if rng.random() < 0.4:
            path.write_bytes(_damage(path.read_bytes(), rng))
        yield kind, call


def _parquet_edges(path: Path, rng: np.random.Generator, names: list[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    odd = [pa.array([[1], [2]]), pa.array([b"\xff", b"\xfe"]), pa.array([None, None]), pa.array(["x", "y"]), pa.array([True, False]),
           pa.array([1, 2]), pa.array([{"a": 1}, {"a": 2}]), pa.array([float("nan"), 2.0])]  # fmt: skip
    columns = {"query": pa.array(names[:2]), "database": pa.array(names[2:4]), "similarity": pa.array([0.5, 1.0])}
    columns[_pick(rng, [*columns, "extra"])] = _pick(rng, odd)
    pq.write_table(pa.table(columns), path)


def _odd_h5(file, rng: np.random.Generator) -> None:
    import h5py

    kind = int(rng.integers(0, 12))
    if kind == 0:
        file["fov"] = "text"
    elif kind == 1:
        file.create_group("fov")
    elif kind == 2:
        file["fov"] = 3.0
    elif kind == 3:
        file["fov"] = np.zeros((2, 3, 4))
    elif kind == 4:
        file.create_dataset("fov", data=h5py.Empty("f"))
    elif kind == 5:
        file["fov"] = h5py.SoftLink("/nowhere")
    elif kind == 6:
        file.create_dataset("fov", shape=(10**7, 10**7), chunks=(64, 64), dtype="f4")
    elif kind == 7:
        file["fov"] = np.array([b"a", b"b"])
    elif kind == 8:
        file.create_dataset("fov", (3,), dtype=h5py.ref_dtype)
    elif kind == 9:
        file["fov"] = np.zeros((6, 6), "complex64")
    elif kind == 10:
        file["fov"] = h5py.ExternalLink("other.h5", "/x")
    else:
        file["fov"] = rng.uniform(-0.2, 1.2, (6, 6))


def _odd_mat(rng: np.random.Generator):
    fields = {"whichSet": "test", "dbImageFns": np.array([["a.jpg"], ["b.jpg"]], object), "utmDb": np.zeros((2, 2)),
              "qImageFns": np.array([["q.jpg"]], object), "utmQ": np.zeros((2, 1)), "numImages": 2, "numQueries": 1,
              "posDistThr": 25.0, "posDistSqThr": 625.0, "nonTrivPosDistSqThr": 100.0}  # fmt: skip
    odd = [
        "text",
        np.zeros((0, 0)),
        np.zeros((3, 5)),
        np.array([[1 + 2j]]),
        np.array(["x", 3], object),
        {"a": 1},
        np.nan,
    ]
    for _ in range(int(rng.integers(0, 3))):
        key = _pick(rng, list(fields))
        if rng.random() < 0.3:
            fields.pop(key)
        else:
            fields[key] = _pick(rng, odd)
    return fields


def weights(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Weight files that are damaged, poisoned, of odd types or not finite."""
    import torch
    from safetensors.torch import save_file

    from covis import cli

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "maps"))
    from simulated import tiny

    state = {f"backbone.{k}": v.clone() for k, v in tiny().backbone.state_dict().items()}
    number = 0
    while True:
        number += 1
        suffix = _pick(rng, [".pth", ".safetensors"])
        path = folder / f"weights{suffix}"
        odd = dict(state)
        kind = _pick(rng, ["whole", "nan", "integer keys", "sparse", "list", "text", "shape", "int8", "pickle"])
        first = next(iter(odd))
        if kind == "nan":
            odd[first] = torch.full_like(odd[first], float("nan"))
        elif kind == "shape":
            odd[first] = odd[first][:1].clone()
        elif kind == "int8":
            odd[first] = odd[first].to(torch.int8)
        if suffix == ".safetensors":
            save_file({k: v.contiguous() for k, v in odd.items()}, path)
        else:
            content = {"integer keys": {1: torch.zeros(2)}, "sparse": {first: torch.eye(3).to_sparse()}, "list": [1, 2],
                       "text": "x", "pickle": {"a": Path("x")}}.get(kind, odd)  # fmt: skip
            torch.save(content, path)
        if rng.random() < 0.4:
            path.write_bytes(_damage(path.read_bytes(), rng))
        out = folder / f"model-{number}"
        arguments = ["model", "import", str(path), "--backbone", "tiny", "-o", str(out)]
        yield f"{suffix} {kind}", lambda arguments=arguments: str(cli.main(arguments))


_VALUES = [
    "null",
    "None",
    "-1",
    "0",
    "nan",
    "inf",
    "1e999",
    "x",
    "''",
    "[]",
    "{}",
    "true",
    "[1,2]",
    '{"a":1}',
    "9" * 30,
    "\x00",
    "../..",
    "é",
]
_FIELDS = ["epochs", "loss.margin", "loss", "model.image_size", "model.backbone", "model.pool", "model.trainable", "batches",
           "batches.size", "optimiser.name", "optimiser.learning_rate", "optimiser.schedule", "optimiser.warmup", "optimiser",
           "precision", "validations", "cache_gb", "labels", "dataset", "nothing", "optimiser.nothing", ""]  # fmt: skip


_FRAMES = [
    "EPSG:1",
    "EPSG:4326",
    "x",
    "91,0",
    "nan,nan",
    "0,0",
    "+proj=tmerc",
    "EPSG:",
    "+proj=merc +units=us-ft",
    "9" * 40,
]


def arguments(folder: Path, rng: np.random.Generator) -> Iterator[Case]:
    """Arguments that make no sense."""
    from covis import cli

    table = folder / "t.csv"
    table.write_text("image,easting,northing,heading\na.jpg,0,0,0\nb.jpg,5,5,90\n")
    loop = folder / "loop"
    loop.symlink_to(loop)
    paths = [
        str(folder / "absent"),
        str(loop / "x"),
        "n" * 300,
        "",
        "/dev/null",
        str(folder),
        str(table),
        "\x00",
        "/proc/self/mem",
    ]
    verbs = [
        lambda: ["train", _pick(rng, ["town_quick", "town_quick", "nothing"]), "--dry-run", "-o", str(folder / "run"), "--set",
                 f"{_pick(rng, _FIELDS)}={_pick(rng, _VALUES)}"],
        lambda: ["locate", _pick(rng, paths), _pick(rng, paths)],
        lambda: ["label", "--queries", _pick(rng, paths), "--radius-m", _pick(rng, _VALUES), "-o", _pick(rng, paths)],
        lambda: ["label", "export", _pick(rng, paths), "--format", _pick(rng, ["csv", "h5", "x"]), "-o", _pick(rng, paths)],
        lambda: ["embed", _pick(rng, paths), _pick(rng, paths), "-o", _pick(rng, paths)],
        lambda: ["index", _pick(rng, paths), "-o", _pick(rng, paths), "--model", _pick(rng, paths)],
        lambda: ["model", "show", _pick(rng, paths)],
        lambda: ["map", _pick(rng, ["check", "repair"]), _pick(rng, paths)],
        lambda: ["search", "query", _pick(rng, paths), _pick(rng, paths), "-k", _pick(rng, _VALUES)],
        lambda: ["data", "import", _pick(rng, paths), "-o", _pick(rng, paths)],
        lambda: ["report", _pick(rng, paths), "-o", _pick(rng, paths)],
        lambda: ["compare", _pick(rng, paths), _pick(rng, paths)],
        lambda: ["evaluate", _pick(rng, paths), _pick(rng, ["campus", "x", ""]), "--data", _pick(rng, paths)],
        lambda: ["evaluate", _pick(rng, paths), "table", "--data", str(table), "--frame", _pick(rng, _FRAMES)],
        lambda: ["label", "--queries", str(table), "--frame", _pick(rng, _FRAMES), "--radius-m", _pick(rng, _VALUES), "-o", _pick(rng, paths)],
        lambda: ["reproduce", _pick(rng, ["table1", "table5", "figure_tsne", "x"]), "--data", f"{_pick(rng, ['msls', 'x', ''])}={_pick(rng, paths)}",
                 "--rows", _pick(rng, _VALUES), "-o", _pick(rng, paths)],
        lambda: ["reproduce", "table1", "--scores", _pick(rng, paths), "--data", f"msls={_pick(rng, paths)}", "-o", _pick(rng, paths)],
        lambda: ["train", "town_quick", "--init", _pick(rng, paths), "--dry-run", "-o", _pick(rng, paths)],
        lambda: ["train", _pick(rng, paths), "--dry-run", "-o", _pick(rng, paths)],
        lambda: ["compare", _pick(rng, paths), "-o", _pick(rng, paths)],
        lambda: ["pairs", _pick(rng, paths), "-o", _pick(rng, paths)],
        lambda: ["export", _pick(rng, paths), "--onnx", _pick(rng, paths)],
        lambda: ["map", _pick(rng, ["import", "export"]), _pick(rng, paths), "-o", _pick(rng, paths)],
        lambda: ["export", _pick(rng, paths), "--hub", _pick(rng, paths)],
        lambda: ["keys", _pick(rng, paths), _pick(rng, ["--add", "--remove"]), _pick(rng, _VALUES)],
        lambda: ["add", _pick(rng, paths), _pick(rng, paths)],
        lambda: ["remove", _pick(rng, paths), _pick(rng, _VALUES)],
        lambda: ["data", "check", _pick(rng, ["msls", "7scenes", "tb_places", "x"]), _pick(rng, paths)],
        lambda: ["index", str(table), "-o", _pick(rng, paths), "--engine", _pick(rng, ["milvus:", "postgresql://", "x", "", "milvus:/dev/null"])],
        lambda: [_pick(rng, ["", "x", "--", "-", "--nothing", "trian"])],
    ]  # fmt: skip
    while True:
        chosen = _pick(rng, verbs)()
        yield " ".join(a[:40] for a in chosen), lambda chosen=chosen: str(cli.main(chosen))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), Path(place)), indent=1))

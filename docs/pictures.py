"""Takes the screenshots of the pages: `make pictures`, or `python docs/pictures.py [WORK]` (minutes; needs Chromium).

Everything on them comes from covis itself: photos of the simulated town with GPS in EXIF, a model trained on other
streets of it, a map, answers, the service and a report, all made by the commands of the tutorials. WORK keeps the
results of these, so that another call only takes new pictures. Run it after a change that readers would see.
"""

from __future__ import annotations

import contextlib
import html
import io
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from covis.town import TownConfig, load

IMAGES = Path(__file__).parent / "images"
WALKS = ("summer-noon", "autumn-evening", "dusk-rain")
NEW = "winter-haze"
LARGEST = 100_000
TOWN = TownConfig(width=320, height=240, samples=2, query_spacing_m=8.0)


def photos(work: Path) -> None:
    """`photos/WALK/IMG_….jpg` and `new/IMG_….jpg`: the town's test streets as a phone would write them."""
    if (work / "new").is_dir():
        return
    queries, database = load(work / "town", "test", TOWN)
    for images in (database, queries):
        for i, (x, y) in enumerate(images.poses.xy):
            walk = images.path(i).parent.name
            if walk == NEW and i % 12:
                continue
            folder = work / ("new-draft" if walk == NEW else f"photos/{walk}")
            folder.mkdir(parents=True, exist_ok=True)
            north, east = 55.7 + y / 111_320, 13.19 + x / (111_320 * np.cos(np.radians(55.7)))
            with Image.open(images.path(i)) as image:
                exif = image.getexif()
                if walk != NEW:
                    place = {1: "N", 2: (north, 0.0, 0.0), 3: "E", 4: (east, 0.0, 0.0)}
                    exif.get_ifd(0x8825).update(place | {16: "T", 17: float(images.poses.heading[i])})
                image.save(folder / f"IMG_{images.path(i).stem[1:]}.jpg", exif=exif, quality=92)
    (work / "new-draft").rename(work / "new")


def run(command: str, work: Path) -> str:
    """What a person sees of a command: results, and logs without progress bars."""
    words = [sys.executable, "-m", "covis", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}")
    lines = [line for line in done.stdout.splitlines() if " left  " not in line and "already embedded" not in line]
    return "\n".join(lines)


def made(work: Path) -> dict[str, str]:
    """Makes everything that is shown; gives what each command printed, by command."""
    photos(work)
    steps = {
        "covis train town_cl -o runs/cl": "runs/cl/model",
        "covis train town_gcl -o runs/gcl": "runs/gcl/model",
        "covis evaluate runs/cl town -o runs/cl/evals/town": "runs/cl/evals/town",
        "covis evaluate runs/gcl town -o runs/gcl/evals/town": "runs/gcl/evals/town",
        "covis report runs/cl runs/gcl -o report.html": "report.html",
        "covis report runs/cl runs/gcl -o recall.png --figure recall --width 3.25": "recall.png",
        "covis index photos/ -o town.map --model runs/gcl": "town.map",
    }
    for command, result in steps.items():
        if not (work / result).exists():
            print(command, flush=True)
            run(command, work)
    shown = (
        "covis map show town.map -o map.html",
        "covis locate town.map new/ -o found.html",
        "covis locate town.map new/{} -k 3",
        "covis compare runs/cl runs/gcl",
    )
    best = surest(run("covis locate town.map new/ --json", work))
    return {command.format(best): run(command.format(best), work) for command in shown}


def surest(answers: str) -> str:
    """The photo whose answer is the most probable."""
    import json

    located = json.loads(answers[answers.index("[") : answers.rindex("]") + 1])
    return Path(max(located, key=lambda a: a["matches"][0]["probability"] or 0.0)["photo"]).name


TERMINAL = """<!doctype html><meta charset="utf-8"><style>
:root {{ color-scheme: light dark; --ink: #1f2328; --ground: #f6f8fa; --edge: #d0d7de; --faint: #59636e }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --ground: #0d1117; --edge: #3d444d; --faint: #9198a1 }} }}
body {{ margin: 0; background: var(--ground) }}
pre {{ display: inline-block; margin: 0; padding: 14px 18px; font: 13px/1.5 "DejaVu Sans Mono", monospace; color: var(--ink);
  white-space: pre; border: 1px solid var(--edge) }}
b {{ font-weight: 600 }} i {{ font-style: normal; color: var(--faint) }}
</style><pre>{}</pre>"""


def terminal(page: Any, commands: dict[str, str]) -> Any:
    """Commands and what they print, as a terminal shows them; gives the element to be pictured."""
    parts = []
    for command, text in commands.items():
        lines = [f"<i>{html.escape(x)}</i>" if x.startswith("next:") else html.escape(x) for x in text.splitlines()]
        parts.append("\n".join([f"<i>$</i> <b>{html.escape(command)}</b>", *lines]))
    page.set_content(TERMINAL.format("\n\n".join(parts)))
    return page.locator("pre")


@contextlib.contextmanager
def served(work: Path) -> Iterator[str]:
    """The service over the map, on a free port of loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "covis", "serve", "town.map", "--port", str(port)]
    server = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/readyz", timeout=5).close()
                break
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def keep(picture: bytes, name: str) -> None:
    """Writes a screenshot as WebP, at the highest quality that stays small."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for quality in (86, 80, 74, 68, 60, 50):
        image.save(IMAGES / f"{name}.webp", quality=quality, method=6)
        if (IMAGES / f"{name}.webp").stat().st_size < LARGEST:
            break
    print(f"{name}.webp: {image.width} × {image.height}, {(IMAGES / f'{name}.webp').stat().st_size / 1e3:.0f} kB")


def pictures(work: Path, texts: dict[str, str]) -> None:
    """Every screenshot, in light and in dark."""
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    locate = next(command for command in texts if "-k 3" in command)
    asked = shlex.split(locate)[3]
    keep((work / "recall.png").read_bytes(), "figure-recall")
    with served(work) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1000, "height": 520}, device_scale_factor=1.4, color_scheme=scheme
            )
            page = context.new_page()
            page.goto((work / "found.html").as_uri())
            page.locator("#list button").filter(has_text=Path(asked).name).click()
            page.wait_for_timeout(800)
            keep(page.screenshot(), f"answer-{scheme}")
            page.goto((work / "map.html").as_uri())
            page.locator("#list button").nth(40).click()
            page.wait_for_timeout(800)
            keep(page.screenshot(), f"map-{scheme}")
            page.set_viewport_size({"width": 1000, "height": 860})
            page.goto(address)
            page.wait_for_function("window.covisPage")
            page.set_input_files("#files", [str(work / asked)])
            page.locator(".leaflet-marker-icon.pin").wait_for()
            page.wait_for_timeout(1500)
            keep(page.screenshot(), f"service-{scheme}")
            page.set_viewport_size({"width": 1100, "height": 640})
            page.goto((work / "report.html").as_uri())
            page.wait_for_timeout(500)
            keep(page.locator("section#recall").screenshot(), f"report-{scheme}")
            keep(page.locator("section#training").screenshot(), f"report-training-{scheme}")
            page.locator("section#map").scroll_into_view_if_needed()
            page.locator("#query-map").focus()
            for _ in range(9):
                page.keyboard.press("ArrowRight")
            page.evaluate("document.querySelector('section#map').scrollIntoView()")
            page.set_viewport_size({"width": 1100, "height": 560})
            page.wait_for_timeout(300)
            keep(page.screenshot(), f"report-map-{scheme}")
            page.set_viewport_size({"width": 1300, "height": 700})
            keep(terminal(page, {locate: texts[locate]}).screenshot(), f"terminal-locate-{scheme}")
            compare = "covis compare runs/cl runs/gcl"
            keep(terminal(page, {compare: texts[compare]}).screenshot(), f"terminal-compare-{scheme}")
            context.close()
        browser.close()


def main() -> None:
    """Makes what is missing in the working folder, then the pictures."""
    work = Path(sys.argv[1] if len(sys.argv) > 1 else "pictures-work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    pictures(work, made(work))


if __name__ == "__main__":
    main()

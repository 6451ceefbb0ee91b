"""covis talks to nobody unless asked: what commands look up, connect to and leave behind, seen from below Python."""

import json
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from covis.cli import verbs
from covis.cli.app import find_verbs
from covis.models.backbones import create_backbone

SPY = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
static void note(const char *what, const char *name) {
    FILE *file = fopen(getenv("SPY_LOG"), "a");
    if (file) { fprintf(file, "%s %s\n", what, name ? name : "?"); fclose(file); }
}
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res) {
    note("lookup", node);
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, res);
}
int connect(int fd, const struct sockaddr *address, socklen_t length) {
    char name[64] = "?";
    if (address->sa_family == AF_INET) inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, name, 64);
    if (address->sa_family == AF_INET6) inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, name, 64);
    if (address->sa_family == AF_INET || address->sa_family == AF_INET6) note("connect", name);
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    return real(fd, address, length);
}
"""


@pytest.fixture(scope="module")
def spied(tmp_path_factory):
    """A function that runs `covis` in a fresh home, and gives what it looked up, connected to, and wrote there."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux to record connections")
    folder = tmp_path_factory.mktemp("spied")
    (folder / "spy.c").write_text(SPY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "spy.so", folder / "spy.c", "-ldl"], check=True)
    home, log = folder / "home", folder / "log"
    home.mkdir()
    quiet = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name and name != "DO_NOT_TRACK"}
    environment = {**quiet, "HOME": str(home), "SPY_LOG": str(log), "LD_PRELOAD": str(folder / "spy.so")}
    environment |= {"COVIS_CACHE": str(folder / "cache"), "XDG_CACHE_HOME": str(home / ".cache")}

    def run(*words, expected=0):
        log.write_text("")
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == expected, done.stderr
        return log.read_text().split("\n")[:-1]

    run.folder, run.home = folder, home
    return run


def test_the_spy_hears(spied):
    code = "import socket\ntry: socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError: pass"
    assert spied("-c", code) == ["lookup 127.0.0.1", "connect 127.0.0.1"]


SCRIPT = """
import json, os, signal, sys, threading, time
from pathlib import Path
from covis.cli import main

def interrupt_when_answered(port):
    import http.client
    body = b'--x\\r\\nContent-Disposition: form-data; name="photo"; filename="a.jpg"\\r\\n\\r\\n'
    body += Path("photos/2.jpg").read_bytes() + b"\\r\\n--x--\\r\\n"
    for _ in range(1000):
        try:
            asked = http.client.HTTPConnection("127.0.0.1", port)
            asked.request("POST", "/v1/locate", body, {"Content-Type": "multipart/form-data; boundary=x"})
            assert asked.getresponse().status == 200
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

for words in json.loads(sys.argv[1]):
    with open(os.environ["SPY_LOG"], "a") as log:
        print("==", *words, file=log)
    if words[0] == "serve":
        threading.Thread(target=interrupt_when_answered, args=[int(words[-1])]).start()
    try:
        main(words)
    except SystemExit as end:
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert end.code == (130 if words[0] == "serve" else 0), (words, end.code)
"""
COMMANDS = """
sample trial
data import photos -o imported.csv
data check town TOWN
model import tiny.safetensors --backbone tiny --set image_size=32,32 -o model
export model --onnx model.onnx
index set.csv -o town.map --model model
index set.csv -o engine.map --model model --engine milvus:engine.db --runtime torch
add town.map more.csv
remove town.map photos/7.jpg
locate town.map photos/2.jpg -o answers.geojson
locate engine.map photos/2.jpg
geotag photos --model model -o review.html
map show town.map
map check town.map
map repair town.map
map export town.map town.covis
map import town.covis -o again.map
pairs town.map -o pairs.txt
data coverage town.map
label --queries set.csv -o labels
label export labels --format csv -o labels.csv
embed model set.csv -o set.store
evaluate model table --data set.csv -o eval
evaluate model table --data set.csv -o second
verify
compare eval second
report eval second --data set.csv -o report.html
train town_gcl --data town=TOWN -o run TINY
sweep town_gcl --benchmark town --seeds 1 --data town=TOWN -o sweep TINY
reproduce town_table1 --rows GCL --seeds 1 --data town=TOWN -o tables TINY
demo --data TOWN -o demo TINY
keys keys.json --add phone
serve town.map --port PORT
list models
doctor
cache
"""
TINY = "--workers 0 --set model.image_size=[32,32] --set batches.size=4 --set steps=2 --set validations=1"


def small_photos(folder):
    """Eight photos with GPS, tables of seven and of the other, and a network of random weights."""
    (folder / "photos").mkdir()
    for i in range(8):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        exif = Image.Exif()
        exif[0x8825] = {1: "N", 2: (55.0, 42.0, 0.18 * i), 3: "E", 4: (13.0, 11.0, 24.0)}
        Image.fromarray(small).resize((80, 60)).save(folder / "photos" / f"{i}.jpg", exif=exif)
    rows = [f"photos/{i}.jpg,{55.7 + 0.00005 * i},13.19,90,walk {i % 2}\n" for i in range(8)]
    (folder / "set.csv").write_text("image,lat,lon,heading,group\n" + "".join(rows[:7]))
    (folder / "more.csv").write_text("image,lat,lon,heading,group\n" + rows[7])
    save_file(create_backbone("tiny", (32, 32)).net.state_dict(), folder / "tiny.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_verb_talks_to_anybody(spied, hamlet):
    pytest.importorskip("onnxscript")
    pytest.importorskip("milvus_lite")
    small_photos(spied.folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listed = COMMANDS.replace("TOWN", str(hamlet)).replace("TINY", TINY).replace("PORT", str(port))
    commands = [line.split() for line in listed.strip().splitlines()]
    find_verbs()
    assert {verb for words in commands for verb in (words[0], " ".join(words[:2])) if verb in verbs.VERBS} == set(
        verbs.VERBS
    )
    told = spied("-c", SCRIPT, json.dumps(commands))
    assert [line for line in told if line.startswith("==")] == ["== " + " ".join(words) for words in commands]
    heard = {line for line in told if not line.startswith("==")}
    # Milvus Lite talks to its own server, and the question to `serve` is this test's
    assert heard <= {
        f"{how} {host}" for how in ("connect", "lookup") for host in ("127.0.0.1", "::ffff:127.0.0.1", "::1")
    }
    assert not (spied.home / ".cache" / "Microsoft").exists()

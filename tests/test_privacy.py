"""covis talks to nobody unless asked: what commands look up, connect to and leave behind, seen from below Python."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from covis.models import ModelConfig, PlaceModel

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
import json, os, signal, sys
from covis.cli import main
for words in json.loads(sys.argv[1]):
    with open(os.environ["SPY_LOG"], "a") as log:
        print("==", *words, file=log)
    try:
        main(words)
    except SystemExit as end:
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not end.code, (words, end.code)
"""
VERBS = """
index set.csv -o town.map --model model
index set.csv -o engine.map --model model --engine milvus:engine.db --runtime torch
add town.map more.csv
remove town.map photos/7.jpg
locate town.map photos/2.jpg -o answers.geojson
locate engine.map photos/2.jpg
map show town.map
map check town.map
map repair town.map
map export town.map town.covis
map import town.covis -o again.map
pairs town.map -o pairs.txt
data import photos -o imported.csv
data coverage town.map
embed model set.csv -o set.store
evaluate model table --data set.csv -o eval
evaluate model table --data set.csv -o second
compare eval second
doctor
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_verbs_that_use_photos_talk_to_nobody(spied):
    pytest.importorskip("onnxscript")
    pytest.importorskip("milvus_lite")
    folder = spied.folder
    (folder / "photos").mkdir()
    for i in range(8):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        exif = Image.Exif()
        exif[0x8825] = {1: "N", 2: (55.0, 42.0, 0.18 * i), 3: "E", 4: (13.0, 11.0, 24.0)}
        Image.fromarray(small).resize((80, 60)).save(folder / "photos" / f"{i}.jpg", exif=exif)
    rows = [f"photos/{i}.jpg,{55.7 + 0.00005 * i},13.19,90,walk {i % 2}\n" for i in range(8)]
    (folder / "set.csv").write_text("image,lat,lon,heading,group\n" + "".join(rows[:7]))
    (folder / "more.csv").write_text("image,lat,lon,heading,group\n" + rows[7])
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 32)), seed=1).save(folder / "model")
    commands = [line.split() for line in VERBS.strip().splitlines()]
    told = spied("-c", SCRIPT, json.dumps(commands))
    assert [line for line in told if line.startswith("==")] == ["== " + " ".join(words) for words in commands]
    heard = {line for line in told if not line.startswith("==")}
    loopback = {"connect 127.0.0.1", "connect ::ffff:127.0.0.1", "connect ::1"}  # Milvus Lite, to its own server
    assert heard <= loopback
    assert not (spied.home / ".cache" / "Microsoft").exists()

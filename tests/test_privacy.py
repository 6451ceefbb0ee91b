"""covis talks to nobody unless asked: what commands look up, connect to and leave behind, seen from below Python."""

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
#include <dlfcn.h>
#include <netdb.h>
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
    if (address->sa_family == AF_INET || address->sa_family == AF_INET6) note("connect", "inet");
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
    assert spied("-c", code) == ["lookup 127.0.0.1", "connect inet"]


def test_commands_talk_to_nobody(spied):
    pytest.importorskip("onnxruntime")
    folder = spied.folder
    for i in range(6):
        small = np.random.default_rng(i).integers(0, 256, (4, 5, 3), np.uint8)
        (folder / "photos").mkdir(exist_ok=True)
        Image.fromarray(small).resize((80, 60)).save(folder / "photos" / f"{i}.jpg")
    rows = "".join(f"photos/{i}.jpg,{55.7 + 0.0002 * i},13.19\n" for i in range(6))
    (folder / "set.csv").write_text(f"image,lat,lon\n{rows}")
    PlaceModel.build(ModelConfig("tiny", "gem", (32, 32)), seed=1).save(folder / "model")
    for words in (
        ("index", "set.csv", "-o", "town.map", "--model", "model"),
        ("locate", "town.map", "photos/2.jpg"),
        ("doctor",),
    ):
        assert spied("-m", "covis", *words) == [], words
    assert not (spied.home / ".cache" / "Microsoft").exists()

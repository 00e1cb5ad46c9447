"""The page in a real browser, headless: what a visitor can do, and what must not happen meanwhile."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from veca import create_model

pytest.importorskip("gradio", reason="the page extra is not installed", exc_type=ImportError)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

PATIENCE = 120_000  # milliseconds
SERVE = "import sys; from veca.page import page; page(sys.argv[1], port=int(sys.argv[2]))"


class Server(NamedTuple):
    address: str
    temporary: Path
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, temporary = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("tmp")
    torch.manual_seed(0)
    create_model("tiny", width=32, depth=2, num_heads=2).save_pretrained(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(port)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("http://127.0.0.1"):
            break
    assert process.poll() is None, "".join(lines)
    yield Server(f"http://127.0.0.1:{port}", temporary, process)
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def visitor(server: Server) -> Iterator[tuple[Any, list[str]]]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1500, "height": 1000})
        tab.set_default_timeout(PATIENCE)
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(server.address)
        tab.wait_for_selector("#paths-B img")
        yield tab, asked
        browser.close()


def source(tab: Any, name: str) -> str:
    found: str = tab.locator(f"#{name} img").first.get_attribute("src")
    return found


def wait_for_another(tab: Any, name: str, before: str) -> None:
    tab.wait_for_function(
        "([name, before]) => { const image = document.querySelector(`#${name} img`);"
        " return image && image.getAttribute('src') !== before; }",
        arg=[name, before],
    )


def test_a_visit(server: Server, visitor: tuple[Any, list[str]], tmp_path: Path) -> None:
    tab, asked = visitor

    # An upload changes what the model sees.
    seen = source(tab, "seen")
    pixels = np.random.default_rng(0).integers(0, 255, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((360, 270)).save(tmp_path / "my-photo.png")
    tab.set_input_files("#upload input[type=file]", tmp_path / "my-photo.png")
    wait_for_another(tab, "seen", seen)

    # The budget changes the picture and the cost.
    assert "with 8 cores" in tab.inner_text("#cost-A")
    colours = source(tab, "dense-A")
    tab.fill("#budget-A input[type=number]", "32")
    tab.press("#budget-A input[type=number]", "Enter")
    wait_for_another(tab, "dense-A", colours)
    tab.wait_for_function("document.querySelector('#cost-A').innerText.includes('with 32 cores')")
    assert "17,408" in tab.inner_text("#cost-A")  # 2·256·32 + 32²
    assert "65,536" in tab.inner_text("#cost-A")

    # A click chooses a patch, and in the sheet a core.
    for touched, changed in (("dense-A", "similarity-A"), ("cores-B", "paths-B")):
        before = source(tab, changed)
        tab.locator(f"#{touched} img").first.click(position={"x": 30, "y": 40})
        wait_for_another(tab, changed, before)

    # A broken file gives a message, and the rest stays.
    seen = source(tab, "seen")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 this is <b>no</b> image")
    tab.set_input_files("#upload input[type=file]", tmp_path / "broken.jpg")
    tab.wait_for_selector("#message .error")
    message = tab.inner_text("#message")
    assert "broken.jpg cannot be used" in message
    assert "Traceback" not in message
    assert source(tab, "seen").split("/")[-1] == seen.split("/")[-1]
    assert tab.locator(".toast-wrap .error").count() == 0

    # Nobody else was asked, and what was uploaded is gone.
    assert [url for url in asked if not url.startswith((server.address, "data:", "blob:"))] == []
    assert not list(server.temporary.rglob("my-photo*"))
    assert not list(server.temporary.rglob("broken*"))


def test_the_end_leaves_nothing_behind(server: Server, visitor: tuple[Any, list[str]]) -> None:
    assert any(server.temporary.iterdir())
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=30) == 0
    assert not any(server.temporary.iterdir())

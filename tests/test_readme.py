"""What the README says to type exists and works."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image

from veca import create_model
from veca.checkpoint import SIZE_KEY
from veca.cli.main import VERBS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = "\n".join(blocks("sh")).splitlines() + re.findall(r"`((?:veca|make) [^`]+)`", README)
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@pytest.mark.filterwarnings("ignore")
def test_the_python_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (300, 280), "teal").save("photo.jpg")
    tiny = create_model("tiny")
    checkpoint = tmp_path / "runs" / "multires_small" / "checkpoints" / "best.ckpt"
    checkpoint.parent.mkdir(parents=True)
    state = {f"student.{name}": tensor for name, tensor in tiny.state_dict().items()}
    torch.save({"state_dict": state, SIZE_KEY: tiny.size.as_dict()}, checkpoint)
    (block,) = blocks("python")
    names: dict[str, object] = {}
    exec(block, names)
    features = names["features"]
    assert features.patches.shape == (1, 256, 192)  # type: ignore[attr-defined]
    assert features.cores.shape == (1, 32, 192)  # type: ignore[attr-defined]
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def test_every_command_of_the_readme_exists() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    checked = 0
    for program, *words in commands():
        if program == "make":
            assert words[0] in targets, words
        elif program == "veca":
            assert words[0] in VERBS or " ".join(words[:2]) in VERBS, words
        checked += 1
    assert checked >= 10


def test_every_file_of_the_readme_exists() -> None:
    named = re.findall(r"(?:recipes|docs)/[\w/]+\.\w+", README)
    assert len(named) >= 5
    assert all((ROOT / name).exists() for name in named), named


def test_every_test_that_a_promise_names_exists_and_every_page_is_on_the_site() -> None:
    promises = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"tests/[\w/]+\.py", promises))
    assert len(named) >= 10
    assert all((ROOT / name).is_file() for name in named), named
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(page.name in site for page in (ROOT / "docs").glob("*.md"))

"""What is published works where there is no checkout: the sdist builds the wheel, and the wheel runs."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import veca

ROOT = Path(__file__).parents[1]
SOURCES = ("veca", "data_prep", "recipes", "tests")
KEPT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"

pytestmark = pytest.mark.packaging


def run(*words: str | Path, cwd: Path) -> str:
    """The command's output; it sees neither the checkout nor the pytest that started it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, made from a copy: a build leaves files in the folder it runs in."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("sdist")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=KEPT_OUT)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    run(sys.executable, "-c", BUILD_SDIST, out, cwd=copy)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(out, filter="data")
    return out / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    out = sdist.parent / "wheel"
    run(*pip, "wheel", sdist, "--no-deps", "--no-build-isolation", "--wheel-dir", out, cwd=sdist.parent)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def programs(wheel: Path) -> Path:
    """The programs of an environment with the wheel in it, and beside it what the tests have installed."""
    folder = wheel.parent / "env"
    venv.create(folder, with_pip=False)
    site = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet")
    run(sys.executable, "-m", "pip", "--python", folder, "install", *options, wheel, cwd=folder)
    (site / "tests.pth").write_text(sysconfig.get_path("purelib"))  # without its .pth files: no checkout
    return folder / "bin"


def shipped(folder: str) -> set[Path]:
    paths = (ROOT / folder).rglob("*")
    return {path.relative_to(ROOT / folder) for path in paths if path.is_file() and path.suffix != ".pyc"}


def test_the_wheel_holds_all_files_of_both_packages_and_the_recipes(sdist: Path, wheel: Path) -> None:
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    recipes = {"veca/recipes" / path for path in shipped("recipes")}
    assert names == recipes | {"veca" / path for path in shipped("veca")} | shipped("data_prep")
    assert {Path("veca/py.typed"), Path("veca_data/py.typed")} < names
    assert {path.name for path in (ROOT / "recipes").glob("*")} == {
        path.name for path in (sdist / "recipes").glob("*")
    }
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py"):
        assert (sdist / name).is_file(), name


def test_the_metadata_can_be_published(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        fields = archive.read(name).decode().split("\n\n", 1)[0].splitlines()
    assert not [
        line for line in fields if line.startswith("Requires-Dist:") and "@" in line
    ]  # PyPI refuses URLs
    assert {"License-Expression: Apache-2.0", f"Version: {veca.__version__}"} < set(fields)
    assert f"\nversion: {veca.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_wheel_works_in_an_empty_folder(programs: Path, tmp_path: Path) -> None:
    where = run(programs / "python", "-c", "import veca; print(veca.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(programs.parent)
    assert "usage: veca VERB" in run(programs / "veca", "--help", cwd=tmp_path)
    assert "shards" in run(programs / "veca-data", "--help", cwd=tmp_path)
    config = run(programs / "veca", "fit", "--config", "cached_pretrain_base", "--print_config", cwd=tmp_path)
    assert "targets:\n    path: data/objects365" in config
    assert "default_root_dir: runs/cached_pretrain_base" in config
    assert not list(tmp_path.iterdir())

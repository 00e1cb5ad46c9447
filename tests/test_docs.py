"""What README and docs/ say to type: every command is read by its real parser, and the small ones run.

Commands are the lines of code blocks, and the code inside sentences, that start with a program of ours.
Models, data and sizes are replaced by tiny ones before a command runs; its verb and options stay the page's.
"""

import re
import shlex
import shutil
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from jsonargparse import Namespace
from PIL import Image

import veca
import veca_data.cli
from veca.checkpoint import SIZE_KEY
from veca.cli import fit
from veca.cli.args import VerbParser
from veca.cli.main import FORMER, GROUPS, RUNS, VERBS, main

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md")
}
PAGES |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
PROGRAMS = ("veca", "veca-data", "make", "sbatch", "pip", ".ci/slurm")
BATCH_VERBS = {"fit.sbatch": "fit", "cache.sbatch": "data cache", "shards.sbatch": "data shards"}
TINY_RECIPE = "pretrain_small"  # in place of the reader's own recipes


class Command(NamedTuple):
    page: str
    words: tuple[str, ...]
    in_block: bool  # a whole command, not a mention in a sentence

    def __str__(self) -> str:
        return " ".join(self.words)


def find_commands() -> list[Command]:
    """Every command of the pages, each once for a page."""
    found = []
    for page, text in PAGES.items():
        lines = [(" ".join(code.split()), False) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
        for language, block in FENCE.findall(text):
            if language in ("", "sh"):
                lines += [(line, True) for line in block.replace("\\\n", " ").splitlines()]
        for line, in_block in lines:
            if line.split()[:1] and line.split()[0] in PROGRAMS:
                found.append(Command(page, tuple(shlex.split(line, comments=in_block)), in_block))
    return list(dict.fromkeys(found))


COMMANDS = find_commands()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}: {command}")
def test_every_command_is_understood(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = command.words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert all(word in targets for word in words if "=" not in word)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"^\.\[(.*)\]$", words[-1])
        assert all(extra in extras for extra in ",".join(named).split(",") if extra)
    elif program == "sbatch":
        script = next((word for word in words if word.endswith(".sbatch")), None)
        if script is not None:
            assert (ROOT / script).is_file()
            verb = BATCH_VERBS[Path(script).name].split()
            parse([*verb, *words[words.index(script) + 1 :]], monkeypatch)
    elif program == ".ci/slurm":
        assert (ROOT / program).is_file()
    else:
        words = ["data", *words] if program == "veca-data" else words
        if command.in_block or any(word.startswith("--") for word in words):
            parse(words, monkeypatch)
        else:
            check_verb(words)


def check_verb(words: list[str]) -> None:
    """A sentence that only names a verb, as `veca probe` or `veca probe KIND`: it must exist."""
    named = [word for word in words[:2] if word.islower()]
    if named[:1] == ["data"]:
        assert all(verb in veca_data.cli._VERBS for verb in named[1:]), words
    else:
        name = " ".join(named[: 2 if named and named[0] in GROUPS else 1])
        assert name in ("", *VERBS, *GROUPS, *FORMER), words


def parse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a command line to the parser that reads it when it is typed; what it refuses fails the test."""
    if any(word in ("--help", "--help-keys", "-h") for word in words):
        return
    if words[0] == "data":
        veca_data.cli._parser("veca data")[0].parse_args(words[1:])
    elif words[0] in RUNS:
        monkeypatch.setattr(fit, "VecaCLI", OnlyParses)
        own = [TINY_RECIPE if word.endswith(".yaml") else word for word in words if word != "--print_config"]
        with pytest.raises(Parsed):
            fit.main(own)
    else:
        count = 2 if words[0] in GROUPS else 1
        verb_parser(" ".join(words[:count])).parse(words[count:])


@cache
def verb_parser(name: str) -> VerbParser:
    verb = VERBS[name]
    module, _, function = verb.target.partition(":")
    return VerbParser(
        getattr(import_module(module), function),
        name=f"veca {name}",
        example="",
        inputs=verb.inputs,
        defaults=verb.defaults,
    )


class Parsed(Exception):
    """The command line was good."""


class OnlyParses(fit.VecaCLI):
    """Stops where the run would begin. What only the reader's data and devices can tell is not asked."""

    def parse_arguments(self, parser: Any, args: Any) -> None:
        super().parse_arguments(parser, args)
        raise Parsed

    def _value_problems(self, config: Namespace) -> list[str]:
        found = super()._value_problems(config)
        return [
            problem for problem in found if not problem.startswith(("data", "trainer.num_nodes", "ckpt_path"))
        ]


# Words of the pages → what lies in the folder where the commands run.
STAND_INS = {
    "nano": "my-model",
    "M": "my-model",
    "M,teacher:EfficientNetTeacher": "my-model,random:tiny",
    "M,dinov3-b16": "my-model,random:tiny",
    "/data/images": "sample/images",
    "D": "sample/images",
    "DATA/images/val": "sample/images/val",
    "DATA/semantic/val": "sample/semantic/val",
    "DIR": "analysis",
}
TINY_OPTIONS = {
    "probe knn": "--resolutions 32 --seeds 1 --classes common --out run/knn.json",
    "figures contributions": "--resolution 48 --method pca",
    "figures cores": "--resolution 48",
    "figures similarity": "--resolution 48",
    "figures dense": "--resolutions 32,48 --method pca",
    "figures paths": "--resolution 48",
    "figures cost": "--size tiny --budgets 8 --repeats 1 --resolutions 32 --batch_sizes 1 "
    "--batch_resolution 16",
    "figures analysis": "--resolutions 32,48 --num_images 2 --num_views 1",
    "features": "--resolution 48",
    "figures elastic": "",
    "convert": "",
    "export": "--model shallow",
}
RUN_PAGES = ("README.md", "docs/index.md", "docs/use.md", "docs/figures.md", "docs/probes.md")


def verb_of(command: Command) -> str:
    words = command.words[1:]
    return " ".join(words[: 2 if words and words[0] in GROUPS else 1])


RUNNABLE = {
    command.words: command
    for command in COMMANDS
    if command.page in RUN_PAGES and command.in_block and verb_of(command) in TINY_OPTIONS
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, its checkpoint, a few photos, generated data and a probe's result."""
    folder: Path = tmp_path_factory.mktemp("world")
    torch.manual_seed(0)
    student = veca.create_model("tiny", width=16, num_heads=1, out_width=24).eval()
    student.save_pretrained(folder / "my-model")
    veca.create_model("tiny", width=16, num_heads=1, depth=1).save_pretrained(folder / "shallow")
    state = {f"student.{name}": tensor for name, tensor in student.state_dict().items()}
    for name in ("multires_small/checkpoints/best", "cpu_tiny/checkpoints/best", "quick/checkpoints/last"):
        path = folder / "runs" / f"{name}.ckpt"
        path.parent.mkdir(parents=True)
        torch.save({"state_dict": state, SIZE_KEY: student.size.as_dict()}, path)
    (folder / "photos").mkdir()
    for name in ("photo.jpg", "one.jpg", "a.jpg", "b.jpg", "photos/c.jpg", "photos/dog.jpg"):
        Image.effect_noise((80, 64), 60).convert("RGB").save(folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_verb(["data", "sample", "--out", "sample", "--count", "40", "--size", "48", "--workers", "1"])
        run_verb(f"probe knn sample/images --model my-model {TINY_OPTIONS['probe knn']}".split())
    shutil.copy(folder / "run/knn.json", folder / "run/segment.json")
    return folder


def run_verb(words: list[str]) -> None:
    try:
        main(words)
    except SystemExit as end:  # the data stage ends so also where all is well
        if end.code:
            raise


def run_command(command: Command) -> list[str]:
    """Run a command of a page in the world; the words that were run."""
    words = [STAND_INS.get(word, word) for word in command.words[1:]]
    words += TINY_OPTIONS[verb_of(command)].split()
    if verb_of(command) == "features":
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)  # another page writes there too
    run_verb(words)
    return words


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", RUNNABLE.values(), ids=str)
def test_small_commands_run(command: Command, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if verb_of(command) == "export":
        pytest.importorskip("onnxscript", reason="the export extra is not installed")
    monkeypatch.chdir(world)
    words = run_command(command)
    if "--out" in words:
        assert Path(words[words.index("--out") + 1]).exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/use.md", "docs/regions.md"])
def test_python_blocks_run(page: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for command in RUNNABLE.values():
        if command.page == page and verb_of(command) == "features":
            run_command(command)  # the blocks read what they wrote
    names: dict[str, Any] = {}
    for language, block in FENCE.findall(PAGES[page]):
        if language == "python":
            exec(block.replace('"nano"', '"my-model"'), names)
    if "features" in names:
        assert names["features"].patches.shape == (1, 256, 24)
        assert names["features"].cores.shape == (1, 32, 24)


@pytest.mark.filterwarnings("ignore")
def test_every_name_of_the_api_exists() -> None:
    names = re.findall(r"^::: (\S+)$", PAGES["docs/api.md"], flags=re.MULTILINE)
    assert len(names) >= 10
    assert all(resolve_name(name) is not None for name in names)


def test_every_recipe_and_page_named_exists() -> None:
    named = {name for text in PAGES.values() for name in re.findall(r"(?:recipes|docs)/[\w/-]+\.\w+", text)}
    assert len(named) >= 5
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[page])
    missing = [
        target
        for target in targets
        if "://" not in target and not (ROOT / page).parent.joinpath(target).exists()
    ]
    assert not missing


def test_every_file_of_the_readme_exists() -> None:
    named = re.findall(r"(?:recipes|docs)/[\w/]+\.\w+", PAGES["README.md"])
    assert len(named) >= 5
    assert all((ROOT / name).exists() for name in named), named


def test_every_test_that_a_promise_names_exists_and_every_page_is_on_the_site() -> None:
    promises = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"tests/[\w/]+\.py", promises))
    assert len(named) >= 10
    assert all((ROOT / name).is_file() for name in named), named
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert all(page.name in site for page in (ROOT / "docs").glob("*.md"))

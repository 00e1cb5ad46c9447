from pathlib import Path

import pytest

from veca.cli.args import spell_out


def verb(model: str, images: list[str], *, out: Path, budget: int = 8, dense: bool = False) -> None:
    """A verb with everything a command line can hold."""


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("--model m --dense --out o a b", ["--model", "m", "--dense", "true", "--out", "o"]),
        ("--model m --dense false a b", ["--model", "m", "--dense", "false"]),
        ("a --model m b --dense", ["--model", "m", "--dense", "true"]),
        ("--model=m a b --budget -1", ["--model=m", "--budget", "-1"]),
        ("a b --help", ["--help"]),
    ],
)
def test_bare_words_and_switches(typed: str, spelled: list[str]) -> None:
    assert spell_out(verb, typed.split()) == [*spelled, "--images", '["a", "b"]']


def test_without_bare_words_nothing_is_added() -> None:
    assert spell_out(verb, ["--model", "m"]) == ["--model", "m"]


def test_options_that_are_only_passed_on_keep_their_values() -> None:
    def probe(model: str, **sweep: object) -> None: ...

    line = ["--model", "m", "--budgets", "8,64", "--out=x.json", "--seeds", "0"]
    assert spell_out(probe, line) == line
    assert spell_out(probe, ["--help"]) == ["--help"]

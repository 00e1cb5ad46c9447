from pathlib import Path

import pytest

from veca.words import spell_out


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

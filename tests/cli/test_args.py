"""What people type, and the arguments that functions get."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from veca.cli.args import VerbParser


def verb(
    model: str,
    images: list[str],
    *,
    out: Path,
    budget: int = 8,
    budgets: list[int] | str | None = None,
    only: list[str] | None = None,
    sizes: Sequence[int] = (1, 2),
    dense: bool = False,
    allow_code: bool = True,
) -> None:
    """A verb with everything that a command line can hold.

    Args:
        model: The model.
        out: Where to write.
    """


@pytest.fixture
def parser() -> VerbParser:
    return VerbParser(verb, name="veca verb", example="veca verb a.jpg --model m --out o", inputs=["images"])


REQUIRED = "--model m --out o"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("a b", {"images": ["a", "b"]}),
        ("a --dense b", {"images": ["a", "b"], "dense": True}),
        ("a --dense false b", {"images": ["a", "b"], "dense": False}),
        ("a --no-allow-code", {"allow_code": False}),
        ("a --allow_code=false", {"allow_code": False}),
        ("a --budget -1", {"budget": -1}),
        ("a --budgets 8,64", {"budgets": "8,64"}),
        ("a --only model,loader", {"only": ["model", "loader"]}),
        ("a --sizes 3,4", {"sizes": [3, 4]}),
        ("a --sizes [3]", {"sizes": [3]}),
        ("--images=a,b", {"images": ["a", "b"]}),
    ],
)
def test_what_is_typed_becomes_arguments(parser: VerbParser, typed: str, expected: dict[str, object]) -> None:
    values = parser.parse(f"{REQUIRED} {typed}".split())
    assert values["model"] == "m"
    assert values["out"] == Path("o")
    assert {name: values[name] for name in expected} == expected


def test_inputs_are_taken_in_order() -> None:
    def convert(source: Path, out: Path) -> None: ...

    parser = VerbParser(convert, name="veca convert", example="", inputs=["source", "out"])
    assert (
        parser.parse(["a", "b"])
        == parser.parse(["a", "--out", "b"])
        == {"source": Path("a"), "out": Path("b")}
    )
    with pytest.raises(ValueError, match="takes SOURCE OUT; 'c' is too much"):
        parser.parse(["a", "b", "c"])


def test_options_that_are_only_passed_on_are_known() -> None:
    from veca.probes.classify import knn

    parser = VerbParser(knn, name="veca probe knn", example="", inputs=["data"])
    values = parser.parse(["d", "--model", "m", "--allow-remote-code", "--seeds", "0"])
    assert (values["data"], values["seeds"], values["allow_remote_code"]) == ("d", 0, True)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("a --modle m", "no option --modle. Did you mean --model?"),
        (
            "a --modle m --budgt 8 --dence",
            "--modle. Did you mean --model? veca verb has no option --budgt. Did",
        ),
        ("a --modle m --budgt 8 --dence", "no option --dence. Did you mean --dense?"),
        ("a --model", "--model needs a value"),
        ("a --zzz 1", "It has --model, --images"),
    ],
)
def test_mistakes_name_the_option(parser: VerbParser, typed: str, message: str) -> None:
    with pytest.raises(ValueError, match="veca verb") as error:
        parser.parse(typed.split())
    assert message in str(error.value)


def test_help_starts_with_an_example_and_shows_what_is_typed(parser: VerbParser) -> None:
    text = parser.help()
    assert text.startswith("usage: veca verb IMAGES … [--option value …]\n\nexample: veca verb a.jpg")
    assert "--allow-code" in text
    assert "--budget BUDGET" in text
    assert "The model. (required)" in text
    assert "allow_code" not in text
    assert "type:" not in text

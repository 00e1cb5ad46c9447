"""Lightning's warnings that say nothing are not shown; all others are."""

import logging
import warnings

import pytest

from veca.utils.lightning_compat import SPEAKERS, ignore_warnings, quiet_lightning

SRUN = "The `srun` command is available on your system but is not used."
LEAF = "`isinstance(treespec, LeafSpec)` is deprecated, use `isinstance(treespec, TreeSpec)`"


def test_only_empty_words_are_kept_back_and_only_meanwhile() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with quiet_lightning():
            for text in (SRUN, LEAF, "the loss is nan"):
                warnings.warn(text, stacklevel=1)
        warnings.warn(SRUN, stacklevel=1)
    assert [str(one.message) for one in shown] == ["the loss is nan", SRUN]


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_lines_that_say_nothing_are_not_logged(speaker: str, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(speaker)
    log.addHandler(caplog.handler)  # Lightning's loggers may keep lines to themselves
    empty = [
        "💡 Tip: For seamless cloud logging and experiment tracking, try installing something",
        "`weights_only` was not set, defaulting to `False`.",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/1",
        "-" * 100 + "\ndistributed_backend=gloo\n",
        "TPU available: False, using: 0 TPU cores",
    ]
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, speaker):
        ignore_warnings()
        for line in [*empty, "an epoch has 19 samples"]:
            log.info(line)
    log.removeHandler(caplog.handler)
    assert set(caplog.messages) == {"an epoch has 19 samples"}

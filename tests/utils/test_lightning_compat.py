"""Lightning's warnings that say nothing are not shown; all others are."""

import warnings

from veca.utils.lightning_compat import quiet_lightning

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

"""What Lightning says and a user need not hear."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGES = (  # of warnings
    r"Checkpoint directory .* exists and is not empty",  # a resumed run writes where it wrote
    r".isinstance\(treespec, LeafSpec\). is deprecated",
    r"\s*By default only one JsonargparseDeprecationWarning",
    r"The `srun` command is available",  # `cluster.py` tells those who forgot it
)


def ignore_warnings() -> None:
    """From now on; inside `warnings.catch_warnings`, until its end."""
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without the lines in which every Trainer introduces itself."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            ignore_warnings()
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

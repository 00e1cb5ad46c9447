"""Where Lightning has to be told: what a user need not hear, and signals that are ours to handle."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

MESSAGES = (  # of warnings
    r"Checkpoint directory .* exists and is not empty",  # a resumed run writes where it wrote
    r".isinstance\(treespec, LeafSpec\). is deprecated",
    r"\s*By default only one JsonargparseDeprecationWarning",
    r"The `srun` command is available",  # `cluster.py` tells those who forgot it
)
LINES = re.compile(  # of logs
    r"💡 Tip: "  # advertises a service
    r"|`weights_only` was not set"  # said on saving; it reads as if checkpoints might run code
    r"|Initializing distributed: |-{100}\ndistributed_backend="  # a banner for what a failure would say
    r"|TPU available: False"  # nothing here runs on them
)
SPEAKERS = (  # a filter holds for its own logger only, not for those below
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.distributed",
    "lightning.pytorch.trainer.connectors.checkpoint_connector",
)


def ignore_warnings() -> None:
    """From now on; inside `warnings.catch_warnings`, until its end. Lines of logs stay away for good."""
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message)
    for name in SPEAKERS:
        logging.getLogger(name).addFilter(_says_something)  # the same function twice counts once


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


def _says_something(record: logging.LogRecord) -> bool:
    return LINES.match(record.getMessage()) is None


def leave_signals_alone(trainer: "Trainer") -> None:
    """Take Lightning's signal handlers out of a Trainer, and its share of each step.

    Its SIGTERM handler talks to other ranks; and to find out whether it ran, every micro-batch begins with a
    broadcast whose result is read from the device.
    """
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector  # seconds to import

    class NoHandlers(_SignalConnector):
        def register_signal_handlers(self) -> None:
            pass

    trainer._signal_connector = NoHandlers(trainer)
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

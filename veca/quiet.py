"""Warnings of Lightning that tell a user nothing."""

import warnings

MESSAGES = (
    r"Checkpoint directory .* exists and is not empty",  # a resumed run writes where it wrote
    r".isinstance\(treespec, LeafSpec\). is deprecated",
    r"\s*By default only one JsonargparseDeprecationWarning",
    r"The `srun` command is available",  # `cluster.py` tells those who forgot it
)


def ignore_warnings() -> None:
    """From now on; inside `warnings.catch_warnings`, until its end."""
    for message in MESSAGES:
        warnings.filterwarnings("ignore", message)

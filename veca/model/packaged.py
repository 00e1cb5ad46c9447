"""Models that come with the package: their weights in float16, read without a network, checked by sha256."""

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "weights"
SHA256 = {"nano": "707ce63329293352ceaee6494fc1822572eb5f731a1fecb00d6487a17602af6d"}


def list_models() -> list[str]:
    """The names that `veca.load_model` and `--model` take without a file or a network."""
    return sorted(SHA256)


def packaged_folder(name: str) -> Path:
    """The folder of a packaged model, its weights compared with their sha256."""
    (weights,) = (FOLDER / name).glob("*.safetensors")
    found = hashlib.sha256(weights.read_bytes()).hexdigest()
    if found != SHA256[name]:
        raise ValueError(
            f"{weights} is damaged: its sha256 is {found}, not {SHA256[name]}. Install veca again."
        )
    return weights.parent

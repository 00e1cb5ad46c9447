"""AutoBackbone on a local folder.

transformers 5 asks the Hub whether the name exists before it looks at the disk, and takes what the Hub does
not know for a timm model; a local folder never gets through. Folders that hold a Veca are answered here,
everything else goes the way it went before.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any

from transformers import AutoBackbone

from veca.interop.models import VecaBackbone
from veca.model.hub import CONFIG_NAME, MODEL_TYPE


def answer_for_local_folders() -> None:
    """Let `AutoBackbone.from_pretrained` read folders of Veca models; a second call changes nothing."""
    original: Any = AutoBackbone.from_pretrained
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def from_pretrained(cls: type, name_or_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        if _holds_veca(Path(name_or_path)):
            kwargs.pop("use_timm_backbone", None)
            return VecaBackbone.from_pretrained(name_or_path, *args, **kwargs)
        return original(name_or_path, *args, **kwargs)

    setattr(AutoBackbone, "from_pretrained", classmethod(from_pretrained))  # noqa: B010  # typed as a fixed method


def _holds_veca(folder: Path) -> bool:
    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE

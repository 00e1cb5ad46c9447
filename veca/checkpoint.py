"""Files ↔ models: saved folders, run checkpoints, the authors' layout, Hub ids.

Nothing in a file is executed: weights come from safetensors or from `torch.load(weights_only=True)`.
"""

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from torch import Tensor

from veca.card import AUTHORS_FACTS, run_facts
from veca.model import Size, Veca
from veca.model.hub import CONFIG_NAME, WEIGHTS_NAME, build_model, packaged_folder, read_folder
from veca.model.sizes import list_models
from veca.utils.files import check_writable

STUDENT_PREFIX = "student."
SIZE_KEY = "student_size"  # a run's checkpoint holds the size fields under this key
CONTROL_KEY = "control"  # … or the arguments of its student, where that is the full-attention control

# Ours → the authors' names. A rule rewrites the whole name or leaves it alone.
_AUTHORS_RULES = (
    (r"patch_embed\.(weight|bias)", r"patch_embed.proj.\1"),
    (r"cores\.tokens\.(\d+)", r"query_token_chunks.\1"),
    (r"cores\.coordinates\.(\d+)", r"qcoord_chunks.\1"),
    (r"coordinate_scales", r"pos_alpha"),
    (r"coordinate_heads\.(\d+)\.(weight|bias)", r"pos_linears.\1.\2"),
    (r"blocks\.(\d+)\.attn\.(q|k|v|out)\.(weight|bias)", r"blocks.\1.attn.\2_proj.\3"),
    (r"blocks\.(\d+)\.ffn\.(fc1|fc2)\.(weight|bias)", r"blocks.\1.\2.\3"),
)


def load_model(source: str | os.PathLike[str]) -> Veca:
    """A model in eval mode: from a saved folder, a run's .ckpt, the authors' .pt, a Hub id, a packaged name.

    `veca.list_models()` gives the packaged names; a path of that name comes first.
    """
    path, name = Path(source), str(source)
    if path.is_dir():
        return read_folder(Veca, path / CONFIG_NAME, path / WEIGHTS_NAME, source=name)
    if path.is_file():
        return _load_file(path)
    if name in list_models():
        folder = packaged_folder(name)
        return read_folder(Veca, folder / CONFIG_NAME, folder / WEIGHTS_NAME, source=name).float()
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) and not path.suffix:
        try:
            return Veca.from_pretrained(name)
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            first = str(error).strip().splitlines()[0]
            raise FileNotFoundError(
                f"{name} is no local path, and the Hub did not give it ({first}). Check the name, run "
                "`hf auth login` if it is gated, or download the folder and give its path."
            ) from None
    raise FileNotFoundError(
        f"no model at {source}. Give a folder with model.safetensors and config.json, a run's .ckpt, the "
        f"authors' .pt, a Hub id such as owner/name, or a packaged model: {', '.join(list_models())}."
    )


def convert(checkpoint: Path, out: Path, *, half: bool = False) -> None:
    """Convert a checkpoint to a folder with model.safetensors, config.json and a model card.

    Args:
        checkpoint: the authors' .pt file, or a run's .ckpt; it is read without executing anything in it.
        out: folder to write; `veca.load_model` and transformers read it.
        half: float16 weights, for half the room.
    """
    if not checkpoint.is_file():
        raise FileNotFoundError(f"no checkpoint at {checkpoint}.")
    check_writable(out)
    model = load_model(checkpoint)
    (model.half() if half else model).save_pretrained(out)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{out}: {count:,} parameters, budgets {', '.join(map(str, model.budgets))}")


def read_pickle(path: Path, *, lazily: bool = False) -> dict[str, Any]:
    """A dict of tensors and plain values from a `torch.save`d file, with the safe unpickler.

    Read `lazily`, tensors stay in the file until they are used, and no checksum is compared.
    """
    problem = None if lazily else checksum_problem(path)
    if problem is not None:
        raise ValueError(
            f"{problem}. Copy it again from where it is whole; a run goes on from its newest intact "
            "checkpoint with --ckpt_path last."
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except pickle.UnpicklingError as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{path} was refused: it asks for more than tensors and plain values, and reading it could "
            f"run code ({first}). Ask its maker for safetensors."
        ) from None
    except Exception as error:  # a damaged file makes the unpickler fail in any way there is
        raise ValueError(f"{path} is not an intact checkpoint: {error!r}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; a checkpoint is a dict.")
    return content


def checksum_problem(path: Path) -> str | None:
    """What part of a `torch.save`d file lacks its checksum, if any: torch writes them and compares none."""
    try:
        if not zipfile.is_zipfile(path):
            return None  # torch's older layout, without checksums; or damage that torch does notice
        with zipfile.ZipFile(path) as archive:
            # All zero, where torch was told to write none.
            bad = archive.testzip() if any(part.CRC for part in archive.infolist()) else None
    except Exception as error:  # as in read_pickle, damage to the zip itself shows in any way there is
        return f"{path} is damaged: {error}"
    return None if bad is None else f"{path} is damaged: the checksum of its part {bad} does not hold"


def run_model(checkpoint: dict[str, Any], *, source: str) -> Veca:
    """The student of a run's Lightning checkpoint."""
    if CONTROL_KEY in checkpoint:
        raise ValueError(f"{source} is of a full-attention control, which `veca probe` and init_from open.")
    if SIZE_KEY not in checkpoint:
        raise ValueError(f"{source} has no {SIZE_KEY!r}: its student is not a Veca of ours.")
    try:
        size = Size(**checkpoint[SIZE_KEY])
    except TypeError as error:
        raise ValueError(f"{source} has damaged size fields: {error}.") from None
    return build_model(Veca, size, student_tensors(checkpoint), source=source)


def student_tensors(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The student's part of a run's checkpoint, by the student's own names."""
    return {
        name.removeprefix(STUDENT_PREFIX).replace("_orig_mod.", ""): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(STUDENT_PREFIX)
    }


def authors_model(checkpoint: dict[str, Any], *, source: str) -> Veca:
    """A model from the authors' layout (method §1); sizes follow from the tensors."""
    prefixes = re.compile(r"\A(?:module\.|student\.)+")
    tensors = {prefixes.sub("", name): tensor for name, tensor in checkpoint["student"].items()}
    wrong = [name for name, tensor in tensors.items() if not isinstance(tensor, Tensor)]
    if wrong:
        raise ValueError(f"{source}: student.{wrong[0]} is not a tensor.")
    config = checkpoint.get("config")
    size = _authors_size(tensors, config if isinstance(config, dict) else {}, source=source)
    with torch.device("meta"):
        theirs = {authors_name(name): name for name in Veca(**size.as_dict()).state_dict()}
    problems = [f"missing {name}" for name in theirs if name not in tensors]
    problems += [f"unknown {name}" for name in tensors if name not in theirs]
    if problems:
        listed = "; ".join(sorted(problems)[:8])
        raise ValueError(f"{source} is not in the authors' layout: {listed}.")
    renamed = {theirs[name]: tensor for name, tensor in tensors.items()}
    return build_model(Veca, size, renamed, source=source)


def authors_name(name: str) -> str:
    """The authors' name of one of our tensors."""
    for pattern, replacement in _AUTHORS_RULES:
        if match := re.fullmatch(pattern, name):
            return match.expand(replacement)
    return name


def _load_file(path: Path) -> Veca:
    content = read_pickle(path)
    if isinstance(content.get("student"), dict):
        model = authors_model(content, source=str(path))
        model.facts = dict(AUTHORS_FACTS)
        return model
    if isinstance(content.get("state_dict"), dict):
        model = run_model(content, source=str(path))
        model.facts = run_facts(path)
        return model
    raise ValueError(
        f"{path} is neither a run's checkpoint (key 'state_dict') nor in the authors' layout "
        f"(key 'student'); its keys are {sorted(map(str, content))[:8]}."
    )


def _authors_size(tensors: dict[str, Tensor], config: dict[str, Any], *, source: str) -> Size:
    needed = {"patch_embed.proj.weight": 4, "query_token_chunks.0": 3, "blocks.0.fc2.weight": 2}
    for name, ndim in needed.items():
        if name not in tensors or tensors[name].ndim != ndim:
            raise ValueError(
                f"{source} is not in the authors' layout: missing {name} with {ndim} dimensions."
            )
    width, in_channels, patch_size, _ = tensors["patch_embed.proj.weight"].shape
    groups = [name for name in tensors if name.startswith("query_token_chunks.")]
    layers = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    projection, heads = tensors.get("output_proj.weight"), config.get("num_heads")
    core_group = tensors["query_token_chunks.0"].shape[1]
    hidden, ratio = tensors["blocks.0.fc2.weight"].shape[1], config.get("mlp_ratio")
    ratios = [ratio] if isinstance(ratio, int | float) else []
    ratios += [hidden / width, (hidden + 0.5) / width]  # the division may round down
    return Size(
        width=width,
        depth=len(layers),
        num_heads=heads if isinstance(heads, int) else max(1, width // 64),
        ffn_ratio=next(float(ratio) for ratio in ratios if int(width * ratio) == hidden),
        num_cores=len(groups) * core_group,
        core_group=core_group,
        patch_size=patch_size,
        in_channels=in_channels,
        out_width=None if projection is None else projection.shape[0],
    )

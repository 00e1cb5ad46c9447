import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from veca import Veca, create_model, load_model
from veca.backbones.control import TransformersStudent, load_control
from veca.checkpoint import SIZE_KEY, authors_name, convert
from veca.train.checkpointing import SafeCheckpointIO


@pytest.fixture
def student() -> Veca:
    torch.manual_seed(0)
    model = create_model("tiny", width=64, depth=3, num_heads=1, num_cores=16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def same_outputs(one: Veca, two: Veca) -> bool:
    x = torch.randn(1, 3, 32, 48)
    return all(torch.equal(a, b) for a, b in zip(one(x, 8)[:3], two(x, 8)[:3], strict=True))


def authors_file(
    model: Veca, path: Path, *, prefix: str = "", config: dict[str, object] | None = None
) -> Path:
    """What the authors would save: written from their documented layout, name by name."""
    short = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}
    student: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        parts = name.split(".")
        if parts[0] == "patch_embed":
            renamed = f"patch_embed.proj.{parts[1]}"
        elif parts[0] == "cores":
            renamed = f"{'query_token_chunks' if parts[1] == 'tokens' else 'qcoord_chunks'}.{parts[2]}"
        elif parts[0] == "coordinate_scales":
            renamed = "pos_alpha"
        elif parts[0] == "coordinate_heads":
            renamed = f"pos_linears.{parts[1]}.{parts[2]}"
        elif "attn" in parts:
            renamed = f"blocks.{parts[1]}.attn.{short[parts[3]]}.{parts[4]}"
        elif "ffn" in parts:
            renamed = f"blocks.{parts[1]}.{parts[3]}.{parts[4]}"
        else:
            renamed = name
        student[prefix + renamed] = tensor
    content: dict[str, object] = {"student": student, "step": 7, "optimizer": {"state": {}}}
    if config is not None:
        content["config"] = config
    torch.save(content, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_saved_folders_round_trip_bit_for_bit(student: Veca, tmp_path: Path, dtype: torch.dtype) -> None:
    student.to(dtype).save_pretrained(tmp_path / "model")
    assert {p.name for p in (tmp_path / "model").iterdir()} == {
        "model.safetensors",
        "config.json",
        "preprocessor_config.json",
        "README.md",
    }
    loaded = load_model(tmp_path / "model")
    assert not loaded.training
    assert loaded.size == student.size
    for name, tensor in student.state_dict().items():
        assert loaded.state_dict()[name].dtype == dtype
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert all(p.requires_grad for p in loaded.parameters())
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["model_type"] == "veca"
    assert config["width"] == 64


def test_the_hub_mixin_reads_the_same_folder(student: Veca, tmp_path: Path) -> None:
    student.save_pretrained(tmp_path)
    assert same_outputs(Veca.from_pretrained(tmp_path), student)
    assert "arXiv 2605.12491" in (tmp_path / "README.md").read_text()


def test_a_lightning_checkpoint_loads(student: Veca, tmp_path: Path) -> None:
    state = {f"student._orig_mod.{name}": tensor for name, tensor in student.state_dict().items()}
    state["other.weight"] = torch.zeros(1)
    torch.save({"state_dict": state, SIZE_KEY: student.size.as_dict(), "epoch": 3}, tmp_path / "run.ckpt")
    assert same_outputs(load_model(tmp_path / "run.ckpt"), student)


@pytest.mark.parametrize("prefix", ["", "module.", "student.", "module.student.", "module.module."])
@pytest.mark.parametrize(
    "config",
    [
        None,
        {"num_heads": 1, "mlp_ratio": 2.66667, "nested_chunk_size": 8, "hidden_dim": 64},
        {"num_heads": 1, "mlp_ratio": 9.0, "matryoshka_chunk_size": 8, "model_family": "small"},
    ],
)
def test_the_authors_layout_loads_with_equal_outputs(
    student: Veca, tmp_path: Path, prefix: str, config: dict[str, object] | None
) -> None:
    path = authors_file(student, tmp_path / "authors.pt", prefix=prefix, config=config)
    assert same_outputs(load_model(path), student)
    convert(path, tmp_path / "out")
    assert same_outputs(load_model(tmp_path / "out"), student)


def test_heads_come_from_the_config_and_the_ffn_width_from_the_tensors(tmp_path: Path) -> None:
    model = create_model(
        "tiny", width=64, depth=2, num_heads=4, ffn_ratio=1.7, num_cores=16, out_width=24
    ).eval()
    config = {"num_heads": 4, "mlp_ratio": 4.0}
    loaded = load_model(authors_file(model, tmp_path / "a.pt", config=config))
    assert loaded.size.num_heads == 4
    assert loaded.size.ffn_width == model.size.ffn_width == 108
    assert loaded.size.out_width == 24
    assert same_outputs(loaded, model)


def test_every_tensor_has_an_authors_name_of_its_own(student: Veca) -> None:
    names = [authors_name(name) for name in student.state_dict()]
    assert len(set(names)) == len(names)
    assert "blocks.2.fc2.weight" in names
    assert "pos_linears.1.bias" in names


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_a_wrong_tensor_is_refused_by_name(student: Veca, tmp_path: Path, change: str) -> None:
    path = authors_file(student, tmp_path / "authors.pt")
    content = torch.load(path, weights_only=True)
    if change == "missing":
        del content["student"]["blocks.1.attn.k_proj.bias"]
        word = "missing blocks.1.attn.k_proj.bias"
    elif change == "unknown":
        content["student"]["blocks.1.attn.gamma"] = torch.zeros(1)
        word = "unknown blocks.1.attn.gamma"
    else:
        content["student"]["pos_alpha"] = torch.zeros(9)
        word = r"coordinate_scales has shape \(9,\), not \(2,\)"
    torch.save(content, path)
    with pytest.raises(ValueError, match=word):
        load_model(path)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["evil.pt", "evil.ckpt"])
@pytest.mark.parametrize("raw", [False, True])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, name: str, raw: bool) -> None:
    trap = tmp_path / "executed"
    content = {"student": Bomb(trap), "state_dict": Bomb(trap)}
    if raw:
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, tmp_path / name)
    with pytest.raises(ValueError, match="could run code"):
        load_model(tmp_path / name)
    assert not trap.exists()


def test_nan_weights_are_refused(student: Veca, tmp_path: Path) -> None:
    student.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["blocks.0.attn.q.weight"][0, 0] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"blocks.0.attn.q.weight holds NaN"):
        load_model(tmp_path)


def test_another_size_is_refused_with_both_shapes(student: Veca, tmp_path: Path) -> None:
    student.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"num_cores": 16', '"num_cores": 24'))
    with pytest.raises(ValueError, match=r"missing cores.tokens.2"):
        load_model(tmp_path)
    path.write_text(path.read_text().replace('"num_cores": 24', '"num_cores": 16').replace("64", "32"))
    with pytest.raises(ValueError, match=r"shape \(64,\), not \(32,\)"):
        load_model(tmp_path)


SIZE = '{"model_type": "veca", "depth": 1, "num_heads": 1, "ffn_ratio": 2, "width": %s}'


@pytest.mark.parametrize(
    "content", ["{", "[]", "[" * 9999, '{"model_type": "bert"}', '{"model_type": "veca"}', SIZE % '""']
)
def test_a_damaged_config_is_a_clear_error(student: Veca, tmp_path: Path, content: str) -> None:
    student.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        load_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"\x80\x02}q\x00."])
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match=r"x.ckpt"):
        load_model(tmp_path / "x.ckpt")


def test_a_truncated_safetensors_file_is_refused(student: Veca, tmp_path: Path) -> None:
    student.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not an intact safetensors"):
        load_model(tmp_path)


def flip_a_bit(path: Path, tensor: torch.Tensor) -> None:
    """The lowest bit of the first value: the file stays readable, and the model a model."""
    content = bytearray(path.read_bytes())
    start = content.find(tensor.detach().numpy().tobytes())
    assert start > 0
    content[start] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["run.ckpt", "authors.pt"])
def test_a_flipped_bit_of_a_checkpoint_is_found_on_every_way_in(
    student: Veca, tmp_path: Path, name: str
) -> None:
    path, state = tmp_path / name, student.state_dict()
    if name == "run.ckpt":
        tensors = {f"student.{name}": tensor for name, tensor in state.items()}
        torch.save({"state_dict": tensors, SIZE_KEY: student.size.as_dict(), "global_step": 3}, path)
    else:
        authors_file(student, path)
    load_model(path)
    flip_a_bit(path, state["blocks.1.attn.q.weight"])
    ways = (load_model, SafeCheckpointIO().load_checkpoint, lambda path: convert(path, tmp_path / "out"))
    for read in ways:
        with pytest.raises(ValueError, match=rf"{name} is damaged: the checksum of .*data/\d+ does not hold"):
            read(path)
    assert not (tmp_path / "out").exists()


def test_a_flipped_bit_of_a_control_is_found(tmp_path: Path) -> None:
    control = TransformersStudent("tiny", width=32, depth=1, num_heads=1)
    tensors = {f"student.{name}": tensor for name, tensor in control.state_dict().items()}
    path = tmp_path / "run.ckpt"
    torch.save({"state_dict": tensors, "control": control.arguments}, path)
    assert load_control(path) is not None
    flip_a_bit(path, control.model.embeddings.patch_embeddings.weight)
    with pytest.raises(ValueError, match=r"run.ckpt is damaged: .*--ckpt_path last"):
        load_control(path)


def test_a_flipped_bit_of_a_saved_folder_is_found(student: Veca, tmp_path: Path) -> None:
    student.save_pretrained(tmp_path)
    flip_a_bit(tmp_path / "model.safetensors", student.state_dict()["blocks.1.attn.q.weight"])
    for read in (load_model, Veca.from_pretrained):
        with pytest.raises(ValueError, match=r"model.safetensors is damaged: .* checksum .*Copy it again"):
            read(tmp_path)


def test_files_without_checksums_load(student: Veca, tmp_path: Path) -> None:
    student.save_pretrained(tmp_path)
    save_file(student.state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert same_outputs(load_model(tmp_path), student)
    torch.serialization.set_crc32_options(False)
    try:
        authors_file(student, tmp_path / "zip.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert same_outputs(load_model(tmp_path / "zip.pt"), student)
    content = torch.load(tmp_path / "zip.pt", weights_only=True)
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert same_outputs(load_model(tmp_path / "old.pt"), student)


def test_who_may_read_a_saved_model_is_the_umasks_to_say(student: Veca, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        convert(authors_file(student, tmp_path / "authors.pt"), tmp_path / "out")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {"0o640"}, modes


def test_a_missing_source_says_what_can_be_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Hub id such as owner/name"):
        load_model(tmp_path / "nothing.ckpt")


def test_an_unreachable_hub_model_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="hf auth login"):
        load_model("nobody/nothing")

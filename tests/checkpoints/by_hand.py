"""Layouts made by hand, where the library is not at hand. Each names the place that defines it."""

import json
import pickle
import shutil
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from fleet.checkpoints.nemo import UNFINISHED


def torch_file(path: Path, value: Any = None, pickled: bytes | None = None, **members: bytes) -> Path:
    """As torch.save writes it: a zip of stored members (pytorch/pytorch, torch/serialization.py, `_save`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled or pickle.dumps(value, protocol=2))
        archive.writestr("archive/byteorder", "little")
        for name, content in (members or {"0": bytes(400)}).items():
            archive.writestr(f"archive/data/{name}", content)
        archive.writestr("archive/version", "3\n")
    return path


def scalar(key: str, storage: str = "LongStorage") -> bytes:
    """The pickle of a dictionary with one tensor of one number in storage 0, as torch.save writes it (protocol 2)."""
    return (
        b"\x80\x02}(X" + len(key).to_bytes(4, "little") + key.encode() + b"ctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\n" + storage.encode() + b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
        b"K\x00))\x89}tRu."
    )  # fmt: skip


def train_state(path: Path, step: int) -> Path:
    """NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/training/state.py, `TrainState.state_dict`."""
    return torch_file(path, pickled=scalar("step"), **{"0": step.to_bytes(8, "little", signed=True)})


def bridge(root: Path) -> Path:
    """Adds to a torch_dist root what Bridge's checkpointing.py writes: `train_state_finalize_fn`, `CONFIG_FILE`."""
    for folder in root.glob("iter_*"):
        (folder / "run_config.yaml").write_text("model: {}\n")
        train_state(folder / "train_state.pt", int(folder.name[5:]))
    shutil.copy(max(root.glob("iter_*")) / "train_state.pt", root / "latest_train_state.pt")
    return root


def legacy(root: Path, steps: tuple[int, ...], tensor: int, pipeline: int, expert: int = 1) -> Path:
    """NVIDIA/Megatron-LM, megatron/training/checkpointing.py, `get_checkpoint_name` and `generate_state_dict`."""
    sizes = {"tensor": tensor, "pipeline": pipeline, "expert": expert}
    args = Namespace(**{f"{kind}_model_parallel_size": size for kind, size in sizes.items()})
    for step in steps:
        for t in range(tensor):
            for p in range(pipeline):
                for e in range(expert):
                    rank = (
                        f"mp_rank_{t:02d}"
                        + (f"_{p:03d}" if pipeline > 1 else "")
                        + (f"_{e:03d}" if expert > 1 else "")
                    )
                    folder = root / f"iter_{step:07d}" / rank
                    torch_file(folder / "model_optim_rng.pt", {"args": args, "iteration": step})
                    torch_file(folder / "distrib_optim.pt", {})
    (root / "latest_checkpointed_iteration.txt").write_text(str(max(steps)))
    return root


def verl_fsdp(root: Path, steps: tuple[int, ...], world: int, roles: tuple[str, ...] = ("actor",)) -> Path:
    """verl-project/verl, verl/utils/checkpoint/fsdp_checkpoint_manager.py, `save_checkpoint`; ray_trainer.py."""
    for step in steps:
        folder = root / f"global_step_{step}"
        for role in roles:
            for kind in ("model", "optim", "extra_state"):
                for rank in range(world):
                    torch_file(folder / role / f"{kind}_world_size_{world}_rank_{rank}.pt", {})
            (folder / role / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
        torch_file(folder / "data.pt", {})
    (root / "latest_checkpointed_iteration.txt").write_text(str(max(steps)))
    return root


def nvrx(root: Path, steps: tuple[int, ...], ranks: range) -> Path:
    """NVIDIA/nvidia-resiliency-ext, .../local/ckpt_managers/local_manager.py, `_local_ckpt_path_from_id`."""
    for step in steps:
        for rank in ranks:
            torch_file(root / str(rank) / f"iter_{step:07d}_{rank}_local.pt", {})
    return root


def nemo(torch_dist: Path, root: Path) -> Path:
    """NVIDIA/NeMo, nemo/lightning/ckpt_utils.py and pytorch/callbacks/model_checkpoint.py."""
    for folder in sorted(torch_dist.glob("iter_*")):
        name = f"model--val_loss=1.25-step={int(folder.name[5:])}-consumed_samples=800.0"
        shutil.copytree(folder, root / name / "weights")
        (root / name / "context").mkdir()
        (root / name / "context/model.yaml").write_text("model: {}\n")
    return root


def unfinished(folder: Path) -> Path:
    """NeMo's marker beside a folder while it is written."""
    marker = folder.with_name(folder.name + UNFINISHED)
    marker.touch()
    return marker

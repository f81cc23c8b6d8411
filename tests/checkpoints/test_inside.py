"""Formats that hold another format inside: DeepSpeed and FSDP in a Trainer's folder, DCP in a Lightning folder."""

import json
import shutil
from pathlib import Path

import pytest

from activities.checkpoints import look
from fleet.checkpoints.layout import Known
from fleet.checkpoints.model import Format
from tests.checkpoints import by_hand
from tests.checkpoints.answers import entry, newest
from tests.checkpoints.conftest import Real


@pytest.fixture
def with_deepspeed(real: Real) -> Path:
    """huggingface/transformers, trainer.py, `_save_optimizer_and_scheduler`: the engine saves into the folder."""
    root, zero = real("hf_trainer"), real("deepspeed_zero1")
    for step in (10, 20, 30):
        folder = root / f"checkpoint-{step}"
        shutil.copytree(zero / f"global_step{step}", folder / f"global_step{step}")
        (folder / "latest").write_text(f"global_step{step}")
        (folder / "optimizer.pt").unlink()
        (folder / "scheduler.pt").unlink()
    return root


@pytest.fixture
def with_fsdp(real: Real) -> Path:
    """huggingface/accelerate, utils/constants.py and fsdp_utils.py: `pytorch_model_fsdp_0`, `optimizer_0`."""
    root, dcp = real("hf_trainer"), real("dcp")
    for step in (10, 20, 30):
        folder = root / f"checkpoint-{step}"
        shutil.copytree(dcp / f"step_{step}", folder / "pytorch_model_fsdp_0")
        shutil.copytree(dcp / f"step_{step}", folder / "optimizer_0")
        (folder / "optimizer.pt").unlink()
        (folder / "model.safetensors").unlink()
    return root


@pytest.fixture
def with_index(real: Real) -> Path:
    """huggingface/transformers, modeling_utils.py, `save_pretrained`: shards and `model.safetensors.index.json`."""
    root = real("hf_trainer")
    for step in (10, 20, 30):
        folder = root / f"checkpoint-{step}"
        names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
        for name in names:
            shutil.copy(folder / "model.safetensors", folder / name)
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": names[0], "b": names[1]}})
        )
    return root


@pytest.fixture
def with_ranks(real: Real) -> Path:
    """huggingface/transformers, trainer.py, `_save_rng_state`: one file a rank."""
    root = real("hf_trainer")
    for step in (10, 20, 30):
        folder = root / f"checkpoint-{step}"
        for rank in range(4):
            shutil.copy(folder / "rng_state.pth", folder / f"rng_state_{rank}.pth")
        (folder / "rng_state.pth").unlink()
    return root


@pytest.mark.parametrize("kind", ["with_deepspeed", "with_fsdp", "with_index", "with_ranks"])
def test_a_trainers_folder_with_sharded_state_is_complete(kind: str, request: pytest.FixtureRequest) -> None:
    found = look(request.getfixturevalue(kind))

    assert found.format is Format.HF_TRAINER
    assert newest(found) == 30
    assert found.question == ""


@pytest.mark.parametrize(
    ("kind", "lost", "why"),
    [
        ("with_deepspeed", "global_step30/zero_pp_rank_1_mp_rank_00_optim_states.pt", "only 1 of 2 optimizer shards"),
        ("with_deepspeed", "global_step30", "latest names no folder of it"),
        ("with_deepspeed", "latest", "there is no optimizer.pt"),
        ("with_fsdp", "optimizer_0/.metadata", "no .metadata"),
        ("with_fsdp", "optimizer_0", "there is no optimizer.pt"),
        ("with_fsdp", "pytorch_model_fsdp_0/__0_0.distcp", "is missing"),
        ("with_index", "model-00002-of-00002.safetensors", "model.safetensors.index.json names it"),
        ("with_ranks", "rng_state_1.pth", "rng_state_1.pth is missing, and one of rank 3 is here"),
    ],
)
def test_a_trainers_folder_without_a_part_of_its_sharded_state_is_refused(
    kind: str, lost: str, why: str, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(kind)
    gone = root / "checkpoint-30" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    found = look(root)

    assert newest(found) == 20
    assert why in entry(found, "checkpoint-30").reason


def test_a_cut_shard_of_the_weights_is_noticed_by_its_own_header(with_index: Path) -> None:
    shard = with_index / "checkpoint-30/model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])

    assert "its header says" in entry(look(with_index), "checkpoint-30").reason


def test_an_index_that_names_a_file_elsewhere_is_refused(with_index: Path) -> None:
    index = with_index / "checkpoint-30/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../checkpoint-20/model-00001-of-00002.safetensors"}}))

    assert "which lies outside of the checkpoint" in entry(look(with_index), "checkpoint-30").reason


def test_a_lost_last_random_state_is_noticed_when_the_number_of_ranks_is_known(with_ranks: Path) -> None:
    (with_ranks / "checkpoint-30/rng_state_3.pth").unlink()

    found = look(with_ranks, Known(world=4))

    assert newest(found) == 20
    assert "it has 3 random states, the job has 4 ranks" in entry(found, "checkpoint-30").reason


@pytest.fixture
def folders(real: Real, tmp_path: Path) -> Path:
    """Lightning-AI/pytorch-lightning, fabric/strategies/fsdp.py, `save_checkpoint`: DCP files and `meta.pt`."""
    dcp, root = real("dcp"), tmp_path / "lightning"
    for step in (10, 20, 30):
        folder = root / f"epoch=1-step={step}.ckpt"
        shutil.copytree(dcp / f"step_{step}", folder)
        by_hand.torch_file(folder / "meta.pt", {"global_step": step, "epoch": 1})
    return root


def test_a_sharded_lightning_checkpoint_is_a_folder(folders: Path) -> None:
    found = look(folders)

    assert found.format is Format.LIGHTNING
    assert newest(found) == 30

    (folders / "epoch=1-step=30.ckpt/.metadata").unlink()
    assert newest(look(folders)) == 20


def test_a_sharded_lightning_checkpoint_without_its_state_is_refused(folders: Path) -> None:
    (folders / "epoch=1-step=30.ckpt/meta.pt").unlink()

    assert "meta.pt is missing" in entry(look(folders), "epoch=1-step=30.ckpt").reason


def test_a_lightning_file_of_another_step_than_its_name_is_refused(real: Real) -> None:
    root = real("lightning")
    shutil.copy(root / "epoch=2-step=20.ckpt", root / "epoch=3-step=30.ckpt")

    assert "it is of step 20" in entry(look(root), "epoch=3-step=30.ckpt").reason


@pytest.mark.parametrize(
    "name",
    [
        "layer_0_expert_0_mp_rank_00_model_states.pt",
        "expert_0_mp_rank_00_model_states.pt",
        "expp_rank_0_mp_rank_00_optim_states.pt",
    ],
)
def test_experts_that_no_number_speaks_of_are_complete_only_by_a_receipt(name: str, real: Real) -> None:
    """deepspeedai/DeepSpeed, runtime/engine.py, `_get_expert_ckpt_name`, `_get_optimizer_ckpt_name`."""
    root = real("deepspeed_zero1")
    by_hand.torch_file(root / "global_step30" / name, {})

    found = look(root)

    assert newest(found) == 20
    assert "nothing in it tells how many files of them" in entry(found, "global_step30").reason


def test_an_expert_of_an_older_larger_model_is_two_saves_mixed(real: Real) -> None:
    root = real("deepspeed_experts")
    by_hand.torch_file(root / "global_step30/layer_1_expert_4_mp_rank_00_model_states.pt", {})

    assert "layer 1, expert 4 is beyond the experts of this save" in entry(look(root), "global_step30").reason

"""One writer and one loader for each library. Runs only where the libraries are: see `make_real`.

A writer makes a root with checkpoints of steps 10, 20 and 30. A loader loads one entry and prints its step; it fails
where the library refuses.
"""

# mypy: ignore-errors
# ruff: noqa: T201 - the printed step is the answer

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = (10, 20, 30)
WORLD = 2
PACKAGES = (
    "torch", "megatron-core", "deepspeed", "transformers", "accelerate", "lightning", "orbax-checkpoint", "jax"
)  # fmt: skip


def spawn(work: Callable[..., None], *args: Any, world: int = WORLD) -> None:
    """Runs `work(rank, *args)` in `world` processes that can talk."""
    import torch.multiprocessing as mp

    meeting = Path(args[0]).with_suffix(".meeting")
    meeting.unlink(missing_ok=True)
    mp.spawn(_ranked, (world, str(meeting), work, args), nprocs=world)
    meeting.unlink(missing_ok=True)


def _ranked(rank: int, world: int, meeting: str, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    work(rank, *args)
    dist.destroy_process_group()


# --- PyTorch DCP


def _sharded(rank: int, value: float) -> Any:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (WORLD,))
    return {
        "weight": distribute_tensor(torch.full((8, 4), value), mesh, [Shard(0)]),
        "bias": torch.full((4,), value),
        "train_state": {"step": int(value)},
    }


def _dcp_write(rank: int, root: str, name: str) -> None:
    import torch.distributed.checkpoint as dcp

    for step in STEPS:
        dcp.save(_sharded(rank, step), checkpoint_id=f"{root}/{name.format(step)}")


def _dcp_load(rank: int, root: str, entry: str) -> None:
    import torch.distributed.checkpoint as dcp

    state = _sharded(rank, 0)
    dcp.load(state, checkpoint_id=f"{root}/{entry}")
    step = state["train_state"]["step"]
    assert state["weight"].full_tensor().eq(step).all()
    if rank == 0:
        print(step)


def write_dcp(root: str) -> None:
    spawn(_dcp_write, root, "step_{}")


def load_dcp(root: str, entry: str) -> None:
    spawn(_dcp_load, root, entry)


# --- Megatron-Core torch_dist


def _megatron_state(rank: int, value: float) -> Any:
    import torch
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    local = torch.full((4, 4), value)
    return {
        "weight": ShardedTensor.from_rank_offsets("weight", local, (0, rank, WORLD)),
        "rng": ShardedObject("rng", {"rank": rank, "step": int(value)}, (WORLD,), (rank,)),
        "iteration": int(value),
    }


def _without_gpu() -> None:
    """Megatron-Core waits for the GPU before it writes; here is none to wait for."""
    import torch

    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"


def _torch_dist_write(rank: int, root: str) -> None:
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    _without_gpu()
    for step in STEPS:
        folder = Path(root) / f"iter_{step:07d}"
        folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(_megatron_state(rank, step), str(folder))
        if rank == 0:  # what megatron/training/checkpointing.py does after the last barrier
            (Path(root) / "latest_checkpointed_iteration.txt").write_text(str(step))


def _torch_dist_load(rank: int, root: str, entry: str) -> None:
    from megatron.core import dist_checkpointing

    _without_gpu()
    state = dist_checkpointing.load(_megatron_state(rank, 0), f"{root}/{entry}")
    assert state["weight"].eq(state["iteration"]).all()
    if rank == 0:
        print(state["iteration"])


def write_torch_dist(root: str) -> None:
    spawn(_torch_dist_write, root)


def load_torch_dist(root: str, entry: str) -> None:
    spawn(_torch_dist_load, root, entry)


# --- DeepSpeed


def _engine(stage: int) -> Any:
    import deepspeed
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(8, 4)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def _deepspeed_write(rank: int, root: str, stage: int) -> None:
    import torch

    engine = _engine(stage)
    for step in range(1, STEPS[-1] + 1):
        engine.backward(engine(torch.ones(1, 8)).sum())
        engine.step()
        if step in STEPS:
            engine.save_checkpoint(root)


def _deepspeed_load(rank: int, root: str, entry: str, stage: int) -> None:
    engine = _engine(stage)
    path, _ = engine.load_checkpoint(root, tag=entry)
    assert path is not None, "nothing was loaded"
    if rank == 0:
        print(engine.global_steps)


def write_deepspeed_zero1(root: str) -> None:
    spawn(_deepspeed_write, root, 1)


def load_deepspeed_zero1(root: str, entry: str) -> None:
    spawn(_deepspeed_load, root, entry, 1)


def write_deepspeed_zero3(root: str) -> None:
    spawn(_deepspeed_write, root, 3)


def load_deepspeed_zero3(root: str, entry: str) -> None:
    spawn(_deepspeed_load, root, entry, 3)


def _experts_engine() -> Any:
    """Two layers of experts, half of each on each rank; ZeRO-1."""
    import deepspeed
    import torch
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    torch.manual_seed(1)
    layers = [MoE(8, torch.nn.Linear(8, 8), num_experts=4, ep_size=WORLD) for _ in range(2)]
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), *layers)
    groups = split({"params": list(model.parameters()), "name": "all"})
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)[0]


def _experts_write(rank: int, root: str) -> None:
    engine = _experts_engine()
    for step in STEPS:  # experts talk in a way that gloo cannot, so nothing is trained
        engine.global_steps = step
        engine.save_checkpoint(root)


def _experts_load(rank: int, root: str, entry: str) -> None:
    engine = _experts_engine()
    path, _ = engine.load_checkpoint(root, tag=entry)
    assert path is not None, "nothing was loaded"
    if rank == 0:
        print(engine.global_steps)


def write_deepspeed_experts(root: str) -> None:
    spawn(_experts_write, root)


def load_deepspeed_experts(root: str, entry: str) -> None:
    spawn(_experts_load, root, entry)


def write_deepspeed_universal(root: str) -> None:
    """The converter of the library; it writes `latest_universal` itself."""
    from deepspeed.checkpoint import ds_to_universal

    write_deepspeed_zero1(root)
    tag = f"{root}/global_step{STEPS[-1]}"
    sys.argv = ["ds_to_universal", "--input_folder", tag, "--output_folder", f"{tag}_universal"]
    sys.argv += ["--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    ds_to_universal.main(ds_to_universal.parse_arguments())
    for step in STEPS[:-1]:
        shutil.rmtree(f"{root}/global_step{step}")


# --- Hugging Face Trainer


def _trainer(root: str) -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=8,
    )  # fmt: skip
    samples = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(i % 2)} for i in range(8)]
    settings = TrainingArguments(
        output_dir=root, max_steps=STEPS[-1], save_steps=10, per_device_train_batch_size=2, use_cpu=True,
        report_to=[], eval_strategy="steps", eval_steps=10, load_best_model_at_end=True, disable_tqdm=True,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    return Trainer(model=model, args=settings, train_dataset=samples, eval_dataset=samples)


def write_hf_trainer(root: str) -> None:
    _trainer(root).train()


def load_hf_trainer(root: str, entry: str) -> None:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        started: int | None = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            Stop.started = state.global_step if Stop.started is None else Stop.started
            control.should_training_stop = True

    trainer = _trainer(root + ".elsewhere")
    trainer.args.max_steps = STEPS[-1] + 1
    trainer.args.load_best_model_at_end = False
    trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=f"{root}/{entry}")
    shutil.rmtree(root + ".elsewhere", ignore_errors=True)
    print(Stop.started)


# --- Lightning


def _lightning(root: str, steps: int) -> Any:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 4})
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _number: int) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    saves = ModelCheckpoint(dirpath=root, every_n_train_steps=10, save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", callbacks=[saves], logger=False, enable_progress_bar=False
    )
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=1)
    return trainer, Model(), data


def write_lightning(root: str) -> None:
    trainer, model, data = _lightning(root, STEPS[-1])
    trainer.fit(model, data)


def load_lightning(root: str, entry: str) -> None:
    trainer, model, data = _lightning(root + ".elsewhere", STEPS[-1] + 1)
    resumed: list[int] = []
    model.on_train_start = lambda: resumed.append(trainer.global_step)
    trainer.fit(model, data, ckpt_path=f"{root}/{entry}", weights_only=False)
    shutil.rmtree(root + ".elsewhere", ignore_errors=True)
    print(resumed[0])


# --- Orbax


def write_orbax(root: str) -> None:
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(max_to_keep=5)) as manager:
        for step in STEPS:
            noise = jax.random.uniform(jax.random.key(step), (32, 32))  # too large to be kept in the tree itself
            state = {"weight": jnp.full((64, 64), step) + jnp.arange(64), "step": jnp.int32(step), "noise": noise}
            manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state)))


def load_orbax(root: str, entry: str) -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(root) as manager:
        step = int(entry.partition(".")[0])  # the manager is asked for steps, not for folders
        assert step in manager.all_steps(), f"{step} is none of {manager.all_steps()}"
        wanted = {
            "weight": jnp.zeros((64, 64), jnp.int32), "step": jnp.int32(0), "noise": jnp.zeros((32, 32), jnp.float32)
        }  # fmt: skip
        state = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(wanted))).state
    assert (state["weight"][:, 0] == step).all()
    print(int(state["step"]))


LIBRARIES = (
    "dcp", "torch_dist", "deepspeed_zero1", "deepspeed_zero3", "deepspeed_experts", "deepspeed_universal",
    "hf_trainer", "lightning", "orbax",
)  # fmt: skip

if __name__ == "__main__":
    action, library, *rest = sys.argv[1:]
    globals()[f"{action}_{library}"](*rest)

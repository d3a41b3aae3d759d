"""Checkpoints in shards: read by any number of processes as they were saved, and refused where they are damaged."""

import random
import re
import shutil

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from worlds import in_processes
from zoo_scale.shards import ShardWriter, empty_share, take_tensors

from zoo.cli import main
from zoo.errors import CheckpointError
from zoo.inference.weight_files import read_checkpoint, read_tensors
from zoo.io import checkpoint_manifest
from zoo.training.checkpoint import AtomicCheckpointIO

TYPES = (torch.float32, torch.float64, torch.bfloat16)


def draw_state(seed):
    """A state as that of a run: matrices and vectors of sizes that processes cannot divide evenly, numbers, options."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    shapes = [*((draw.randint(1, 9), draw.randint(1, 5)) for _ in range(4)), (1,), (7,), (2, 3, 4)]
    weights = {
        f"net.blocks.{n}.weight": torch.randn(shape, generator=numbers).to(draw.choice(TYPES))
        for n, shape in enumerate(shapes)
    }
    moments = {
        n: {"step": torch.tensor(float(n)), "exp_avg": torch.randn(weight.shape, generator=numbers), "flag": None}
        for n, weight in enumerate(weights.values())
    }
    options = [{"lr": 0.1, "betas": (0.9, 0.99), "params": list(moments)}]
    return {
        "state_dict": {**weights, "tokens_seen": torch.tensor(seed)},
        "optimizer_states": [{"state": moments, "param_groups": options}],
        **{"global_step": 3, "epoch": 0, "saves": seed, "ranks": [torch.arange(3)]},
    }


def divide(value, mesh, name=""):
    """The state with every floating-point tensor that has dimensions divided, as fully_shard does."""
    if isinstance(value, torch.Tensor):
        return distribute_tensor(value, mesh, [Shard(0)]) if value.dim() and value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: divide(member, mesh) if key not in ("ranks",) else member for key, member in value.items()}
    return [divide(member, mesh) for member in value] if isinstance(value, list) else value


def write_state(rank, world, port, folder, seed, in_background):
    """Run in each process: write a state, which training changes at once, and publish it in the first process."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    content = divide(draw_state(seed), init_device_mesh("cpu", (world,)))
    tensors = list(content["state_dict"].values())
    shards = ShardWriter().write(content, folder, in_background)
    for tensor in tensors if in_background else ():
        tensor.add_(1)
    content["shards"] = shards.result()
    if rank == 0:
        AtomicCheckpointIO({}).save_checkpoint(content, folder / "last.ckpt")
    dist.barrier()
    dist.destroy_process_group()


def read_shares(rank, world, port, folder, seed):
    """Run in each process: read the own share alone, and compare it with that of the state."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    expected = divide(draw_state(seed)["state_dict"], mesh)

    def empty(size, dtype, name):
        return empty_share(size, dtype, expected.get(name.removeprefix("state_dict.")))

    actual = read_checkpoint(folder / "last.ckpt", empty=empty)["state_dict"]
    for name, tensor in expected.items():
        assert type(actual[name]) is type(tensor)
        share, right = (value.to_local() if hasattr(value, "to_local") else value for value in (actual[name], tensor))
        assert torch.equal(share, right), name
    dist.barrier()
    dist.destroy_process_group()


def assert_equal(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_equal(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            assert_equal(a, b)
    else:
        assert actual == expected


@pytest.mark.parametrize(
    ("before", "after", "in_background"), [(1, 4, True), (2, 1, False), (2, 4, True), (4, 2, True)]
)
def test_any_number_of_processes_reads_what_another_number_wrote(tmp_path, before, after, in_background):
    seed = 10 * before + after
    in_processes(write_state, before, tmp_path, seed, in_background)
    in_processes(read_shares, after, tmp_path, seed)
    assert_equal(read_checkpoint(tmp_path / "last.ckpt"), draw_state(seed))
    tensors = read_tensors(tmp_path / "last.ckpt")
    assert_equal(dict(tensors), draw_state(seed)["state_dict"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    in_processes(write_state, 2, folder, 5, False)
    return folder


def shard_files(folder):
    return sorted((folder / "shards").glob("*/*.safetensors"))


def change_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a byte is another": lambda folder: change_byte(shard_files(folder)[0]),
    "a shard is missing": lambda folder: shard_files(folder)[1].unlink(),
    "a shard is empty": lambda folder: shard_files(folder)[0].write_bytes(b""),
    "a shard ends early": lambda folder: shard_files(folder)[0].write_bytes(shard_files(folder)[0].read_bytes()[:-9]),
    "a header is damaged": lambda folder: shard_files(folder)[1].write_bytes(b"\xff" * 64),
    "the folder is missing": lambda folder: shutil.rmtree(folder / "shards"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_shards_are_refused_with_and_without_a_manifest(saved, tmp_path, damage):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    DAMAGES[damage](folder)
    with pytest.raises(CheckpointError, match="shard"):
        checkpoint_manifest.verify(folder / "last.ckpt")
    assert checkpoint_manifest.newest_intact(folder).path is None
    shutil.rmtree(folder / checkpoint_manifest.FOLDER)
    with pytest.raises(CheckpointError, match="shard"):
        read_checkpoint(folder / "last.ckpt")


@pytest.mark.parametrize("name", ["../written", "..", "", "a/b", "/etc", 3, None])
def test_shards_lie_beside_their_checkpoint(tmp_path, name):
    content = {**draw_state(1), "shards": {"folder": name, "files": {}}}
    take_tensors(content, False)
    torch.save(content, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match="names its shards"):
        read_checkpoint(tmp_path / "last.ckpt")


def test_unused_shards_are_removed_and_used_ones_stay(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "shards" / "000009-ffffffff").mkdir()
    digest = checkpoint_manifest.sha256(folder / "last.ckpt")
    checkpoint_manifest.prune(folder, {digest})
    assert checkpoint_manifest.verify(folder / "last.ckpt")["shards"]["folder"] == shard_files(folder)[0].parent.name
    assert len(list((folder / "shards").iterdir())) == 1
    checkpoint_manifest.prune(folder, set())
    assert not list((folder / "shards").iterdir())


def write_where_a_file_is(rank, world, port, folder):
    """Run in each process: no process can make the folder, and all raise the reason."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    content = divide(draw_state(1), init_device_mesh("cpu", (world,)))
    with pytest.raises(OSError, match="shards"):
        ShardWriter().write(content, folder, rank < 0).result()
    dist.barrier()
    dist.destroy_process_group()


def test_a_folder_that_cannot_be_made_is_an_error_in_every_process(tmp_path):
    (tmp_path / "shards").write_text("a file")
    in_processes(write_where_a_file_is, 2, tmp_path)


@pytest.mark.campaign
def test_a_sharded_run_is_measured_by_its_strategy_and_without(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    words = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--trainer.max_steps", "2"]
    words += ["--trainer.limit_val_batches", "2", "--trainer.accelerator", "cpu", "--trainer.devices", "1"]
    words += ["--trainer.precision", "32-true", "--trainer.strategy", "fsdp2", "--save", "sharded", "--name", "run"]
    assert main(["fit", "lm-tiny", *words]) == 0
    capsys.readouterr()
    losses = []
    for strategy in ("fsdp2", "auto"):
        assert main(["validate", "runs/lm-tiny/run/s1", "--trainer.strategy", strategy]) == 0
        losses.append(re.search(r"val/loss (\S+)", capsys.readouterr().out)[1])
    assert losses[0] == losses[1]
    commands = (["generate", "--prompt", "x"], ["test"], ["export", "exported"])
    for damage, (code, message) in {
        "manifests": (5, "its shard .* is missing or has changed"),
        "checkpoints": (2, "no checkpoint in"),
    }.items():  # a changed byte that no manifest tells of, and a run that was killed before its first checkpoint
        for command, *options in commands:
            home = tmp_path / "copies" / damage
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree("runs/lm-tiny/run/s1", home)
            for shard in shard_files(home / "checkpoints"):
                change_byte(shard)
            for path in [home / "checkpoints/manifests"] if damage == "manifests" else (home / "checkpoints").glob("*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            assert main([command, str(home), *options]) == code, (command, damage)
            assert re.search(message, capsys.readouterr().err), (command, damage)

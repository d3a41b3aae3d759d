"""What cannot be imported or exported is refused, with what is wrong by its name; a swap is accounted for."""

import json
import pickle
import weakref

import pytest
import torch
from import_steps import imported, loaded
from safetensors.torch import load_file, save_file
from zoo_pretrained import hf_files, tensor_mapping
from zoo_pretrained.family import budget
from zoo_pretrained.gpt2 import GPT2
from zoo_pretrained.hf_export import export_pretrained

from zoo.cli import main
from zoo.errors import CheckpointError, UsageError
from zoo.inference import weight_files
from zoo.inference.rebuild_task import complete_options
from zoo.inference.weight_files import LazyTensors
from zoo.parts.ffn import SwiGLU

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 11, "n_positions": 8, "n_embd": 8,
    "n_layer": 2, "n_head": 2,
}  # fmt: skip


@pytest.fixture
def theirs(tmp_path):
    """A GPT-2 checkpoint, made from our own model by the family's rules backwards."""
    from zoo.inference.rebuild_task import rebuild_task
    from zoo.inference.weight_files import keep_own_tensors

    config = GPT2().complete(CONFIG, "config.json")
    model = complete_options({"class_path": GPT2.task, "init_args": GPT2().options(config)})
    folder = tmp_path / "theirs"
    folder.mkdir()
    tensors = tensor_mapping.write_published(
        keep_own_tensors(rebuild_task({"model": model}, folder).net), GPT2().map_tensors(config)
    )
    save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def changed(folder, **options):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **options}))


def edited(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_an_unknown_key_is_named(theirs, tmp_path):
    edited(theirs, lambda tensors: tensors.update({"transformer.h.0.extra": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"unknown transformer\.h\.0\.extra"):
        imported(theirs, tmp_path / "ours")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_beside_the_weights_is_refused(theirs, tmp_path, name):
    (theirs / name).write_text("{}")
    with pytest.raises(CheckpointError, match=rf"{name} belongs to an adapter, .* Merge it"):
        imported(theirs, tmp_path / "ours")


@pytest.mark.parametrize("key", ["transformer.wpe.weight", "transformer.h.1.mlp.c_fc.bias"])
def test_a_missing_key_is_named(theirs, tmp_path, key):
    edited(theirs, lambda tensors: tensors.pop(key))
    ours = {"transformer.wpe.weight": "position.table.weight"}.get(key, r"blocks\.1\.ffn\.part\.up\.bias")
    with pytest.raises(CheckpointError, match=f"no tensor for stack.{ours}"):
        imported(theirs, tmp_path / "ours")


def test_a_differing_shape_is_named(theirs, tmp_path):
    changed(theirs, n_positions=9)
    with pytest.raises(CheckpointError, match=r"wpe\.weight is \(8, 8\) where the configuration says \(9, 8\)"):
        imported(theirs, tmp_path / "ours")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.int64])
def test_quantised_weights_are_named(theirs, tmp_path, dtype):
    key = "transformer.h.0.mlp.c_fc.weight"
    edited(theirs, lambda tensors: tensors.update({key: tensors[key].to(dtype)}))
    with pytest.raises(CheckpointError, match=rf"{key} holds {dtype}: quantised weights are not read"):
        imported(theirs, tmp_path / "ours")


def test_a_deeper_configuration_and_a_shallower_one_are_refused(theirs, tmp_path):
    changed(theirs, n_layer=3)
    with pytest.raises(CheckpointError, match=r"no tensor for stack\.blocks\.2"):
        imported(theirs, tmp_path / "ours")
    changed(theirs, n_layer=1)
    with pytest.raises(CheckpointError, match=r"has transformer\.h\.1.*no place for it"):
        imported(theirs, tmp_path / "ours")


def test_a_copy_that_differs_from_what_it_is_tied_to_is_refused(theirs, tmp_path):
    edited(theirs, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].clone()}))
    imported(theirs, tmp_path / "ours")
    edited(theirs, lambda tensors: tensors["lm_head.weight"].add_(1))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from transformer\.wte\.weight"):
        imported(theirs, tmp_path / "again")


def test_a_tied_matrix_may_have_its_second_name_alone(theirs, tmp_path):
    before = dict(imported(theirs, tmp_path / "ours").tensors)
    edited(theirs, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("transformer.wte.weight")}))
    after = imported(theirs, tmp_path / "again").tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_masks_are_no_weights_and_keys_may_lack_the_prefix(theirs, tmp_path):
    def change(tensors):
        for key in list(tensors):
            tensors[key.removeprefix("transformer.")] = tensors.pop(key)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    edited(theirs, change)
    assert imported(theirs, tmp_path / "ours").constants == ["transformer.h.0.attn.bias"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "musicgen"}, "model_type='musicgen' is no family"),
        ({"architectures": ["GPT2ForSequenceClassification"]}, "GPT2ForSequenceClassification is not read"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ({"activation_function": "mish"}, "activation 'mish' is not supported"),
    ],
)
def test_a_configuration_that_no_part_expresses_is_refused(theirs, tmp_path, options, message):
    changed(theirs, **options)
    with pytest.raises(UsageError, match=message):
        imported(theirs, tmp_path / "ours")


class Bomb:
    def __reduce__(self):
        return (print, ("boom",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "flax_model.msgpack"])
def test_a_pickle_is_refused_unread(theirs, tmp_path, capsys, name):
    (theirs / "model.safetensors").unlink()
    (theirs / name).write_bytes(pickle.dumps(Bomb()))
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 5
    message = capsys.readouterr()
    assert "may hold code that runs when it is loaded" in message.err
    assert "boom" not in message.out


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module."])
def test_names_of_a_wrapped_model_are_read_without_its_prefix(theirs, tmp_path, prefix):
    before = dict(imported(theirs, tmp_path / "ours").tensors)
    edited(theirs, lambda tensors: [tensors.update({prefix + name: tensors.pop(name)}) for name in list(tensors)])
    after = imported(theirs, tmp_path / "again").tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


class TestShards:
    @pytest.fixture
    def sharded(self, theirs):
        tensors = load_file(theirs / "model.safetensors")
        (theirs / "model.safetensors").unlink()
        where = {key: f"model-{1 + n % 2:05}-of-00002.safetensors" for n, key in enumerate(sorted(tensors))}
        for name in set(where.values()):
            save_file({key: tensors[key] for key in tensors if where[key] == name}, theirs / name)
        (theirs / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        return theirs

    def test_are_read_as_one(self, sharded, tmp_path):
        assert len(imported(sharded, tmp_path / "ours").tensors) == 28

    def test_only_what_one_tensor_is_made_of_is_in_memory(self, sharded, tmp_path, monkeypatch):
        alive, most = {}, []
        get = torch.Tensor.nbytes.__get__

        class Watched(LazyTensors):
            def __getitem__(self, name):
                tensor = super().__getitem__(name)
                alive[id(tensor)] = get(tensor)
                weakref.finalize(tensor, alive.pop, id(tensor))
                most.append(sum(alive.values()))
                return tensor

        opened = weight_files.open_tensors
        monkeypatch.setattr(weight_files, "open_tensors", lambda path: Watched(opened(path).forms, opened(path).read))
        assert main(["import", str(sharded), str(tmp_path / "ours")]) == 0
        forms = opened(tmp_path / "ours" / "model.safetensors").forms
        assert len(most) >= 28
        sizes = [get(form) for form in forms.values()]
        assert max(most) <= 2 * max(sizes) < sum(sizes) / 3

    def test_are_written_where_one_file_would_be_large_and_read_by_the_peer(self, theirs, tmp_path, monkeypatch):
        transformers = pytest.importorskip("transformers", reason="loads what zoo writes")
        monkeypatch.setattr(hf_files, "SHARD", 1500)
        assert main(["import", str(theirs), str(tmp_path / "ours")]) == 0
        for number, dtype in enumerate(("fp32", "bf16")):
            again = tmp_path / str(number)
            assert main(["export", str(tmp_path / "ours"), str(again), "--format", "hf", "--dtype", dtype]) == 0
            assert len(list(again.glob("model-*-of-*.safetensors"))) == (7, 3)[number]
            kind = torch.bfloat16 if dtype == "bf16" else torch.float32
            model, info = transformers.AutoModelForCausalLM.from_pretrained(again, dtype=kind, output_loading_info=True)
            assert not any(info.values())
            mine = load_file(theirs / "model.safetensors")
            assert all(torch.equal(mine[name].to(kind), tensor) for name, tensor in model.state_dict().items()
                       if name in mine)  # fmt: skip
            assert main(["import", str(again), str(tmp_path / "back"), "--force", "--dtype", "fp32"]) == 0
            back = load_file(tmp_path / "back" / "model.safetensors")
            assert {tensor.dtype for tensor in back.values() if tensor.is_floating_point()} == {torch.float32}
        monkeypatch.undo()
        assert main(["export", str(tmp_path / "ours"), str(again), "--format", "hf", "--force"]) == 0
        assert sorted(file.name for file in again.iterdir()) == ["config.json", "model.safetensors"]

    def test_that_are_missing_are_named(self, sharded, tmp_path):
        (sharded / "model-00002-of-00002.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
            imported(sharded, tmp_path / "ours")

    def test_outside_of_the_folder_are_refused(self, sharded, tmp_path):
        (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
        with pytest.raises(CheckpointError, match="beside it was expected"):
            imported(sharded, tmp_path / "ours")

    def test_that_lack_what_the_index_says_are_refused(self, sharded, tmp_path):
        index = sharded / "model.safetensors.index.json"
        where = json.loads(index.read_text())["weight_map"]
        index.write_text(json.dumps({"weight_map": {**where, "gone": "model-00001-of-00002.safetensors"}}))
        with pytest.raises(CheckpointError, match="lacks gone"):
            imported(sharded, tmp_path / "ours")


def test_a_swapped_norm_keeps_its_gains_and_everything_else_and_says_so(theirs, tmp_path, capsys):
    ours = tmp_path / "ours"
    assert main(["import", str(theirs), str(ours), "--model.norm", "rmsnorm"]) == 0
    output = capsys.readouterr().out
    assert "left out: 5 tensors, 40 numbers" in output  # the shifts that RMSNorm has not: 2 per layer and the last
    assert "new: 0 tensors" in output
    assert "kept: 15 tensors" in output
    assert "converted: 8 tensors" in output  # four turned matrices per layer
    model = loaded(ours)
    assert type(model.net.stack.norm).__name__ == "RMSNorm"
    with pytest.raises(UsageError, match=r"gpt2 has model\.norm LayerNorm and not RMSNorm"):
        export_pretrained(model, tmp_path / "again")


def test_a_swapped_feed_forward_is_newly_initialised(theirs, tmp_path, capsys):
    assert main(["import", str(theirs), str(tmp_path / "ours"), "--model.ffn", "swiglu"]) == 0
    output = capsys.readouterr().out
    assert "new: 4 tensors" in output
    assert "stack.blocks.*.ffn.part.up.weight (42, 8) × 2" in output
    assert "left out: 8 tensors" in output
    assert loaded(tmp_path / "ours").net.stack.blocks[0].ffn.part.up.weight.std() > 0


def test_a_model_of_no_family_is_not_exported(theirs, tmp_path, capsys):
    assert main(["import", str(theirs), str(tmp_path / "ours"), "--model.block", "sandwich"]) == 0
    with pytest.raises(UsageError, match=r"gpt2 has model\.block PreNorm and not Sandwich"):
        export_pretrained(loaded(tmp_path / "ours"), tmp_path / "again")


def test_a_full_folder_is_not_overwritten_and_options_are_checked(theirs, tmp_path, capsys):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "x").touch()
    assert main(["import", str(theirs), str(tmp_path / "ours")]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["import", str(theirs), str(tmp_path / "ours"), "--force"]) == 0
    assert main(["import", str(theirs)]) == 2
    assert main(["import", str(theirs), "x", "--frmat"]) == 2
    assert main(["import", str(tmp_path / "nowhere"), "x"]) == 2


@pytest.mark.parametrize("width", range(1, 12))
def test_a_gated_feed_forward_of_a_family_has_exactly_its_width(width):
    assert SwiGLU(8, budget(width)).down.in_features == width


@pytest.mark.parametrize("text", ["\x1b[31mown", "\x08own", "a\u202eb", "\x9b2J", "a\u2028b"])
def test_no_foreign_control_is_printed(text, tmp_path, capsys):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/config.json").write_text(json.dumps({"model_type": text, "architectures": [text]}))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 2
    assert text not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("gpt2", "zoo import hf://ORG/NAME OUT"),
        ("org/gpt2", "zoo import hf://org/gpt2 OUT"),
        ("https://hub.example/gpt2", "is hf://ORG/gpt2\n"),
        ("https://hub.example/org/gpt2/", "is hf://org/gpt2\n"),
        ("https://hub.example/org/gpt2/tree/v1", "is hf://org/gpt2@v1\n"),
        ("https://hub.example/org/gpt2/blob/v1/config.json", "is hf://org/gpt2@v1\n"),
    ],
)
def test_a_name_of_the_hub_is_answered_with_how_to_get_it(name, right, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["import", name, "out"]) == 2
    assert right in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "model-00001-of-00002.safetensors"]
)
def test_a_link_whose_file_was_not_copied_is_named(name, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("../../blobs/0a1b")
    with pytest.raises(UsageError, match=rf"{name} is a link to \.\./\.\./blobs/0a1b, which is not there"):
        hf_files.config(tmp_path)

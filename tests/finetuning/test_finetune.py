"""Fine-tuning: what is taken over, what stays frozen, what learns how fast, and that nothing is lost in silence."""

import json
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from zoo import recipe_files
from zoo.cli import main
from zoo.config import fit_options, run_config
from zoo.data.image_decoding import middle_square, prepare_published
from zoo.data.image_sources import ImageFolder
from zoo.errors import UsageError
from zoo.finetuning.finetune import Tune, class_tensors, depth_of, network_of, prepare_task
from zoo.finetuning.weight_transfer import transfer_weights
from zoo.inference import weight_files
from zoo.inference.find_run import ModelLocation, find_model
from zoo.inference.rebuild_task import rebuild_task
from zoo.models.language import LanguageModel
from zoo.models.seq2seq import Seq2Seq
from zoo.models.vit import ViT
from zoo.parts.attention import MultiHead
from zoo.parts.disentangled import Disentangled
from zoo.parts.ffn import MLP, SwiGLU
from zoo.parts.lora import merge
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.position import T5, Learned, NoPosition, RoPE
from zoo.parts.shaw import Shaw
from zoo.tasks.classification import Classification
from zoo.tasks.lm import CausalLM

TINY = {"dim": 16, "depth": 3, "heads": 2}
SMALL = ["--model.dim", "16", "--model.depth", "3", "--model.heads", "2", "--trainer.accelerator", "cpu"]
SMALL += ["--trainer.logger", "false", "--trainer.max_steps", "4", "--trainer.val_check_interval", "4"]


def test_a_swapped_part_is_new_and_told():
    old = LanguageModel(50, 16, **TINY)
    new = LanguageModel(50, 16, norm=RMSNorm, ffn=SwiGLU, **TINY)
    result = transfer_weights(new, old.state_dict(), "x")
    assert result.reshaped["stack.blocks.0.ffn.part.up.weight"] == ((64, 16), (84, 16))
    assert "stack.blocks.0.attend.norm.bias" in result.unused
    assert "stack.blocks.0.attend.part.qkv.weight" in result.copied
    assert len(result.rows()) == len(new.state_dict()) + len(result.unused)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": ["stack.block.*"]}, "no parameter is called 'stack.block.*'. One of them is 'stack.blocks"),
        ({"freeze": ["*"]}, "nothing would be trained"),
        ({"layer_decay": 0.0}, "layer_decay"),
        ({"layer_decay": 1.5}, "layer_decay"),
        ({"thaw": 3}, "give both"),
        ({"freeze": ["head.*"], "thaw_every": 3}, "give both"),
        ({"rank": 4}, "--tune.start"),
        *(({"start": "a", "rank": 4, "alpha": alpha}, "tune.alpha must be above 0") for alpha in (0, -1.0, inf, nan)),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(UsageError, match=r".*") as refused:
        prepare_task(CausalLM(50, 16, **TINY), Tune(**options), "runs")
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["vit-tiny", "transfer-glyphs", "topics-tiny", "roles-tiny", "long-topics-tiny",
                                  "topics-cnn", "topics-fasttext", "clips-tiny"])  # fmt: skip
def test_tensors_of_classes_are_those_whose_shape_their_number_decides(name):
    if all(recipe.name != name for recipe in recipe_files.recipes()):
        pytest.skip("its package is not installed")
    parsed = fit_options.parse("fit", [name])
    plan = run_config.make_plan(parsed, run_config.read_draft(parsed))
    options = plan.config["model"]["init_args"]
    sizes = plan.resolved.classes["model"].small_sizes(options)
    options |= {key: value for key, value in sizes.items() if options.get(key) is None} | {"num_classes": 13}
    place = ModelLocation(Path("nowhere"), Path("nowhere"), plan.config, Path(name))
    tensors = network_of(place).state_dict()
    names = class_tensors(place)
    assert names
    assert all(13 in tensors[tensor].shape for tensor in names)
    assert len(names) < len(tensors) / 2


def test_a_matrix_with_the_same_numbers_in_another_shape_is_not_taken_over():
    new, old = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(*sizes)) for sizes in ((4, 8), (8, 4)))
    before = new[1].weight.clone()
    result = transfer_weights(new, old.state_dict(), "x")
    assert result.reshaped == {"1.weight": ((4, 8), (8, 4)), "1.bias": ((4,), (8,))}
    assert torch.equal(new[1].weight, before)


def language_model(position=NoPosition, max_length=16, **parts):
    net = LanguageModel(9, max_length, dim=8, depth=2, position=position, **{"heads": 2} | parts)
    for tensor in net.parameters():  # positions matter from the first step on
        torch.nn.init.normal_(tensor, std=0.5)
    return net.eval()


def longer_tables(kind, seed):
    """A language model, and one with at least as many places or distances: equal functions of short texts."""
    draw = np.random.default_rng(seed)
    short, more = (int(size) for size in draw.integers(2, 7, 2))
    options = {
        "Shaw": lambda size: {"attention": partial(Shaw, max_distance=size, values=bool(seed % 2))},
        "Disentangled": lambda size: {"attention": partial(Disentangled, span=size, max_distance=None)},
        "offset": lambda size: {"position": partial(Learned, offset=size)},
        "length": lambda size: {"position": Learned, "max_length": 10 + size},
    }[kind]
    return language_model(**options(short)), language_model(**options(short + more))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["Shaw", "Disentangled", "offset", "length"])
def test_longer_tables_of_places_leave_the_function_as_it_was(kind, seed):
    old, new = longer_tables(kind, seed)
    tokens = torch.randint(9, (2, 10), generator=torch.Generator().manual_seed(seed))
    result = transfer_weights(new, old.state_dict(), "x", old)
    assert result.moved
    assert [result.new, result.reshaped, result.extended] == [{}, {}, {}]
    torch.testing.assert_close(new(tokens), old(tokens))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["Shaw", "Disentangled", "offset", "length"])
def test_tables_of_another_length_are_new_where_nobody_says_what_their_rows_stand_for(kind, seed):
    old, new = longer_tables(kind, seed)
    before = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    result = transfer_weights(new, old.state_dict(), "x")
    assert result.reshaped
    assert not result.extended
    assert all(torch.equal(new.state_dict()[name], before[name]) for name in result.reshaped)


@pytest.mark.parametrize("seed", range(12))
def test_a_bucket_takes_the_row_of_its_nearest_distance(seed):
    """T5's and DeBERTa's buckets widen with distance: whatever the sizes, near distances keep their vectors."""
    draw = np.random.default_rng(seed)
    sizes = [int(size) for size in draw.integers(2, 9, 2)]
    far = [int(4 * size + draw.integers(2, 60)) for size in sizes]
    if seed % 2:
        pairs = zip(sizes, far, strict=True)
        old, new = (language_model(partial(T5, num_buckets=4 * size, max_distance=most)) for size, most in pairs)
        near, parts = 2 * min(sizes), [net.stack.position for net in (old, new)]
        read = lambda: [[p.table[0, int(p.bucket(torch.tensor(-d)))].clone() for d in range(near)] for p in parts]  # noqa: E731
    else:
        pairs = zip(sizes, far, strict=True)
        old, new = (
            language_model(attention=partial(Disentangled, span=size, max_distance=most)) for size, most in pairs
        )
        near, parts = min(sizes) // 2 + 1, [net.stack.blocks[1].attend.part for net in (old, new)]
        read = lambda: [  # noqa: E731
            [p.places.table.weight[int(p.row(torch.tensor(d)))].clone() for d in range(-near + 1, near)] for p in parts
        ]
    transfer_weights(new, old.state_dict(), "x", old)
    for theirs, ours in zip(*read(), strict=True):
        assert torch.equal(theirs, ours)


def vit(size=16, pool="cls", registers=0):
    sizes = {"image_size": size, "channels": 1, "patch_size": 4, "dim": 8, "depth": 1, "heads": 2}
    return ViT(3, pool=pool, registers=registers, position=Learned, **sizes)


@pytest.mark.parametrize("seed", range(12))
def test_special_tokens_and_patches_keep_their_vectors(seed):
    """Other registers, another pooling, another offset of both: each place of both models keeps its vector."""
    draw = np.random.default_rng(seed)
    old, new = (vit(pool=str(draw.choice(["cls", "mean"])), registers=int(draw.integers(4))) for _ in range(2))
    before = new.stack.position.table.weight.clone()
    transfer_weights(new, old.state_dict(), "x", old)

    def places(net, table):
        first, registers = net.stack.position.first, 0 if net.registers is None else net.registers.weight.shape[1]
        names = ["cls"] * (net.cls is not None) + [f"register {n}" for n in range(registers)]
        return dict(zip([*names, *range(16)], table[first - len(names) :], strict=True))

    vectors = places(old, old.stack.position.table.weight)
    fresh = places(new, before)
    for place, vector in places(new, new.stack.position.table.weight).items():
        assert torch.equal(vector, vectors.get(place, fresh[place])), place


@pytest.mark.parametrize(("size", "registers"), [(20, 0), (12, 0), (48, 2), (16, 1)])
def test_a_grid_of_another_size_is_interpolated_as_timm_does(size, registers):
    from timm.layers import resample_abs_pos_embed

    old, new = vit(16, registers=1), vit(size, registers=registers)
    result = transfer_weights(new, old.state_dict(), "x", old)
    table, first = old.stack.position.table.weight, old.stack.position.first
    right = resample_abs_pos_embed(table[None, first:].detach(), [size // 4] * 2, [4, 4], num_prefix_tokens=0)[0]
    torch.testing.assert_close(new.stack.position.table.weight[new.stack.position.first :], right)
    assert ("stack.position.table.weight" in result.moved) == (size != 16 or registers != 1)


def test_a_part_with_a_table_of_its_own_is_not_extended_from_its_first_row():
    """What the rows of a stranger's table stand for is not known: another length of it is new."""

    class Table(NoPosition):
        def __init__(self, dim, heads, extent, rows=4):
            super().__init__(dim, heads, extent)
            self.table = torch.nn.Embedding(rows, dim)

    old, new = (language_model(partial(Table, rows=rows)) for rows in (4, 7))
    result = transfer_weights(new, old.state_dict(), "x", old)
    assert result.reshaped == {"stack.position.table.weight": ((4, 8), (7, 8))}


def test_a_run_starts_from_one_with_other_registers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    small = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2", "--model.patch_size", "7", *SMALL]
    small += ["--model.position", "Learned", "--runs", str(tmp_path), "--data.batch_size", "8"]
    assert main(["fit", "vit-glyphs", "--name", "old", *small]) == 0
    start = str(tmp_path / "vit-glyphs" / "old" / "s1")
    assert main(["fit", "vit-glyphs", "--name", "new", *small, "--tune.start", start, "--model.registers", "2"]) == 0
    assert "moved     1 tensor" in capsys.readouterr().out


@pytest.mark.parametrize(
    "start", ["in its own folder", "a recipe's newest run", "its checkpoint", "its configuration", "its state"]
)
def test_a_run_is_not_replaced_by_one_that_reads_it(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    options = ["--name", "a", *SMALL, "--runs", str(tmp_path), "--data.batch_size", "8"]
    assert main(["fit", "lm-tiny", *options]) == 0
    home = tmp_path / "lm-tiny" / "a" / "s1"
    before = {path: path.read_bytes() for path in sorted(home.rglob("*.ckpt"))}
    again = {
        "in its own folder": ["--tune.start", str(home)],
        "a recipe's newest run": ["--tune.start", "lm-tiny"],
        "its checkpoint": ["--tune.start", str(next(iter(before)))],
        "its configuration": ["--data.tokenizer", str(home / "tokenizer.json")],
        "its state": ["--ckpt_path", str(next(iter(before)))],
    }[start]
    assert main(["fit", "lm-tiny", *options, "--overwrite", *again]) == 2
    assert "which --overwrite would delete. Keep both: --name NAME" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in sorted(home.rglob("*.ckpt"))} == before


def test_with_adapters_every_tensor_with_new_numbers_learns_and_no_other(tmp_path, monkeypatch):
    """More tokens, more places, a swapped feed-forward and an adapted head: no random number stays as it is."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    parts = ["--model.position", "Learned", "--model.ffn", "MLP", "--model.tie", "false", "--data.batch_size", "8"]
    assert main(["fit", "lm-tiny", "--name", "old", "--runs", str(tmp_path), *SMALL, *parts]) == 0
    start = str(tmp_path / "lm-tiny/old/s1")
    old = find_model(start, tmp_path).config["model"]["init_args"]
    sizes = {"vocab_size": old["vocab_size"] + 3, "max_length": old["max_length"] + 5, "tie": False}
    task = CausalLM(**sizes, **TINY, position=Learned, norm=RMSNorm, ffn=SwiGLU)
    new = 7.0
    with torch.no_grad():
        for parameter in task.parameters():
            parameter.fill_(new)
    transferred = prepare_task(task, Tune(start=start, rank=2, adapters=["*blocks.*", "head"]), tmp_path)
    tables = {"embedding.weight", "head.weight", "stack.position.table.weight"}
    assert transferred.partly_new == tables
    adapters = {name for name, _ in task.net.named_parameters() if name.endswith((".up", ".down"))}
    for name, parameter in task.net.named_parameters():
        assert parameter.requires_grad == (name in adapters or bool((parameter == new).any())), name
    learn = {name for name, parameter in task.net.named_parameters() if parameter.requires_grad} - adapters
    assert {"embedding.weight", "head.linear.weight", "stack.blocks.0.ffn.part.up.linear.weight"} <= learn


def test_a_start_from_a_run_with_adapters_is_that_run(tmp_path, monkeypatch):
    """A second round on other data begins with what the adapters of the first one have learned."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    assert main(["fit", "lm-tiny", "--name", "whole", "--runs", str(tmp_path), *SMALL]) == 0
    tune = ["--tune.start", str(tmp_path / "lm-tiny/whole/s1"), "--tune.rank", "2", "--model.lr", "0.1"]
    assert main(["fit", "lm-tiny", "--name", "adapted", "--runs", str(tmp_path), *SMALL, *tune]) == 0
    start = str(tmp_path / "lm-tiny/adapted/s1")
    old = zoo.load(start)
    for rank in (0, 2):
        task = rebuild_task(old.place.config, old.place.source)
        transferred = prepare_task(task, Tune(start=start, rank=rank), tmp_path)
        assert not transferred.fresh | transferred.partly_new | {*transferred.unused}
        tokens = torch.randint(30, (2, 9))
        assert torch.equal(merge(task.eval().net)(tokens), old.net(tokens))


@pytest.mark.parametrize(("options", "code"), [({"thaw": 2}, 2), ({"thaw": 1}, 0)])
def test_a_run_that_ends_before_anything_thaws_is_refused(options, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    words = ["--tune.freeze", '["*"]', *(f"--tune.{name}={value}" for name, value in options.items())]
    assert main(["fit", "lm-tiny", "--runs", str(tmp_path), *SMALL, *words, "--trainer.max_steps", "2"]) == code
    assert ("nothing would be trained" in capsys.readouterr().err) == bool(code)


NETS = {
    "text": lambda: LanguageModel(9, 16, embedding_norm=True, tie=False, **TINY),
    "image": lambda: ViT(3, image_size=16, patch_size=4, pool="cls", registers=2, embedding_norm=True, **TINY),
    "encoder": lambda: Seq2Seq(9, 9, 16, embedding_norm=True, **TINY),
}


@pytest.mark.parametrize("kind", NETS)
def test_what_runs_in_front_of_the_blocks_is_farthest_from_the_output(kind):
    net, calls = NETS[kind](), []
    for name, module in net.named_modules():
        module.register_forward_pre_hook(lambda module, inputs, name=name: calls.append(name))
    tokens = torch.zeros(1, 5, dtype=torch.long)
    {"text": net, "image": net, "encoder": getattr(net, "encode", None)}[kind](
        torch.zeros(1, 3, 16, 16) if kind == "image" else tokens
    )
    blocks = [number for number, name in enumerate(calls) if "blocks." in name]
    for name, depth in depth_of(net).items():
        module = name.rpartition(".")[0]
        if module in calls and "blocks." not in name:
            assert depth == (4 if calls.index(module) < blocks[0] else 0), name
    assert any(name.endswith("entry") for name in calls[: blocks[0]])


@pytest.mark.parametrize("tie", ["none", "output", "inputs", "all"])
def test_every_tensor_of_tokens_is_extended_under_each_of_its_names(tie):
    old, new = (Seq2Seq(size, size, 16, tie=tie, output_bias=True, **TINY) for size in (50, 53))
    torch.nn.init.normal_(old.bias.weight)
    result = transfer_weights(new, old.state_dict(), "x")
    tables = {"source_embedding.weight", "target_embedding.weight", "bias.weight"}
    tables |= {"head.weight"} if tie in ("none", "inputs") else set()
    assert result.extended.keys() == tables
    assert not result.fresh
    for name in tables:
        assert torch.equal(new.state_dict()[name][:50], old.state_dict()[name])


@pytest.mark.parametrize("option", ["alpha=16", "alpha=3", "adapters=['*qkv']"])
def test_options_of_adapters_need_a_rank(option):
    def plan(*words):
        command = fit_options.parse("fit", ["lm-tiny", "--tune.start=a", f"--tune.{option}", *words])
        return run_config.make_plan(command, run_config.read_draft(command))

    with pytest.raises(UsageError, match=r"is of adapters, and there are none: add --tune\.rank 8 ← --tune"):
        plan()
    plan("--tune.rank=4")
    plan("--tune.rank=0")  # one variant of a comparison with and without adapters


def swap(old_parts, new_parts):
    """Networks before and after a swap, the second with the converted weights of the first, and the report."""
    old, new = (language_model(**parts) for parts in (old_parts, new_parts))
    with torch.device("meta"):
        start = LanguageModel(9, 16, dim=8, depth=2, **{"position": NoPosition} | old_parts)
    return old, new, transfer_weights(new, old.state_dict(), "x", start)


SAME_FUNCTION = {
    "more heads of keys and values": (
        {"attention": partial(MultiHead, kv_heads=1)}, {"attention": partial(MultiHead, kv_heads=2)},
    ),
    "as many as queries": ({"attention": partial(MultiHead, kv_heads=2)}, {"attention": MultiHead}),
    "without biases": (
        {"attention": partial(MultiHead, kv_heads=1, bias=False)}, {"attention": partial(MultiHead, bias=False)},
    ),
    "an offset of the norm": ({"norm": RMSNorm}, {"norm": partial(RMSNorm, offset=1.0)}),
    "no offset of the norm": ({"norm": partial(RMSNorm, offset=1.0)}, {"norm": RMSNorm}),
    "a wider MLP": ({"ffn": MLP, "hidden": 12}, {"ffn": MLP, "hidden": 20}),
    "a wider SwiGLU": ({"ffn": SwiGLU}, {"ffn": partial(SwiGLU, multiple_of=64)}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME_FUNCTION)
def test_a_swap_that_can_keep_the_function_keeps_it(case):
    old, new, result = swap(*({"heads": 4, **parts} for parts in SAME_FUNCTION[case]))
    tokens = torch.randint(9, (3, 12))
    assert result.converted
    assert (old(tokens) - new(tokens)).abs().max() <= 1e-4


def test_fewer_heads_are_means_and_a_norm_without_means_keeps_its_weight():
    grouped = {"heads": 4, "norm": RMSNorm, "attention": partial(MultiHead, kv_heads=2)}
    old, new, result = swap({"heads": 4}, grouped)
    mine, theirs = new.state_dict(), old.state_dict()
    name = "stack.blocks.1.attend.part.qkv.weight"
    assert torch.equal(mine[name][:8], theirs[name][:8])
    for i, head in enumerate((8, 12, 16, 20)):  # two of keys and two of values, each from two neighbours of 2 rows
        means = (theirs[name][head : head + 2] + theirs[name][head + 2 : head + 4]) / 2
        assert torch.allclose(mine[name][8 + 2 * i : 10 + 2 * i], means)
    norm = "stack.blocks.1.attend.norm.weight"
    assert torch.equal(mine[norm], theirs[norm])
    table = result.table()
    assert "mean of each 2 heads of keys and values" in table
    assert "weight of LayerNorm" in table
    assert "stack.blocks.{0-1}.attend.norm.bias" in table


@pytest.mark.parametrize("options", [{}, {"tie": False}, {"scale_embedding": True}], ids=["tied", "untied", "scaled"])
def test_positions_that_go_leave_their_mean_in_the_tokens(options):
    old, new, result = swap({"position": partial(Learned, offset=2), **options}, {"position": RoPE, **options})
    with torch.no_grad():  # positions that are all alike are their mean, so that nothing is lost
        old.stack.position.table.weight[2:] = old.stack.position.table.weight[2]
        old.stack.position.table.weight[:2] = 100.0
    with torch.device("meta"):
        start = LanguageModel(9, 16, dim=8, depth=2, **{"position": partial(Learned, offset=2), **options})
    placeless = language_model(position=NoPosition, **options)
    for net in (new, placeless):
        result = transfer_weights(net, old.state_dict(), "x", start)
        assert not result.unused
        assert "tokens + mean of the learned positions" in result.table()
    tokens = torch.randint(9, (3, 12))
    assert (old(tokens).log_softmax(-1) - placeless(tokens).log_softmax(-1)).abs().max() <= 1e-4


def test_a_narrower_mlp_keeps_the_units_with_the_largest_weights():
    old, new = MLP(2, 3), MLP(2, 2)
    with torch.no_grad():
        old.up.weight.copy_(torch.tensor([[1.0, 0], [9, 9], [2, 0]]))
        old.down.weight.copy_(torch.tensor([[1.0, 0.001, 1], [0, 0, 1]]))
    converted = new.convert_state(old, old.state_dict())
    assert converted["up.weight"][0].tolist() == [[1, 0], [2, 0]]
    assert converted["down.weight"][0].tolist() == [[1, 1], [0, 1]]


class Doubled(LayerNorm):
    """A part from elsewhere that declares its conversion."""

    answer: ClassVar = {"weight": (torch.full((8,), 2.0), "twice")}

    def convert_state(self, start, state):
        return self.answer


def test_a_part_from_elsewhere_declares_its_conversion():
    _, new, result = swap({}, {"norm": Doubled})
    assert new.stack.blocks[0].attend.norm.weight.eq(2).all()
    assert ("converted", "stack.blocks.0.attend.norm.weight", "8 = twice, was 8") in result.rows()


@pytest.mark.parametrize("answer", [{"weight": (torch.ones(9), "x")}, {"heavy": (torch.ones(8), "x")}])
def test_a_conversion_of_another_shape_or_name_is_refused(answer, monkeypatch):
    monkeypatch.setattr(Doubled, "answer", answer)
    with pytest.raises(UsageError, match=r"Doubled\.convert_state gives (weight of shape 9|heavy of shape 8)"):
        swap({}, {"norm": Doubled})


@pytest.mark.parametrize("size", [16, 24])
@pytest.mark.parametrize("library", [None, "timm", "transformers"])
def test_images_are_normalised_and_prepared_as_those_of_the_start(tmp_path, monkeypatch, library, size):
    """Those of another size have its normalisation alone: its preparation ends at its own size."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(1)
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        Image.fromarray(draw.integers(0, 255, (40, 30, 3), np.uint8)).save(tmp_path / "photos" / place / "x.png")
    sizes = {"num_classes": 2, "image_size": 16, "channels": 3, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2}
    start, task = tmp_path / "start", Classification(**sizes)
    start.mkdir()
    weight_files.write_weights(task, start / "model.safetensors")
    model = {"class_path": "zoo.tasks.classification.Classification", "init_args": sizes}
    (start / "config.json").write_text(json.dumps({"format": 1, "model": model}))
    way = {"library": library, "resize": 20, "crop": [16, 16], "interpolation": "bicubic"} if library else None
    images = {"names": ["a", "b"], "mean": [0.5] * 3, "std": [0.4] * 3, "image_size": 16, "channels": 3}
    (start / "images.json").write_text(json.dumps({**images, **({"prepare": way} if way else {})}))
    data = ImageFolder(str(tmp_path / "photos"), image_size=size)
    data.ready()
    prepare_task(Classification(**{**sizes, "image_size": size}), Tune(start=str(start)), "runs", data)
    (tmp_path / "new").mkdir()
    data.save(tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "images.json").read_text())
    assert (saved["mean"], saved["std"]) == (images["mean"], images["std"])
    assert saved.get("prepare") == (way if size == 16 else None)
    view = data.datasets["train"].pixels.fetch(np.array([0]))
    with Image.open(tmp_path / "photos" / "train" / "a" / "x.png") as image:
        usual = middle_square(image.convert("RGB"), size)
        assert torch.equal(view[0], prepare_published(image, way, 16) if way and size == 16 else usual)

"""Fine-tuning: what is taken over, what stays frozen, what learns how fast, and that nothing is lost in silence."""

import json
from functools import partial

import numpy as np
import pytest
import torch

import zoo
from zoo.cli import main
from zoo.errors import UsageError
from zoo.finetuning.finetune import Tune, depth_of, prepare_task, thaw_steps
from zoo.finetuning.weight_transfer import transfer_weights
from zoo.inference import weight_files
from zoo.inference.find_run import ModelLocation, find_model
from zoo.models.encoder import MaskedLanguageModel, TextClassifier
from zoo.models.language import LanguageModel
from zoo.models.vit import ViT
from zoo.parts.disentangled import Disentangled
from zoo.parts.position import T5, Learned, NoPosition
from zoo.parts.shaw import Shaw
from zoo.tasks.labelling import SequenceClassification

TINY = {"dim": 16, "depth": 3, "heads": 2}
SMALL = ["--model.dim", "16", "--model.depth", "3", "--model.heads", "2", "--trainer.accelerator", "cpu"]
SMALL += ["--trainer.logger", "false", "--trainer.max_steps", "4", "--trainer.val_check_interval", "4"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Labelled texts, a masked language model of them, and a folder for runs."""
    folder = tmp_path_factory.mktemp("tune")
    words = {"cats": "purr meow whisker paw fur", "dogs": "bark wag fetch bone leash"}
    for split, count in (("train", 30), ("val", 10)):
        lines = [
            f"{label}\tthe {text.split()[i % 5]} is here {i}" for i in range(count) for label, text in words.items()
        ]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (folder / "text.txt").write_text(
        "\n".join(f"the {word} is here" for text in words.values() for word in text.split() * 40)
    )
    text = ["--data.text", "TextFiles", "--data.text.path", str(folder / "text.txt"), "--data.text.max_length", "16"]
    text += ["--data.text.tokenizer", "bpe", "--data.text.vocab_size", "300"]
    before = pytest.MonkeyPatch()
    before.setenv("ZOO_CACHE", str(folder / "cache"))
    assert main(["fit", "mlm-tiny", "--runs", str(folder), "--name", "base", *text, *SMALL]) == 0
    yield folder
    before.undo()


def fit(home, name, *options):
    base = str(home / "mlm-tiny" / "base" / "s1")
    words = ["fit", "topics-tiny", "--runs", str(home), "--name", name, "--overwrite", "--data", "LabelledFiles"]
    words += ["--data.path", str(home), "--data.tokenizer", base, "--data.max_length", "16"]
    code = main([*words, "--tune.start", base, *SMALL, *options])
    return code, home / "topics-tiny" / name / "s1"


def net_of(run):
    """The tensors of a run's last state."""
    result = weight_files.read_tensors(run / "checkpoints" / "last.ckpt")
    return {name.removeprefix("net."): tensor for name, tensor in result.items() if name.startswith("net.")}


def test_frozen_tensors_are_bit_identical_after_fit(home, capsys):
    code, run = fit(home, "frozen", "--tune.freeze", '["stack.blocks.[0-1].*", "embedding.*"]')
    assert code == 0
    base, after = weight_files.read_tensors(find_model(home / "mlm-tiny/base/s1").weights), net_of(run)
    frozen = [name for name in after if name.startswith(("stack.blocks.0.", "stack.blocks.1.", "embedding."))]
    assert len(frozen) == 25
    for name in frozen:
        assert torch.equal(after[name], base[f"net.{name}"]), name
    moved = [name for name in after if name not in frozen and f"net.{name}" in base and "head" not in name]
    assert len(moved) == 14
    assert all(not torch.equal(after[name], base[f"net.{name}"]) for name in moved)


def test_the_table_names_every_tensor_of_both_models(home, capsys):
    _, run = fit(home, "table")
    rows = [line.split("\t") for line in (run / "start.tsv").read_text().splitlines()[1:]]
    fates = {}
    for fate, name, _ in rows:
        fates.setdefault(fate, set()).add(name)
    base = {
        name.removeprefix("net.")
        for name in weight_files.read_tensors(find_model(home / "mlm-tiny/base/s1").weights)
        if "net." in name
    }
    assert fates["kept"] | fates["new"] == set(net_of(run))
    assert fates["new"] == {"head.weight", "head.bias"}
    assert fates["left out"] == base - set(net_of(run))
    assert fates["kept"] | fates["left out"] | {"head.bias"} == base
    out = capsys.readouterr().out
    assert "stack.blocks.{0-2}.ffn.part.up.weight  64 × 16" in out
    assert "left out  4 tensors" in out


def test_a_run_starts_with_what_it_takes_over(home):
    """Before the first step, the ledger's digests of the body are those of the run's end."""
    _, run = fit(home, "start")
    from zoo.logging.run_record import weight_digests as digests

    base = zoo.load(home / "mlm-tiny/base/s1")
    base_digests, start = digests(base.net), json.loads((run / "ledger.json").read_text())["start"]
    same = [name for name in start if name in base_digests and not name.startswith("head")]
    assert len(same) == 39
    assert all(start[name] == base_digests[name] for name in same)


def test_adapters_alone_learn_and_merge(home):
    code, run = fit(home, "adapters", "--tune.rank", "2", "--model.lr", "0.05")
    assert code == 0
    base, after = weight_files.read_tensors(find_model(home / "mlm-tiny/base/s1").weights), net_of(run)
    inner = {
        name: name.replace(".linear.", ".")
        for name in after
        if not name.endswith((".up", ".down")) and "head" not in name
    }
    for name, old in inner.items():
        assert torch.equal(after[name], base[f"net.{old}"]), name
    assert sum(name.endswith(".up") for name in after) == 12
    assert all(after[name].abs().sum() > 0 for name in after if name.endswith(".up"))
    model = zoo.load(run)
    assert not any(name.endswith((".up", ".down")) for name in model.net.state_dict())
    model.export(home / "exported", force=True)
    answer = zoo.load(home / "exported").classify("the meow is here")[0]
    assert answer == model.classify("the meow is here")[0]
    assert main(["test", str(run), "--runs", str(home), "--trainer.accelerator", "cpu"]) == 0


def test_a_tuned_run_goes_on_and_is_repeated_from_its_configuration(home):
    code, run = fit(home, "resumed", "--tune.rank", "2")
    assert code == 0
    words = ["fit", str(run / "config.yaml"), "--runs", str(home), "--name", "resumed", "--resume", "--accept-changes"]
    assert main([*words, "--trainer.max_steps", "6"]) == 0
    assert main([*words, "--trainer.max_steps", "8", "--tune.rank", "3"]) == 2


def classifier(**options):
    return SequenceClassification(60, 4, 16, **TINY | options)


def test_learning_rates_fall_with_the_distance_from_the_output():
    task = classifier()
    prepare_task(task, Tune(layer_decay=0.5), "runs")
    depth = depth_of(task.net)
    assert {depth[name] for name in depth if name.startswith("head")} == {0}
    assert {depth[name] for name in depth if name.startswith("stack.norm")} == {0}
    for number in range(3):
        assert {depth[name] for name in depth if name.startswith(f"stack.blocks.{number}.")} == {3 - number}
    assert depth["embedding.weight"] == 4
    names = {id(p): name.removeprefix("net.") for name, p in task.named_parameters()}
    layers = 0
    for group in task.groups():
        for parameter in group["params"]:
            assert group.get("lr", task.lr) == pytest.approx(task.lr * 0.5 ** depth[names[id(parameter)]])
            assert ("weight_decay" in group) == (parameter.dim() <= 1)
            layers += 1
    assert layers == len(list(task.parameters()))
    assert [group.get("lr", task.lr) for group in task.groups()] == sorted(
        (group.get("lr", task.lr) for group in task.groups()), reverse=True
    )


def test_blocks_thaw_one_after_the_other(home):
    frozen = ["--tune.freeze", '["stack.blocks.*"]', "--tune.thaw", "1", "--tune.thaw_every", "1"]
    steps = ["--trainer.max_steps", "2", "--trainer.val_check_interval", "2"]
    _, run = fit(home, "thawed", *frozen, *steps)
    base, after = weight_files.read_tensors(find_model(home / "mlm-tiny/base/s1").weights), net_of(run)

    def moved(number):
        names = [name for name in after if name.startswith(f"stack.blocks.{number}.")]
        return [not torch.equal(after[name], base[f"net.{name}"]) for name in names]

    assert all(moved(2))  # in the second step
    assert not any(moved(1))
    assert not any(moved(0))
    net = TextClassifier(60, 4, 16, **TINY)
    when = thaw_steps(
        net, {n for n, _ in net.named_parameters() if "blocks" in n}, Tune(freeze=["x"], thaw=10, thaw_every=5)
    )
    assert {when[name] for name in when if "blocks.2." in name} == {10}
    assert {when[name] for name in when if "blocks.0." in name} == {20}


def test_a_language_model_grows_by_the_tokens_it_lacks():
    old, new = LanguageModel(50, 16, **TINY), TextClassifier(54, 4, 16, causal=True, pool="last", **TINY)
    before = new.embedding.weight[50:].clone()
    result = transfer_weights(new, old.state_dict(), "x")
    assert result.extended == {"embedding.weight": ((50, 16), (54, 16))}
    assert torch.equal(new.embedding.weight[:50], old.embedding.weight)
    assert torch.equal(new.embedding.weight[50:], before)
    tokens = torch.randint(50, (2, 7))
    torch.testing.assert_close(new.eval().states(tokens), old.eval().stack(old.embedding(tokens)))


def test_a_swapped_part_is_new_and_told():
    from zoo.parts.ffn import SwiGLU
    from zoo.parts.norm import RMSNorm

    old = MaskedLanguageModel(50, 16, **TINY)
    new = MaskedLanguageModel(50, 16, norm=RMSNorm, ffn=SwiGLU, **TINY)
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
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(UsageError, match=r".*") as refused:
        prepare_task(classifier(), Tune(**options), "runs")
    assert message in str(refused.value)


def test_another_model_is_refused():
    with pytest.raises(UsageError, match="nothing of x fits"):
        transfer_weights(
            TextClassifier(60, 4, 16, dim=24, depth=1, heads=2), MaskedLanguageModel(50, 16, **TINY).state_dict(), "x"
        )


def test_another_tokenizer_is_refused(home, capsys):
    base = str(home / "mlm-tiny" / "base" / "s1")
    words = ["fit", "topics-tiny", "--runs", str(home), "--name", "other", "--data", "LabelledFiles", *SMALL]
    words += ["--data.path", str(home), "--data.max_length", "16", "--data.vocab_size", "280", "--tune.start", base]
    assert main(words) == 2
    assert f"Use the one it was trained with: --data.tokenizer {base}" in capsys.readouterr().err


def test_filling_in_and_scoring(home):
    model = zoo.load(home / "mlm-tiny/base/s1")
    answer = model.fill("the [MASK] is [MASK]", top=3)[0]
    tokens = [model.cls, *model.tokenizer.encode("the"), model.mask, *model.tokenizer.encode(" is"), model.mask]
    with torch.no_grad():
        logits = model.net(torch.tensor([tokens]))[0].double()
    places = [n for n, token in enumerate(tokens) if token == model.mask]
    ordinary = [n for n in range(model.net.vocab_size) if n not in model.tokenizer.specials.values()]
    for place, guesses in zip(places, answer.guesses, strict=True):
        chances = {n: float(logits[place, ordinary].softmax(-1)[i]) for i, n in enumerate(ordinary)}
        best = sorted(ordinary, key=lambda n: -chances[n])[:3]
        assert [guess.label for guess in guesses] == [model.tokenizer.decode([n]) for n in best]
        assert [guess.probability for guess in guesses] == pytest.approx([chances[n] for n in best])
    assert answer.text == "the" + answer.guesses[0][0].label + " is" + answer.guesses[1][0].label
    score = model.score("the paw is here")
    assert score.bytes == 15
    assert score.tokens == len(model.tokenizer.encode("the paw is here"))
    assert score.log_probability < 0
    with pytest.raises(UsageError, match=r"no \[MASK\]"):
        model.fill("nothing to fill")
    assert isinstance(model.place, ModelLocation)


def test_a_matrix_with_the_same_numbers_in_another_shape_is_not_taken_over():
    new, old = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(*sizes)) for sizes in ((4, 8), (8, 4)))
    before = new[1].weight.clone()
    result = transfer_weights(new, old.state_dict(), "x")
    assert result.reshaped == {"1.weight": ((4, 8), (8, 4)), "1.bias": ((4,), (8,))}
    assert torch.equal(new[1].weight, before)


def language_model(position=NoPosition, max_length=16, **parts):
    net = LanguageModel(vocab_size=9, max_length=max_length, dim=8, depth=2, heads=2, position=position, **parts)
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

"""From a masked language model to classes of texts: what is taken over, what stays frozen, and what learns how fast."""

import json

import pytest
import torch
from zoo_text.models.encoder import MaskedLanguageModel, TextClassifier
from zoo_text.tasks.labelling import SequenceClassification

import zoo
from zoo.cli import main
from zoo.errors import UsageError
from zoo.finetuning.finetune import Tune, depth_of, prepare_task, thaw_steps
from zoo.finetuning.weight_transfer import transfer_weights
from zoo.inference import weight_files
from zoo.inference.find_run import ModelLocation, find_model
from zoo.models.language import LanguageModel

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
    base_digests, start = digests(base.net.named_parameters()), json.loads((run / "ledger.json").read_text())["start"]
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

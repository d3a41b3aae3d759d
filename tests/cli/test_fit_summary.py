"""Other parts for some layers, from a recipe and from the command line: names, options, plugins, and what follows."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml
from cli_parts import RECIPE, package

import zoo as library
from zoo.cli import fit_summary
from zoo.config.run_config import check_resume
from zoo.errors import UsageError
from zoo.training.setup import display_value

BODY = """
from zoo.parts.attention import MultiHead


class Mine(MultiHead):
    'An attention.'

    def __init__(self, dim, heads, backend=None, dropout=0.0, power: int = 1):
        super().__init__(dim, heads, backend, dropout)
        self.power = power
"""
LAYERS = """
  overrides:
    - {first: 1, step: 2, window: 5}
    - {first: 1, step: 2, ffn: {class_path: MoE, init_args: {experts: 3}}}
    - {attention: mIne, last: 0}
"""
FLOW = "[{first: 1, step: 2, ffn: {class_path: moe, init_args: {experts: 3}}}, {last: 0, attention: MINE}]"


@pytest.fixture
def plugin(site, work):
    package(site(), "my-attn", "[zoo.attention]\nMine = my_attn:Mine\n", BODY, "0.2")
    site()
    return work


def recipe(layers=LAYERS):
    lines = RECIPE.replace("max_steps: 3", "max_steps: 2").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("model:")) + 1
    return "\n".join([*lines[:at], *layers.strip("\n").splitlines(), *lines[at:]]) + "\n"


def parts(net):
    return [(type(block.attend.part).__name__, type(block.ffn.part).__name__) for block in net.stack.blocks]


def test_a_recipe_with_overrides_trains_resumes_and_is_exported(zoo, plugin):
    (plugin / "lm-toy.yaml").write_text(recipe())
    code, _, err = zoo("fit", "lm-toy", "--model.depth", "2")
    assert (code, err) == (0, "")
    home = plugin / "runs/lm-toy/depth=2/s1"
    options = yaml.safe_load((home / "config.yaml").read_text())["model"]["init_args"]["overrides"]
    assert [one["window"] for one in options] == [5, None, None]
    assert options[1]["ffn"]["class_path"] == "zoo.parts.ffn.MoE"
    assert options[1]["ffn"]["init_args"]["experts"] == 3
    assert options[2]["attention"]["class_path"] == "my_attn.Mine"
    records = {record["key"]: record for record in json.loads((home / "parts.json").read_text())}
    assert records["model.overrides[2].attention"]["distribution"] == "my-attn"
    assert zoo("validate", "runs/lm-toy/depth=2/s1")[0] == 0
    (plugin / "lm-toy.yaml").write_text(recipe().replace("max_steps: 2", "max_steps: 4"))
    code, _, err = zoo("fit", "lm-toy", "--model.depth", "2", "--resume", "--accept-changes")
    assert (code, err) == (0, "")
    (plugin / "lm-toy.yaml").write_text(recipe().replace("window: 5", "window: 6"))
    code, _, err = zoo("fit", "lm-toy", "--model.depth", "2", "--resume")
    assert code == 2
    assert "model.overrides is" in err
    code, _, err = zoo("export", str(home), "exported")
    assert (code, err) == (0, "")
    net = library.load("exported").net
    assert parts(net) == [("Mine", "MLP"), ("MultiHead", "RealTokens")]
    assert net.stack.windows == [None, 5]
    again = library.load(home).net
    assert all(torch.equal(one, two) for one, two in zip(net.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("words", [["--model.overrides", FLOW], [f"--model.overrides={FLOW}"]])
def test_the_command_line_takes_the_same_and_the_run_has_a_readable_name(zoo, plugin, words):
    code, _, err = zoo("fit", "lm-toy", "--model.depth", "2", *words)
    assert (code, err) == (0, "")
    (home,) = (plugin / "runs/lm-toy").iterdir()
    assert home.name == "depth=2,overrides=first-1-step-2-ffn-MoE_experts_3-282b3e38-last-0-attention-Mine"
    assert parts(library.load(home / "s1").net) == [("Mine", "MLP"), ("MultiHead", "RealTokens")]
    options = yaml.safe_load((home / "s1/config.yaml").read_text())["model"]["init_args"]
    assert fit_summary.layers(options) == ["  layers  1: ffn MoE(experts=3)", "  layers  0: attention Mine"]
    message = display_value(options["overrides"])
    assert message == "first=1, step=2, ffn=MoE(experts=3); first=0, step=1, last=0, attention=Mine"


def test_overrides_of_a_checkpoint_from_before_there_were_more_slots_are_the_same():
    def model(**more):
        one = {"first": 0, "step": 1, "last": 0, "attention": None, "window": 3, **more}
        return {"model": {"class_path": "my.Task", "init_args": {"overrides": [one]}}}

    plan = SimpleNamespace(
        config=model(layers=None, position=None, heads=None),
        resolved=SimpleNamespace(classes={"model": SimpleNamespace(data_sizes=())}),
        command=SimpleNamespace(command="fit"),
    )
    assert check_resume(plan, model(), frozenset()) == []
    with pytest.raises(UsageError, match=r"cannot resume: model\.overrides is"):
        check_resume(plan, model(heads=2), frozenset())


def test_the_command_line_beats_the_recipe(zoo, plugin):
    (plugin / "lm-toy.yaml").write_text(recipe())
    code, out, _ = zoo("fit", "lm-toy", "--model.overrides", "[{window: 3}]", "--print_config")
    assert code == 0
    (only,) = yaml.safe_load(out)["model"]["init_args"]["overrides"]
    assert (only["window"], only["attention"]) == (3, None)
    code, out, _ = zoo("fit", "lm-toy", "--model.overrides", "null", "--print_config")
    assert code == 0
    assert yaml.safe_load(out)["model"]["init_args"]["overrides"] is None


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("[{ffn: moo}]", "unknown ffn 'moo'"),
        ("[{ffn: {class_path: MoE, init_args: {expert: 3}}}]", "'model.overrides[0].ffn.expert' must name a ffn"),
        ("[{ffn: {class_path: MoE, init_args: {exprts: 3}}}]", "'MoE' has no option 'exprts'. Did you mean 'experts'"),
        ("[{window: 3}, {windw: 3}]", "unknown key 'model.overrides[1].windw'. Did you mean"),
        ("[{window: wide}]", "'model.overrides[0].window' must be a whole number"),
        ("[{attention: SDPA}]", "Available: Additive, Disentangled, Gaussian, MultiHead, Shaw, TokenQueries"),
        ("[{ffn: os.system}]", "the class path 'os.system' is not imported"),
        ("[{ffn: {class_path: os.system}}]", "the class path 'os.system' is not imported"),
        ("[moe]", "'model.overrides' must be a list of mappings, each with some of first, step, last, layers"),
        ("{window: 3}", "'model.overrides' must be a list of mappings"),
        ("moe", "'model.overrides' must be a list of mappings"),
        ("[{first: 7, window: 3}]", "overrides: one with first=7, step=1, last=None is for none of the layers"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["recipe", "option"])
def test_what_cannot_be_is_refused_where_it_is_written(zoo, work, layers, message, place):
    if place == "recipe":
        (work / "lm-toy.yaml").write_text(recipe(f"  overrides: {layers}"))
    code, _, err = zoo("fit", "lm-toy", *([] if place == "recipe" else ["--model.overrides", layers]))
    assert (code, message in err) == (2, True), err
    assert len(err.splitlines()) <= 4
    assert ("lm-toy.yaml:" if place == "recipe" else "← --model.overrides") in err
    assert not (work / "runs").exists()


PLACED = """
from zoo.parts.ffn import MLP


class Placed(MLP):
    'A feed-forward that knows its layer.'

    def __init__(self, dim, hidden, power: int = 1, layer: int = 0, depth: int = 1):
        super().__init__(dim, hidden)
        self.place = layer, depth, power
"""
WORDS = "[{layers: every 2nd, position: none, heads: 1}, {layers: last, block: postnorm}]"
PARTS = "[{layers: last, norm: rmsnorm, backend: naive, ffn: swiglu, hidden: 12}]"


def test_every_slot_of_some_layers_is_reached_from_the_command_line(zoo, work):
    code, _, err = zoo("fit", "lm-toy", "--model.depth", "4", "--model.overrides", WORDS)
    assert (code, err) == (0, "")
    (home,) = (work / "runs/lm-toy").iterdir()
    changes = "layers-every_2nd-b9feddef-position-NoPosition-heads-1-layers-last-block-PostNorm"
    assert home.name == f"depth=4,overrides={changes}"
    options = yaml.safe_load((home / "s1/config.yaml").read_text())["model"]["init_args"]
    assert [" ".join(line.split()) for line in fit_summary.layers(options)] == [
        "layers 1, 3: position NoPosition · heads 1",
        "layers 3: block PostNorm",
    ]
    stack = library.load(home / "s1").net.stack
    assert [type(position).__name__ for position in stack.positions] == ["RoPE", "NoPosition"] * 2
    assert [type(block).__name__ for block in stack.blocks] == ["PreNorm"] * 3 + ["PostNorm"]
    assert [block.attend.part.heads for block in stack.blocks][1::2] == [1, 1]


def test_norm_backend_and_feed_forward_of_the_last_layer_are_others(zoo, work):
    assert zoo("fit", "lm-toy", "--model.depth", "2", "--model.overrides", PARTS)[0] == 0
    (home,) = (work / "runs/lm-toy").iterdir()
    first, last = library.load(home / "s1").net.stack.blocks
    for block, names in ((first, ("LayerNorm", "SDPA", "MLP")), (last, ("RMSNorm", "Naive", "SwiGLU"))):
        assert tuple(type(p).__name__ for p in (block.attend.norm, block.attend.part.backend, block.ffn.part)) == names


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("[{layers: every third, window: 3}]", "overrides: layers='every third' is none of: first, last"),
        ("[{layers: last, position: learned}]", "layer 1: position Learned is added to the embeddings"),
        ("[{layers: last, heads: 3}]", "layer 1: dim="),
    ],
)
def test_a_layer_that_cannot_be_is_refused_by_its_number(zoo, work, layers, message):
    code, _, err = zoo("fit", "lm-toy", "--model.depth", "2", "--model.overrides", layers)
    assert (code, message in err) == (2, True), err
    assert len(err.splitlines()) <= 4


def test_a_part_is_told_its_layer_whatever_a_run_is_made_from(zoo, site, work, monkeypatch):
    monkeypatch.delitem(sys.modules, "my_ffn", raising=False)  # of another test
    package(site(), "my-ffn", "[zoo.ffn]\nPlaced = my_ffn:Placed\n", PLACED, "0.2")
    site()
    words = ("fit", "lm-toy", "--model.depth", "3", "--model.ffn", "placed", "--model.ffn.power", "2")
    assert zoo(*words)[0] == 0
    (home,) = (work / "runs/lm-toy").iterdir()
    blocks = library.load(home / "s1").net.stack.blocks
    assert [block.ffn.part.place for block in blocks] == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]
    options = yaml.safe_load((home / "s1/config.yaml").read_text())["model"]["init_args"]
    assert options["ffn"]["init_args"] == {"power": 2}
    code, _, err = zoo(*words, "--model.ffn.layer", "2")
    assert (code, "'Placed' has no option 'layer'" in err) == (2, True), err
    description = zoo("show", "ffn", "placed")[1]
    assert ("ffn.power" in description, "ffn.layer" in description, "ffn.depth" in description) == (True, False, False)

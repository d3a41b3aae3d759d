"""Old names of options, classes and attributes: everywhere a configuration is read they mean the new ones, and warn."""

import ast
import functools
import json
import re
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import yaml

from zoo import registry, renames
from zoo.cli.check_worker import parse_part_options
from zoo.cli.compare_fits import ZooFit
from zoo.compare import run_records
from zoo.compare.measure_model import CostMeter
from zoo.config import fit_options, run_config
from zoo.config.signatures import parameters
from zoo.errors import UsageError
from zoo.inference import weight_files
from zoo.inference.find_run import EXPORT, WEIGHTS
from zoo.inference.load import load
from zoo.inference.rebuild_task import complete_options, rebuild_task
from zoo.parts.attention import Attention, MultiHead
from zoo.parts.backend import Naive
from zoo.parts.ffn import FFN, MLP
from zoo.parts.position import Extent, RoPE

ROOT = Path(__file__).parent.parent
# a value for every row of the table, and the part that is chosen for it
VALUES = {
    ("RoPE", "stretch"): 4.0, ("RoPE", "trained"): 32, ("RoPE", "slow"): 0.5, ("RoPE", "fast"): 8.0,
    ("T5", "buckets"): 16, ("T5", "reach"): 64,
    ("Disentangled", "reach"): 64, ("Disentangled", "terms"): "c2p", ("Disentangled", "share"): False,
    ("Attention", "groups"): 1, ("MultiHead", "norm"): "RMSNorm",
    ("Gated", "multiple"): 8, ("MoE", "active"): 1, ("MoE", "balance"): 0.5,
    ("ViT", "patch"): 7, ("Classification", "patch"): 7, ("Data", "workers"): 1,
}  # fmt: skip
ROWS = [(path, old, new) for path, names in renames.OPTIONS.items() for old, new in names.items()]
PARTS = [row for row in ROWS if row[0].startswith("zoo.parts.")]
PART_OF_BASE = {"Attention": "MultiHead", "Gated": "SwiGLU"}  # bases: which part of theirs is tried
KIND = {"disentangled": "attention"}  # of modules that are not called like their kind
TEXT = """model: {class_path: CausalLM, init_args: {dim: 16, depth: 1, heads: 2, MODEL}}
data: {class_path: StdlibDocs, init_args: {DATA}}
"""
PATCHES = TEXT.replace("CausalLM", "Classification").replace("StdlibDocs", "Glyphs")


@pytest.fixture(autouse=True)
def _every_warning_is_new():
    renames.warn.cache_clear()


def row_id(row):
    return f"{row[0].rpartition('.')[2]}.{row[1]}" if isinstance(row, tuple) else None


def a_few(rows):
    """Every fourth row, and the others as a campaign: that models are read in today's names is one function for all."""
    return [pytest.param(row, marks=[pytest.mark.campaign] if place % 4 else []) for place, row in enumerate(rows)]


def kind_of(path):
    module = path.split(".")[-2]
    return KIND.get(module, module)


def value_of(row):
    return VALUES[row[0].rpartition(".")[2], row[1]]


def part_of(row):
    name = row[0].rpartition(".")[2]
    return PART_OF_BASE.get(name, name)


def recipe(row, option):
    """A recipe that sets the row's option under the name ``option``."""
    path, value = row[0], json.dumps(value_of(row))
    if path.startswith("zoo.data."):
        return TEXT.replace("DATA", f"{option}: {value}").replace(", MODEL", "")
    if not path.startswith("zoo.parts."):
        return PATCHES.replace("MODEL", f"{option}: {value}").replace("DATA", "")
    kind, more = kind_of(path), ", position: NoPosition" if path.endswith("Disentangled") else ""
    part = f"{kind}: {{class_path: {part_of(row)}, init_args: {{{option}: {value}}}}}"
    return TEXT.replace("MODEL", part + more).replace("DATA", "")


def options(row, option):
    """The same on the command line, where the recipe has nothing of it."""
    path, value = row[0], value_of(row)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if path.startswith("zoo.data."):
        return [f"--data.{option}={text}"]
    if not path.startswith("zoo.parts."):
        return [f"--model.{option}={text}"]
    kind = kind_of(path)
    more = ["--model.position=none"] if path.endswith("Disentangled") else []
    return [*more, f"--model.{kind}={part_of(row)}", f"--model.{kind}.{option}={text}"]


def base_recipe(row):
    """The recipe without the option."""
    vision = row[0].startswith(("zoo.models.vit", "zoo.tasks.classification"))
    return (PATCHES if vision else TEXT).replace(", MODEL", "").replace("DATA", "")


def plan(folder, text, *words):
    file = folder / "recipe.yaml"
    file.write_text(text)
    command = fit_options.parse("fit", [str(file), f"--runs={folder / 'runs'}", *words])
    return run_config.make_plan(command, run_config.read_draft(command))


def warnings_of(caplog):
    result = [record.getMessage() for record in caplog.records if record.name == "zoo.renames"]
    caplog.clear()
    return result


def assert_one_warning(caplog, old, new, where):
    (message,) = warnings_of(caplog)
    assert message.startswith(f"{old!r} is now called {new!r}"), message
    assert where in message


def build_net(config):
    """A task of a configuration of tiny sizes, and its weights."""
    model = config["model"]
    sizes = {
        "CausalLM": {"vocab_size": 11, "max_length": 8},
        "Classification": {"num_classes": 3, "image_size": 14, "channels": 1},
    }[model["class_path"].rpartition(".")[2]]
    return {"model": {**model, "init_args": {**model["init_args"], **sizes}}}


def test_every_row_has_a_value():
    assert {(path.rpartition(".")[2], old) for path, old, _ in ROWS} == set(VALUES)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_row_names_an_option_that_exists_and_one_that_does_not(row):
    path, old, new = row
    module, _, name = path.rpartition(".")
    cls = getattr(__import__(module, fromlist=[name]), name)
    names = parameters(cls)
    assert new in names
    assert old not in names


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_in_a_recipe(row, tmp_path, caplog):
    _, old, new = row
    ours = plan(tmp_path, recipe(row, new))
    assert not warnings_of(caplog)
    theirs = plan(tmp_path, recipe(row, old))
    assert_one_warning(caplog, old, new, f"{tmp_path / 'recipe.yaml'}:{2 if old == 'workers' else 1}")
    assert ours.resolved.config == theirs.resolved.config
    assert ours.resolved.values == theirs.resolved.values
    assert run_config.config_text(ours) == run_config.config_text(theirs)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_on_the_command_line(row, tmp_path, caplog):
    _, old, new = row
    ours = plan(tmp_path, base_recipe(row), *options(row, new))
    theirs = plan(tmp_path, base_recipe(row), *options(row, old))
    assert_one_warning(caplog, old, new, options(row, old)[-1])
    assert ours.resolved.config == theirs.resolved.config
    assert ours.run == theirs.run  # one folder, one name of the variant


@pytest.mark.parametrize("row", PARTS, ids=row_id)
def test_in_a_mapping_on_the_command_line(row, tmp_path, caplog):
    _, old, new = row
    kind = kind_of(row[0])
    more = ["--model.position=none"] if row[0].endswith("Disentangled") else []
    text = f"--model.{kind}={{class_path: {part_of(row)}, init_args: {{{old}: {json.dumps(value_of(row))}}}}}"
    theirs = plan(tmp_path, base_recipe(row), *more, text)
    assert_one_warning(caplog, old, new, "--model.")
    assert plan(tmp_path, base_recipe(row), *options(row, new)).config == theirs.config


@pytest.mark.parametrize("row", [row for row in PARTS if kind_of(row[0]) in ("attention", "ffn")], ids=row_id)
def test_for_some_layers(row, tmp_path, caplog):
    _, old, new = row

    def layered(option):
        part = f"{{class_path: {part_of(row)}, init_args: {{{option}: {json.dumps(value_of(row))}}}}}"
        return plan(tmp_path, base_recipe(row), f"--model.overrides=[{{first: 0, {kind_of(row[0])}: {part}}}]")

    theirs = layered(old)
    assert_one_warning(caplog, old, new, "--model.overrides")
    assert layered(new).config == theirs.config


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_both_names_at_once_are_an_error(row, tmp_path):
    _, old, new = row
    text = recipe(row, old).replace(f"{old}: ", f"{new}: {json.dumps(value_of(row))}, {old}: ")
    with pytest.raises(UsageError, match=f"'{old}' is the old name of '{new}', and both are set") as error:
        plan(tmp_path, text)
    assert error.value.code == 2
    with pytest.raises(UsageError, match="both are set"):
        plan(tmp_path, base_recipe(row), *options(row, old), options(row, new)[-1])


def test_the_command_line_overrides_the_old_name_of_a_recipe(tmp_path):
    row = ("zoo.parts.position.RoPE", "stretch", "scaling_factor")
    position = plan(tmp_path, recipe(row, "stretch"), "--model.position.scaling_factor=8").config["model"]["init_args"]
    assert position["position"]["init_args"]["scaling_factor"] == 8.0


def renamed_back(value, row):
    """A resolved configuration as an earlier version saved it."""
    _, old, new = row
    text = json.dumps(value)
    assert f'"{new}"' in text
    return json.loads(text.replace(f'"{new}"', f'"{old}"'))


@pytest.mark.parametrize("row", a_few([row for row in ROWS if ".data." not in row[0]]), ids=row_id)
def test_in_a_saved_model(row, tmp_path, caplog):
    """A run's configuration, a checkpoint's and an export's are read by the same function."""
    config = build_net(json.loads(json.dumps(plan(tmp_path, recipe(row, row[2])).config, default=str)))
    ours = rebuild_task(config, Path("config.yaml"))
    theirs = rebuild_task(renamed_back(config, row), Path("config.yaml"))
    assert_one_warning(caplog, row[1], row[2], "config.yaml")
    assert str(ours) == str(theirs)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert complete_options(config["model"]) == complete_options(
        renames.update_options(renamed_back(config, row)["model"], "x")
    )
    with pytest.raises(UsageError, match="both are set"):
        rebuild_task(both_in(config, row), Path("config.yaml"))


def both_in(value, row):
    """The same with the option under both of its names."""
    if isinstance(value, dict):
        both = {row[1]: value[row[2]]} if row[2] in value else {}
        return {**both, **{key: both_in(item, row) for key, item in value.items()}}
    return value


@pytest.mark.parametrize("row", a_few(PARTS), ids=row_id)
def test_in_an_export(row, tmp_path, caplog):
    config = build_net(json.loads(json.dumps(plan(tmp_path, recipe(row, row[2])).config, default=str)))
    task = rebuild_task(config, Path("x"))
    folder = tmp_path / "export"
    folder.mkdir()
    weight_files.write_weights(task, folder / WEIGHTS)
    about = {"format": 1, "zoo": "0.1.0", "kind": "CausalLM", **renamed_back(config, row)}
    (folder / EXPORT).write_text(json.dumps(about))
    renames.warn.cache_clear()
    trained = load(folder, bare=True)
    assert_one_warning(caplog, row[1], row[2], str(folder / EXPORT))
    assert trained.place.config["model"] == config["model"]  # so that the next export has the new name
    assert all(torch.equal(tensor, task.state_dict()[name]) for name, tensor in trained.task.state_dict().items())


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_in_the_run_that_is_resumed_or_compared(row, tmp_path, caplog):
    ours = plan(tmp_path, recipe(row, row[2]))
    old = renamed_back(run_config.as_yaml(ours.config), row)
    assert run_config.check_resume(ours, old, frozenset({"lr"})) == []
    assert_one_warning(caplog, row[1], row[2], "the checkpoint")
    fits = ZooFit(str(tmp_path / "runs"))
    point = fits.point([str(tmp_path / "recipe.yaml")])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    assert fits.changes(point, tmp_path) == []
    key = {"ViT": "model", "Classification": "model", "Data": "data"}.get(row[0].rpartition(".")[2])
    if key is None:  # a change is still seen
        kind = kind_of(row[0])
        old["model"]["init_args"][kind]["init_args"][row[1]] = 3
        with pytest.raises(UsageError, match=rf"model\.{kind}\.{row[2]} is 3 in the checkpoint"):
            run_config.check_resume(ours, old, frozenset({"lr"}))


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_folder_that_has_the_old_name_is_found(row, tmp_path):
    words = options(row, row[2])
    ours = plan(tmp_path, base_recipe(row), *words).run
    pieces = sorted(piece.replace(f"{row[2]}=", f"{row[1]}=") for piece in ours.variant.split(","))
    older = ours.folder.parent.parent / ",".join(pieces) / "s1"
    older.mkdir(parents=True)
    assert plan(tmp_path, base_recipe(row), *words).run.folder == older
    assert plan(tmp_path, base_recipe(row), *options(row, row[1])).run.folder == older


def test_the_data_of_a_saved_run(caplog):
    meter = CostMeter()
    data = {"class_path": "zoo.data.digits.Digits", "init_args": {"workers": 1}}
    assert meter.data({"data": data}).num_workers == 1
    assert_one_warning(caplog, "workers", "num_workers", "the configuration")


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_zoo_check(row, caplog):
    path, old, new = row
    if path.endswith("ViT"):
        pytest.skip("a network of a task, which has the same row")
    kind, name = path.split(".")[1].removesuffix("s"), {"Data": "Digits"}.get(part_of(row), part_of(row))
    kind = kind_of(path) if kind == "part" else kind
    cls = registry.get(kind, name)
    text = str(value_of(row)).lower() if isinstance(value_of(row), bool) else str(value_of(row))
    assert parse_part_options(cls, kind, [(new, text, f"--{new} {text}")]) == parse_part_options(
        cls, kind, [(old, text, f"--{old} {text}")]
    )
    assert_one_warning(caplog, old, new, f"--{old} {text}")
    with pytest.raises(UsageError, match="both are set"):
        parse_part_options(cls, kind, [(new, text, f"--{new}"), (old, text, f"--{old}")])


def test_records_of_runs_are_read_in_the_words_of_today():
    old = {
        "position": "RoPE(stretch=8, base=500000.0, slow=2.0)", "ffn": "Plain(activation=relu)", "patch": 4, "lr": 0.1,
        "attention": "MultiHead(bias=False, groups=2)", "overrides": "first=1, ffn=MoE(active=1)",
    }  # fmt: skip
    assert renames.new_choices(old) == {
        "position": "RoPE(scaling_factor=8, base=500000.0, low_freq_factor=2.0)", "ffn": "MLP(activation=relu)",
        "patch_size": 4, "lr": 0.1, "attention": "MultiHead(bias=False, kv_heads=2)",
        "overrides": "first=1, ffn=MoE(top_k=1)",
    }  # fmt: skip


def test_a_ledger_is_read_so(tmp_path):
    path = tmp_path / "r" / "v" / "s1" / "ledger.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({
        "format": 1, "recipe": "r", "variant": "v", "seed": 1, "goals": {"loss": "min"}, "tokens": 1, "finished": True,
        "choices": {"ffn": "Plain"},
    }))  # fmt: skip
    assert run_records.parse_record(path).choices == {"ffn": "MLP"}


# classes


def test_an_old_name_of_a_part_is_found_and_said_once(tmp_path, caplog):
    theirs = plan(tmp_path, TEXT.replace("MODEL", "ffn: plain").replace("DATA", ""))
    assert_one_warning(caplog, "plain", "MLP", f"{tmp_path / 'recipe.yaml'}:1")
    ours = plan(tmp_path, TEXT.replace("MODEL", "ffn: mlp").replace("DATA", ""))
    assert ours.config == theirs.config
    assert registry.get("ffn", "Plain") is MLP


@pytest.mark.parametrize(("old", "new"), renames.CLASSES.items())
def test_an_old_class_path(old, new, tmp_path, caplog):
    kind = "backend" if "auto" in new else "ffn"
    theirs = plan(tmp_path, base_recipe(ROWS[0]), f"--model.{kind}={old}")
    assert_one_warning(caplog, old, new, f"--model.{kind}={old}")
    assert theirs.config == plan(tmp_path, base_recipe(ROWS[0]), f"--model.{kind}={new}").config
    config = build_net(theirs.config)
    text = json.dumps(config, default=str).replace(new, old)
    assert str(rebuild_task(json.loads(text), Path("x"))) == str(rebuild_task(config, Path("x")))
    assert_one_warning(caplog, old, new, "x")


def test_a_folder_named_after_an_old_part_is_found(tmp_path):
    text = TEXT.replace("MODEL", "ffn: swiglu").replace("DATA", "")
    ours = plan(tmp_path, text, "--model.ffn=mlp").run
    assert ours.variant == "ffn=mlp"
    older = ours.folder.parent.parent / "ffn=plain" / "s1"
    older.mkdir(parents=True)
    assert plan(tmp_path, text, "--model.ffn=mlp").run.folder == older


# Python


def test_keyword_arguments_have_their_old_names():
    with pytest.warns(DeprecationWarning, match="'stretch' of RoPE is now called 'scaling_factor'"):
        assert RoPE(8, 2, Extent((9,)), stretch=4.0).scaling_factor == 4.0
    with pytest.raises(UsageError, match="both are set"):
        RoPE(8, 2, Extent((9,)), stretch=4.0, scaling_factor=4.0)


def theirs():
    class Theirs(MultiHead):
        lowers = frozenset({"causal"})
        asks = frozenset({"window"})

        def __init__(self, dim, heads, backend=None, dropout=0.0, groups: int | None = None):
            super().__init__(dim, heads, backend, dropout, groups=groups)

        def missing(self, needs):
            return frozenset({"rotate"})

    return Theirs


def test_a_third_party_attention_of_an_earlier_version_lives_on():
    with pytest.warns(DeprecationWarning, match="'lowers' of Theirs is now called 'supports'"):
        cls = theirs()
    with pytest.warns(DeprecationWarning, match="'groups' of Theirs is now called 'kv_heads'"):
        part = cls(8, 4, groups=2)
    with pytest.warns(DeprecationWarning, match="'groups' of Theirs"):
        assert part.groups == part.kv_heads == 2
    assert cls.supports == part.supports == {"causal"}
    assert part.requires == {"window"}
    assert part.unsupported(frozenset()) == {"rotate"}
    assert renames.new_option(cls, "groups", parameters(cls, 4)) == "groups"  # its own option keeps its name


class Own(Naive):
    def __init__(self):
        self.lowers = frozenset({"causal"})


class Loss(FFN):
    def forward(self, x):
        self.side_loss = x.sum()
        return x


def test_a_third_party_backend_and_feed_forward_live_on():
    with pytest.warns(DeprecationWarning, match="'lowers' of Own"):
        assert Own().supports == {"causal"}
    with pytest.warns(DeprecationWarning, match="'lowers' of Own"):
        assert Own.lowers == Naive.supports
    part = Loss(4, 8)
    with pytest.warns(DeprecationWarning, match="'side_loss' of Loss"):
        part(torch.ones(2, 4))
    assert float(part.aux_loss) == 8.0


def test_a_plugin_declares_its_own_renamed_options():
    class Renamed(RoPE):
        renamed_options: ClassVar[dict[str, str]] = {"turns": "fraction"}

        def __init__(self, dim, heads, extent, fraction: float = 1.0):
            super().__init__(dim, heads, extent, fraction=fraction)

    assert renames.new_option(Renamed, "turns", parameters(Renamed, 3)) == "fraction"
    assert renames.new_option(Renamed, "stretch", parameters(Renamed, 3)) == "stretch"  # it has no such option
    with pytest.warns(DeprecationWarning, match="'turns' of Renamed"):
        assert Renamed(8, 2, Extent((9,)), turns=0.5).fraction == 0.5


# this repository uses the new names


RECIPES = sorted({*ROOT.glob("recipes/**/*.yaml"), *ROOT.glob("plugins/*/src/*/recipes/*.yaml")})
OLD_PARTS = {old.rpartition(".")[2] for old, new in renames.CLASSES.items()} - {"Auto"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_no_recipe_has_an_old_name(path):
    def check(value):
        if isinstance(value, dict):
            if isinstance(value.get("class_path"), str):
                name = value["class_path"].rpartition(".")[2]
                old = {row[1] for row in ROWS if related(name, row[0])}
                assert not old & set(value.get("init_args") or {}), name
        elif isinstance(value, str):
            assert value not in {*renames.CLASSES, *OLD_PARTS}
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(item)

    check(yaml.safe_load(path.read_text()))


@functools.cache
def bases_of(name):
    """The class paths of a part, task or data module of this name and of its bases."""
    for kind in registry.KINDS:
        for part in registry.parts(kind):
            if part.name.lower() == name.lower() and part.builtin:
                return {f"{base.__module__}.{base.__qualname__}" for base in part.load().__mro__}
    return set()


def related(name, path):
    """Whether a part, task or data module of this name has the options of a class."""
    return path in bases_of(name)


SOURCES = [
    path
    for folder in ("zoo", "tests", "bench", "plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path not in (ROOT / "zoo/renames.py", Path(__file__)) and "venv" not in path.parts
]


def test_no_source_calls_a_part_by_an_old_keyword():
    names = {path.rpartition(".")[2]: set(table) for path, table in renames.OPTIONS.items()}
    parts = [part for kind in registry.KINDS for part in registry.parts(kind) if part.builtin]
    names |= {part.name: set(renames.option_names(part.load())) for part in parts}
    attributes = {old for table in renames.ATTRIBUTES.values() for old in table} - {
        "missing", "groups", "asks", "seen", "chosen",  # which other classes have
    }  # fmt: skip
    keywords = set().union(*names.values())
    suspicious = re.compile(rf"\.\s*({'|'.join(attributes)})\b|\b({'|'.join(keywords)})\s*=(?!=)")
    for text, path in ((path.read_text(), path) for path in SOURCES):
        for node in ast.walk(ast.parse(text)) if suspicious.search(text) else ():
            if isinstance(node, ast.Call):
                called = [node.func, *node.args[:1]]  # partial(RoPE, …) too
                for name in {one.id for one in called if isinstance(one, ast.Name)} & names.keys():
                    old_words = {word.arg for word in node.keywords} & names[name]
                    assert not old_words, f"{path}:{node.lineno}: {name}({old_words})"
            elif isinstance(node, ast.Attribute):
                assert node.attr not in attributes, f"{path}:{node.lineno}: .{node.attr}"


def test_no_page_has_an_old_option():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").glob("*/README.md")]
    old = [f"{kind_of(path)}.{name}" for path, table in renames.OPTIONS.items() for name in table if ".parts." in path]
    old += ["model.patch", "data.workers"]
    for page in pages:
        if page.name == "mistakes.md" or page.parent.name == "lab":  # a diary, and commands that were tried
            continue
        for word in old:
            assert not re.search(rf"--(model\.)?{re.escape(word)}\b", page.read_text()), f"{page}: {word}"


def test_attentions_have_no_old_attribute_of_their_own():
    for part in registry.parts("attention"):
        cls = part.load()
        assert issubclass(cls, Attention)
        assert not {"lowers", "asks", "missing"} & set(vars(cls))

# ruff: noqa: E501 - tables of cases
"""Malformed recipes and options: each is answered by its line or its key."""

import pytest

SOUND = """\
model:
  class_path: CausalLM
  init_args:
    dim: 16
    depth: 1
    heads: 2
    norm: {class_path: RMSNorm, init_args: {eps: 1e-6}}
data:
  class_path: TextFiles
  init_args:
    path: text.txt
    tokenizer: bytes
    max_length: 16
trainer:
  accelerator: cpu
  max_steps: 1
"""
# what is replaced in the sound recipe, by what, and what the answer must name
EDITS = [
    ("dim: 16", "dim: sixteen", "r.yaml:4"), ("dim: 16", "dim: -1", "dim"), ("dim: 16", "dim: 0", "dim"),
    ("dim: 16", "dim: 1e400", "r.yaml:4"), ("dim: 16", "dim: .nan", "r.yaml:4"), ("dim: 16", "dim: null", "r.yaml:4"),
    ("dim: 16", "dim: [16]", "r.yaml:4"), ("dim: 16", "dim: {a: 1}", "r.yaml:4"), ("dim: 16", "dim: 16.5", "r.yaml:4"),
    ("dim: 16", "dim: true", "r.yaml:4"), ("dim: 16", "dim: 0x10", "r.yaml:4"),
    ("dim: 16", "dim: 010", "r.yaml:4"), ("dim: 16", "dim: 16\n    dim: 17", "written twice"),
    ("dim: 16", "dmi: 16", "'model.dim'"), ("dim: 16", "d_model: 16", "model.dim"), ("dim: 16", "dim: 17", "heads"),
    ("dim: 16", "dim: 16\n    lr: .nan", "r.yaml:5"), ("dim: 16", "dim: 16\n    lr: -1", "lr"),
    ("dim: 16", "dim: 16\n    lr: .inf", "lr"), ("dim: 16", "dim: 16\n    lr: fast", "r.yaml:5"),
    ("dim: 16", "dim: 16\n    dropout: 2", "dropout"), ("dim: 16", "dim: 16\n    dropout: -0.1", "dropout"),
    ("depth: 1", "depth: 0", "depth"), ("depth: 1", "depth: -3", "depth"), ("depth: 1", "depth: one", "r.yaml:5"),
    ("heads: 2", "heads: 0", "heads"), ("heads: 2", "heads: 3", "heads"), ("heads: 2", "heads: -2", "heads"),
    ("heads: 2", "heads:\t2", "r.yaml"), ("heads: 2", "  heads: 2", "r.yaml is not valid YAML: line 6"),
    ("heads: 2", "heads: 2:", "line 6"), ("heads: 2", "heads 2", "r.yaml"), ("heads: 2", "- heads", "line 6"),
    ("heads: 2", "? [a]\n    : 2", "r.yaml:6"), ("heads: 2", "heads: *x", "line 6"), ("heads: 2", "heads: &", "line 6"),
    ("heads: 2", "heads: !!int two", "r.yaml:6"), ("heads: 2", "heads: @2", "line 6"), ("heads: 2", "heads: `2`", "line 6"),
    ("heads: 2", "heads: %2", "line 6"), ("heads: 2", "heads: 'two", "r.yaml"), ("heads: 2", "<<: {heads: 2}", "r.yaml:6"),
    ("RMSNorm", "RMSNrom", "RMSNorm"), ("RMSNorm", "MultiHead", "r.yaml:7"), ("RMSNorm", "''", "r.yaml:7"),
    ("RMSNorm", "3", "r.yaml:7"), ("RMSNorm", "null", "r.yaml:7"), ("RMSNorm", "[RMSNorm]", "r.yaml:7"),
    ("RMSNorm", "{a: 1}", "r.yaml:7"), ("RMSNorm", "zoo.parts.norm.Nope", "r.yaml:7"), ("RMSNorm", "zoo.nope.X", "r.yaml:7"),
    ("RMSNorm", "zoo.parts.norm.Norm", "r.yaml:7"), ("RMSNorm", "zoo.parts.norm.nn", "r.yaml:7"), ("RMSNorm", "..", "r.yaml:7"),
    ("eps: 1e-6", "epz: 1e-6", "'eps'"), ("eps: 1e-6", "eps: tiny", "r.yaml:7"), ("eps: 1e-6", "eps: {b: 1}", "r.yaml:7"),
    ("{eps: 1e-6}", "3", "init_args must hold keys"), ("{eps: 1e-6}", "[1]", "init_args must hold keys"),
    ("{class_path: RMSNorm, init_args: {eps: 1e-6}}", "{init_args: 3}", "r.yaml:7"),
    ("{class_path: RMSNorm, init_args: {eps: 1e-6}}", "[RMSNorm, LayerNorm]", "norm"),
    ("class_path: CausalLM", "class_path: CausalML", "CausalLM"), ("class_path: CausalLM", "class_path: TextFiles", "r.yaml:2"),
    ("class_path: CausalLM", "class_path:", "r.yaml:2"), ("class_path: CausalLM\n  ", "", "no task is chosen"),
    ("class_path: TextFiles", "class_path: TextFile", "TextFiles"), ("path: text.txt", "path: nope.txt", "nope.txt"),
    ("path: text.txt", "path: 3", "r.yaml:11"), ("path: text.txt", "path: []", "path"),
    ("path: text.txt", "path: {a: b}", "r.yaml:11"), ("path: text.txt", "pth: text.txt", "data.path"),
    ("path: text.txt\n    ", "", "data.path"), ("tokenizer: bytes", "tokenizer: byte", "r.yaml:12"),
    ("tokenizer: bytes", "tokenizer: null", "r.yaml:12"), ("max_length: 16", "max_length: 0", "max_length"),
    ("max_length: 16", "max_length: 16\n    batch_size: 0", "batch_size"),
    ("max_length: 16", "max_length: 16\n    val_fraction: 1", "val_fraction"),
    ("max_length: 16", "max_length: 16\n    val_fraction: half", "r.yaml:14"),
    ("max_length: 16", "max_length: 16\n    num_workers: -1", "num_workers"),
    ("max_steps: 1", "max_step: 1", "trainer.max_steps"), ("max_steps: 1", "max_steps: many", "r.yaml:16"),
    ("max_steps: 1", "max_steps: -5", "max_steps"), ("max_steps: 1", "precision: 17", "r.yaml:16"),
    ("max_steps: 1", "strategy: ddpp", "ddpp"), ("max_steps: 1", "callbacks: [Timr]", "Timer"),
    ("max_steps: 1", "callbacks: [3]", "r.yaml:16"), ("max_steps: 1", "gradient_clip_algorithm: x", "gradient_clip_algorithm"),
    ("max_steps: 1", "logger: {class_path: CSVLogger}", "save_dir"), ("max_steps: 1", "max_time: tomorrow", "tomorrow"),
    ("max_steps: 1", "max_steps: 1\nseed_everything: -1", "seed_everything"),
    ("max_steps: 1", "max_steps: 1\nseed_everything: one", "r.yaml:17"),
    ("max_steps: 1", "max_steps: 1\nckpt_path: nope.ckpt", "nope.ckpt"), ("max_steps: 1", "max_steps: 1\nmodle: 3", "'model'"),
    ("accelerator: cpu", "accelerator: tpuu", "tpuu"), ("accelerator: cpu", "accelerator: cpu\n  devices: 0", "devices"),
    ("trainer:", "trainer: 3\nx:", "r.yaml:16"), ("trainer:", "Trainer:", "'trainer'"), ("trainer:", "model:", "written twice"),
    ("trainer:", "trainer: [", "r.yaml"), ("trainer:", "\x00trainer:", "r.yaml"), ("trainer:", "}trainer:", "r.yaml"),
]  # fmt: skip
WHOLE = {
    "no keys": (b"- 1\n- 2\n", "r.yaml"), "a text": (b"hello", "r.yaml"), "a number": (b"3", "r.yaml"), "empty": (b"", "is empty"),
    "comments": (b"# nothing\n", "is empty"), "latin 1": ("model: é".encode("latin1"), "line 1 holds byte 0xe9"),
    "utf-16": (SOUND.encode("utf-16"), "line 1 holds byte 0xff"), "binary": (bytes(range(256)), "r.yaml"),
    "two documents": (b"a: 1\n---\nb: 2\n", "r.yaml"), "json that is none": (b'{"model": ', "r.yaml"),
    "a control character": (b"model: \x07", "line 1"), "tabs": (b"model:\n\tclass_path: x\n", "line 2"),
    "a checkpoint": (b"PK\x03\x04" + bytes(99), "r.yaml"), "unclosed": (b"model: {class_path: 'x", "r.yaml"),
}  # fmt: skip
OPTIONS = [
    (["--model.dim"], "model.dim"), (["--model.dim", "x"], "--model.dim x"), (["--model.dmi", "3"], "model.dim"), (["--lr", "1"], "model.lr"),
    (["--model..dim", "3"], "beside a dot"), (["--model.", "3"], "beside a dot"), (["--.dim", "3"], "--.dim"), (["--", "3"], "--"),
    (["-x"], "-x"), (["--model.dim", "[1"], "--model.dim [1"), (["--model.dim", "{a: 1, a: 2}"], "written twice"), (["other"], "one recipe"),
    (["--trainer.max_steps", "1e3x"], "max_steps"), (["--seed", "-1"], "seed"), (["--seed", "x"], "--seed x"), (["--resume=1"], "no value"),
    (["--name", "a/b"], "--name"), (["--name"], "needs a value"), (["-c"], "needs a value"), (["-c", "nope.yaml"], "nope.yaml"), (["--data", "Nope"], "Nope"),
    (["--model.norm.eps.x", "1"], "eps"), (["--model.norm", "none"], "norm"), (["--data.path", ""], "path"), (["--resume"], "nothing to resume"),
    (["--allow-import", "a b"], "a b"), (["--allow-import"], "needs a value"), (["--ckpt_path", "."], "'.'"), (["--overwriet"], "--overwrite"),
    (["--model.position", "alibi", "--model.backend", "flash"], "ALiBi"), (["--runs", "text.txt"], "text.txt"), (["--trainer.devices", "[[["], "devices"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _text(tmp_path):
    (tmp_path / "text.txt").write_text("a text of little interest " * 20)


@pytest.mark.parametrize(("old", "new", "message"), EDITS)
def test_a_recipe_with_one_mistake(answered, tmp_path, old, new, message):
    assert SOUND.count(old) == 1
    (tmp_path / "r.yaml").write_text(SOUND.replace(old, new))
    assert message in answered("fit", "r.yaml")


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_no_recipe(answered, tmp_path, name):
    content, message = WHOLE[name]
    (tmp_path / "r.yaml").write_bytes(content)
    assert message in answered("fit", "r.yaml")


@pytest.mark.parametrize(("words", "message"), OPTIONS)
def test_an_option_with_a_mistake(answered, tmp_path, words, message):
    (tmp_path / "r.yaml").write_text(SOUND)
    assert message in answered("fit", "r.yaml", *words)


def test_a_recipe_that_is_no_file(answered, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked.yaml").symlink_to("nowhere.yaml")
    for name in ("folder", "nope", "nope.yaml", "locked.yaml", "/dev/zero", "lm-tny"):
        assert name in answered("fit", name)


def test_the_recipe_of_the_mistakes_is_sound(tmp_path, monkeypatch, capsys):
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(SOUND)
    assert main(["fit", "r.yaml", "--print_config"]) == 0

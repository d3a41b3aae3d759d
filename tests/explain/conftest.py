"""Small recipes to explain, whose data are made here."""

import pytest

TEXT = "the cat eats an apple and the dog eats a table. " * 40

LANGUAGE = """\
model:
  class_path: CausalLM
  init_args: {dim: 16, depth: 3, heads: 2, position: ALiBi}
data:
  class_path: TextFiles
  init_args: {path: corpus.txt, tokenizer: chars, max_length: 16, batch_size: 4}
trainer: {max_steps: 2}
"""
IMAGES = """\
model:
  class_path: Classification
  init_args: {dim: 16, depth: 2, heads: 2, patch_size: 7, pool: cls}
data:
  class_path: Glyphs
  init_args: {size: 200, batch_size: 4}
trainer: {max_steps: 2}
"""
TRANSLATION = """\
model:
  class_path: Translation
  init_args: {dim: 16, depth: 2, heads: 2}
data:
  class_path: Phrasebook
  init_args: {size: 300, kinds: [date, unit], vocab_size: 400, max_length: 64, max_tokens: 128}
trainer: {max_steps: 2}
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """The working folder with the files lm.yaml, vit.yaml and pairs.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(TEXT)
    for name, text in (("lm", LANGUAGE), ("vit", IMAGES), ("pairs", TRANSLATION)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def ceilings(monkeypatch):
    """A machine whose ceilings need not be measured."""
    from zoo.explain import ceilings

    machine = ceilings.Ceilings(1e11, 1e10, {"gelu": 1e9, "softmax": 1e9})
    monkeypatch.setattr(ceilings, "this_machine", lambda again=False: machine)
    return machine

"""One thread, one seed, a cache of its own, and three small recipes."""

import contextlib
import os

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

try:
    from tests.plugin_paths import registered  # in zoo's checkout the package need not be installed
except ImportError:

    def registered(*_):
        return contextlib.nullcontext()


torch.set_num_threads(1)
RECIPES = {
    "lm": """\
model: {class_path: CausalLM, init_args: {dim: 16, depth: 3, heads: 2, position: ALiBi}}
data: {class_path: TextFiles, init_args: {path: corpus.txt, tokenizer: chars, max_length: 16, batch_size: 4}}
trainer: {max_steps: 2}
""",
    "vit": """\
model: {class_path: Classification, init_args: {dim: 16, depth: 2, heads: 2, patch_size: 7, pool: cls}}
data: {class_path: Glyphs, init_args: {size: 200, batch_size: 4}}
trainer: {max_steps: 2}
""",
    "pairs": """\
model: {class_path: Translation, init_args: {dim: 16, depth: 2, heads: 2}}
data:
  class_path: Phrasebook
  init_args: {size: 300, kinds: [date, unit], vocab_size: 400, max_length: 64, max_tokens: 128}
trainer: {max_steps: 2}
""",
}


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _registered(tmp_path_factory):
    """The package's data, recipes and command are found by their names."""
    with registered("zoo-exercises", tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """The working folder with the files of RECIPES."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("the cat eats an apple and the dog eats a table. " * 40)
    for name, text in RECIPES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path

"""`zoo explain` of the text tasks: attention and predictions of a text with blanks, costs of a step."""

import pytest
import torch
from text_helpers import TINY
from zoo_text.inference.labelling import TrainedSequenceClassification, TrainedTokenClassification
from zoo_text.inference.masked import TrainedMaskedLM
from zoo_text.tasks.labelling import SequenceClassification, TokenClassification
from zoo_text.tasks.masked import MaskedLM

from zoo.data.tokenizer import CLS, MASK, PAD, SEP, Tokenizer
from zoo.errors import UsageError
from zoo.explain.costs import step_memory
from zoo.explain.inside import TOKENS, look_inside
from zoo.explain.subjects import find_subject, with_options
from zoo.inference.find_run import ModelLocation

NAMES = ["cat", "dog", "other"]
WRAPPED = """\
model:
  class_path: MaskedLM
  init_args: {dim: 16, depth: 1, heads: 2}
data:
  class_path: MaskedText
  init_args:
    text: {class_path: TextFiles, init_args: {path: corpus.txt, tokenizer: chars, max_length: 16, batch_size: 4}}
trainer: {max_steps: 2}
"""


@pytest.fixture
def trained(tmp_path):
    """A trained model, in float64, of a task, and of the class that uses it."""

    def make(task, use, **options):
        tokenizer = Tokenizer.bytes([PAD, CLS, SEP, MASK])
        tokenizer.save(tmp_path / "tokenizer.json")
        (tmp_path / "labels.json").write_text('{"names": ["cat", "dog", "other"]}')
        module = task(tokenizer.vocab_size, max_length=100, **TINY | options).double().eval().requires_grad_(False)
        config = {"model": {"class_path": f"{task.__module__}.{task.__name__}", "init_args": {}}}
        return use(module, ModelLocation(tmp_path, tmp_path / "best.ckpt", config, tmp_path / "config.yaml"))

    return make


@torch.no_grad()
def test_a_text_with_blanks_is_followed_to_what_is_filled_in(trained):
    model = trained(MaskedLM, TrainedMaskedLM, depth=2)
    inside = look_inside(model, "a [MASK] b")
    row = model.tokenizer.marked(model.encode_blanks("a [MASK] b"))
    assert len(inside.tokens) == len(row)
    assert [head.weights.shape for head in inside.heads] == [(2, len(row), len(row))] * 2
    torch.testing.assert_close(inside.heads[0].weights.sum(-1), torch.ones(2, len(row)))
    assert len(inside.layers) == 3
    chances = model.net(torch.tensor([row]))[0].softmax(-1)
    for place, guesses in enumerate(inside.layers[-1]):
        assert guesses[0].probability == pytest.approx(float(chances[place].max()))


@pytest.mark.parametrize(
    ("task", "use", "count"),
    [(SequenceClassification, TrainedSequenceClassification, 1), (TokenClassification, TrainedTokenClassification, 5)],
)
def test_a_text_is_followed_to_its_class_or_those_of_its_tokens(trained, task, use, count):
    model = trained(task, use, num_classes=len(NAMES))
    inside = look_inside(model, "meow")
    assert len(inside.tokens) == 5  # and <cls>
    assert len(inside.layers[-1]) == count
    assert {guess.label for guesses in inside.layers[-1] for guess in guesses} <= {*NAMES}
    assert len(look_inside(model, "x" * 90).tokens) == TOKENS + 1
    for wrong in (None, ""):
        with pytest.raises(UsageError, match="--text"):
            look_inside(model, wrong)


@pytest.mark.parametrize("key", ["trainer.precision=bf16-mixed", "model.recompute=true"])
def test_the_memory_of_data_made_of_other_data_is_estimated(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("the cat eats an apple and the dog eats a table. " * 40)
    (tmp_path / "wrapped.yaml").write_text(WRAPPED)
    in_float32 = find_subject(["wrapped.yaml"], with_options(["trainer.precision=32-true"]))
    memory, batch = step_memory(in_float32)
    assert memory.total > 0
    assert "batch" in batch
    assert in_float32.rows == 4
    assert not in_float32.notes
    changed = find_subject(["wrapped.yaml"], with_options([key]))
    assert "the memory of a step is that of float32" in " ".join(changed.notes)

"""nnsight and TransformerLens look inside an export of a trained run, and find what zoo finds."""

import importlib.util

import pytest
import torch
from import_steps import gap
from zoo_pretrained.hf_export import export_pretrained

import zoo
from zoo.cli import main
from zoo.explain.activations import change, record

TEXT = "the cat eats"
RECIPE = """\
model:
  class_path: CausalLM
  init_args: {dim: 32, depth: 2, heads: 4, position: RoPE, norm: RMSNorm, ffn: SwiGLU, lr: 1.0e-2}
data:
  class_path: TextFiles
  init_args: {path: corpus.txt, tokenizer: chars, max_length: 32, batch_size: 4}
trainer: {max_steps: 20}
"""
NAMES = ("stack.blocks.*.attend.part", "stack.blocks.*.ffn.part", "stack.blocks.*")
CLOSE = 1e-5


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install -e '.[inside]'")


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """A trained model, its export as transformers loads it, the tokenizer of the export, and tokens."""
    import transformers

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "corpus.txt").write_text("the cat eats an apple and the dog eats a table. " * 40)
    (tmp_path / "lm.yaml").write_text(RECIPE)
    assert main(["fit", "lm.yaml"]) == 0
    ours = zoo.load("runs/lm/default/s1")
    export_pretrained(ours, tmp_path / "exported")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    ids = ours.tokenizer.encode(TEXT)
    assert tokenizer(TEXT)["input_ids"] == ids
    return ours.net, theirs, tokenizer, torch.tensor([ids])


@torch.no_grad()
def activations_of(net, tokens):
    with record(net, *NAMES) as activations:
        logits = net(tokens)
    return activations, logits


@needs("nnsight")
@torch.no_grad()
def test_nnsight_reads_and_changes_the_activations_of_an_export(exported):
    import nnsight

    net, theirs, tokenizer, tokens = exported
    activations, logits = activations_of(net, tokens)
    model = nnsight.LanguageModel(theirs, tokenizer=tokenizer)
    with model.trace(tokens):
        attention = model.model.layers[0].self_attn.output[0].save()
        block = model.model.layers[0].output.save()
        feed_forward = model.model.layers[1].mlp.output.save()
        output = model.lm_head.output.save()
    assert gap(attention, activations["stack.blocks.0.attend.part"]) < CLOSE
    assert gap(block, activations["stack.blocks.0"]) < CLOSE
    assert gap(feed_forward, activations["stack.blocks.1.ffn.part"]) < CLOSE
    assert gap(output, logits) < CLOSE
    with model.trace(tokens):
        model.model.layers[0].mlp.output[:] = 0
        without = model.lm_head.output.save()
    with change(net, {"stack.blocks.0.ffn.part": lambda name, x: 0 * x}):
        expected = net(tokens)
    assert gap(without, expected) < CLOSE
    assert gap(expected, logits) > 0.1  # so that the change is one


@needs("transformer_lens")
@torch.no_grad()
def test_transformer_lens_caches_and_changes_the_activations_of_an_export(exported):
    from transformer_lens.model_bridge import TransformerBridge

    net, theirs, tokenizer, tokens = exported
    activations, logits = activations_of(net, tokens)
    model = TransformerBridge.boot_transformers("exported", hf_model=theirs, tokenizer=tokenizer, device="cpu")
    output, cache = model.run_with_cache(tokens)
    assert gap(output, logits) < CLOSE
    for layer in range(2):
        assert gap(cache[f"blocks.{layer}.hook_attn_out"], activations[f"stack.blocks.{layer}.attend.part"]) < CLOSE
        assert gap(cache[f"blocks.{layer}.hook_mlp_out"], activations[f"stack.blocks.{layer}.ffn.part"]) < CLOSE
        assert gap(cache[f"blocks.{layer}.hook_out"], activations[f"stack.blocks.{layer}"]) < CLOSE
    hook = ("blocks.0.hook_mlp_out", lambda value, hook: torch.zeros_like(value))
    with change(net, {"stack.blocks.0.ffn.part": lambda name, x: 0 * x}):
        expected = net(tokens)
    assert gap(model.run_with_hooks(tokens, fwd_hooks=[hook]), expected) < CLOSE
    assert gap(expected, logits) > 0.1

"""Models that no family is, as models of transformers: the same numbers, its generation, its files."""

import copy
import json
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from zoo_pretrained import transformers_models as models
from zoo_pretrained.transformers_export import export_transformers, sizes

import zoo
from zoo.cli import main
from zoo.data.tokenizer import Tokenizer
from zoo.inference.rebuild_task import complete_options
from zoo.models.generation import GenerationConfig, generate
from zoo.parts.attention import MultiHead, TokenMixer
from zoo.parts.block import PreNorm
from zoo.parts.cache import PartState

try:
    from tests.forks import run as run_program  # in zoo's checkout: a fork has imported torch
except ImportError:
    from subprocess import run as run_program

WORDS, EOS, DIM, DEPTH = 61, 2, 16, 2
COMMON = {"dim": DIM, "depth": DEPTH, "heads": 4, "max_length": 48}
TEXT = {**COMMON, "vocab_size": WORDS}
PAIR = {**COMMON, "source_vocab_size": WORDS, "target_vocab_size": WORDS}
IMAGE = {"dim": DIM, "depth": DEPTH, "heads": 4, "num_classes": 5, "image_size": 8, "channels": 3, "patch_size": 4}
LM, TRANSLATION = "zoo.tasks.lm.CausalLM", "zoo.tasks.translation.Translation"


def part(name, **options):
    return {"class_path": f"zoo.parts.{name}", "init_args": options}


CAUSAL = {
    "alibi-swiglu": {"position": part("position.ALiBi"), "ffn": part("ffn.SwiGLU"), "norm": part("norm.RMSNorm")},
    "window-sandwich": {"window": 5, "block": part("block.Sandwich"), "tie": False},
    "shaw": {"attention": part("shaw.Shaw"), "position": part("position.NoPosition")},
    "grouped": {"attention": part("attention.MultiHead", kv_heads=2), "position": part("position.Learned")},
    "experts": {"ffn": part("ffn.MoE", experts=4, top_k=2), "scale_embedding": True},
    "capped": {"logit_cap": 2.0, "logit_scale": 3.0, "tie": False, "head_bias": True, "embedding_scale": 2.0},
    "overrides": {"overrides": [{"layers": "every 2nd", "position": part("position.NoPosition")}]},
}
PAIRS = {
    "t5-bias": {"position": part("position.T5"), "tie": "all", "scale_logits": True},
    "deep-decoder": {"decoder_depth": 3, "tie": "none", "output_bias": True, "norm": part("norm.RMSNorm")},
}
OTHERS = {
    "vit": (models.ZooForImageClassification, "zoo.tasks.classification.Classification", IMAGE),
    "vit-registers": (
        models.ZooForImageClassification, "zoo.tasks.classification.Classification",
        {**IMAGE, "pool": "cls", "registers": 2, "position": part("position.Learned")},
    ),
    "masked": (models.ZooForMaskedLM, "zoo_text.tasks.masked.MaskedLM", {**TEXT, "norm": part("norm.RMSNorm")}),
    "texts": (
        models.ZooForSequenceClassification, "zoo_text.tasks.labelling.SequenceClassification",
        {**TEXT, "num_classes": 5, "segments": 2, "block": part("block.Parallel")},
    ),
    "tokens": (
        models.ZooForTokenClassification, "zoo_text.tasks.labelling.TokenClassification", {**TEXT, "num_classes": 5},
    ),
}  # fmt: skip
# each test of a whole generation has three of them; cached steps, which it consists of, have all
GENERATED = ("window-sandwich", "grouped", "experts")
PADDED = ("alibi-swiglu", "grouped", "shaw")
CASES = {
    **{name: (models.ZooForCausalLM, LM, {**TEXT, **options}) for name, options in CAUSAL.items()},
    **{name: (models.ZooForConditionalGeneration, TRANSLATION, {**PAIR, **options}) for name, options in PAIRS.items()},
    **OTHERS,
}


def some_of(names):
    """All causal models for pytest's parametrize; others than these are for campaigns."""
    return [pytest.param(name, marks=[] if name in names else [pytest.mark.campaign]) for name in CAUSAL]


def build_model(name, **changes):
    cls, path, options = CASES[name]
    options = {**options, **changes}
    task = complete_options({"class_path": path, "init_args": options})
    facts = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": EOS, **sizes(task["init_args"])}
    start = {"decoder_start_token_id": 1} if path == TRANSLATION else {}
    model = cls(cls.config_class(task=task, **facts, **start)).eval()
    if cls.can_generate():
        model.generation_config.update(pad_token_id=EOS, eos_token_id=EOS, **start)
    with torch.no_grad():
        for weight in model.parameters():  # so that texts do not repeat one token
            weight.mul_(3.0 if weight.dim() > 1 else 1.0)
    return model


def inputs_of(model, rows=3, tokens=7):
    if isinstance(model, models.ZooForImageClassification):
        return {"pixel_values": torch.randn(rows, 3, 8, 8)}
    ids = torch.randint(3, WORDS, (rows, tokens))
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    target = {"decoder_input_ids": torch.randint(3, WORDS, (rows, 5))} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": mask, **target}


def own_logits(model, inputs):
    """What the network of zoo computes by itself."""
    if "pixel_values" in inputs:
        return model.net(inputs["pixel_values"])
    valid = inputs["attention_mask"].bool()
    if model.config.is_encoder_decoder:
        return model.net(inputs["input_ids"], inputs["decoder_input_ids"], valid)
    return model.net(inputs["input_ids"], valid)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_it_computes_what_zoo_computes_and_is_saved_and_loaded(name, tmp_path):
    model = build_model(name)
    inputs = inputs_of(model)
    result = model(**inputs, output_hidden_states=True, output_attentions=True)
    assert torch.equal(result.logits, own_logits(model, inputs))
    states = result.decoder_hidden_states if model.config.is_encoder_decoder else result.hidden_states
    weights = result.decoder_attentions if model.config.is_encoder_decoder else result.attentions
    assert len(states) == model.stacks()[-1].blocks.__len__() + 1
    assert weights[-1].shape[:2] == (3, 4)
    model.save_pretrained(tmp_path)
    again = model.auto.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert torch.equal(again(**inputs).logits, result.logits)
    assert not again.training


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_cached_steps_of_any_length_give_what_one_pass_gives(name):
    model = build_model(name)
    ids = torch.randint(3, WORDS, (2, 11))
    whole = model(ids, use_cache=False)
    assert whole.cache is None
    for cache in (DynamicCache(), DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=16)):
        pieces = [model(piece, cache=cache).logits for piece in ids.split([4, 1, 1, 5], 1)]
        assert torch.allclose(torch.cat(pieces, 1), whole.logits, atol=2e-5)


class Latent(MultiHead):
    """An attention whose cache does not hold what ``weigh`` takes, as far as anyone else can know."""

    def project(self, x, memory, pattern, position, cache):
        return super().project(x, memory, pattern, position, cache)


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_weights_behind_a_cache_are_rows_of_the_whole_or_refused(name):
    model = build_model(name)
    ids = torch.randint(3, WORDS, (2, 9))
    whole = model(ids, use_cache=False, output_attentions=True).attentions
    cache, rows = DynamicCache(), []
    for piece in ids.split([4, 1, 4], 1):
        rows.append(model(piece, cache=cache, output_attentions=True).attentions)
    for layer, weights in enumerate(whole):
        together = torch.cat([torch.nn.functional.pad(row[layer], (0, 9 - row[layer].size(-1))) for row in rows], 2)
        assert torch.allclose(together, weights, atol=1e-5)
    for block in model.net.stack.blocks:
        block.attend.part.__class__ = Latent
    cache = model(ids[:, :4], output_attentions=True).cache
    with pytest.raises(
        ValueError, match=r"weights of Latent cannot be shown behind a cache\. Call with use_cache=False"
    ):
        model(ids[:, 4:], cache=cache, output_attentions=True)


@pytest.mark.parametrize("name", some_of(GENERATED))
@torch.no_grad()
def test_generation_is_that_of_zoo(name):
    model = build_model(name)
    ids = torch.randint(3, WORDS, (2, 6))
    texts = model.generate(ids, max_new_tokens=12, do_sample=False)
    state = model.net.begin(18)
    greedy = [beams[0].tokens for beams in generate(state, ids, EOS, GenerationConfig(max_length=12))]
    for row, tokens in zip(texts[:, 6:].tolist(), greedy, strict=True):
        assert row[: len(tokens)] == list(tokens)
    without = model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=False)
    static = model.generate(ids, max_new_tokens=12, do_sample=False, cache_implementation="static")
    assert torch.equal(without, texts)
    assert torch.equal(static, texts)
    beams = model.generate(ids, max_new_tokens=8, num_beams=4, do_sample=False)
    uncached = model.generate(ids, max_new_tokens=8, num_beams=4, do_sample=False, use_cache=False)
    assert torch.equal(beams, uncached)
    sampled = [_seeded_sample(model, ids, use_cache) for use_cache in (True, False)]
    assert torch.equal(*sampled)


def _seeded_sample(model, ids, use_cache):
    torch.manual_seed(3)
    return model.generate(ids, max_new_tokens=8, do_sample=True, use_cache=use_cache)


@pytest.mark.parametrize("name", some_of(PADDED))
@torch.no_grad()
def test_padding_on_the_left_changes_no_text(name):
    model = build_model(name)
    ids = torch.randint(3, WORDS, (2, 8))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    together = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    static = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, cache_implementation="static")
    assert torch.equal(static, together)
    alone = model.generate(ids[:1, 3:], max_new_tokens=6, do_sample=False)
    assert together[0, 8 : 8 + alone.size(1) - 5].tolist() == alone[0, 5:].tolist()


@pytest.mark.parametrize("name", ["alibi-swiglu", "grouped", "experts"])
@torch.no_grad()
def test_an_assistant_changes_no_text(name):
    model, assistant = build_model(name), build_model("shaw")
    ids = torch.randint(3, WORDS, (1, 6))
    texts = model.generate(ids, max_new_tokens=12, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, assistant_model=assistant), texts)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=3), texts)


@pytest.mark.parametrize("name", PAIRS)
@torch.no_grad()
def test_translations_are_those_of_one_pass(name):
    model = build_model(name)
    ids = torch.randint(3, WORDS, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    for search in ({}, {"num_beams": 3}):
        cached, uncached = (
            model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False, use_cache=use, **search)
            for use in (True, False)
        )
        assert torch.equal(cached, uncached)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    target = torch.randint(3, WORDS, (2, 6))
    whole = model(ids, mask, decoder_input_ids=target, use_cache=False).logits
    pieces = [model(ids, mask, decoder_input_ids=piece, cache=cache).logits for piece in target.split([2, 1, 3], 1)]
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=2e-5)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), target], 1)
    real = torch.cat([torch.zeros_like(target[:, :3]), torch.ones_like(target)], 1)
    moved = model(ids, mask, decoder_input_ids=padded, decoder_attention_mask=real, use_cache=False).logits
    assert torch.allclose(moved[:, 3:], whole, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_zoo_with_and_without_checkpointing(name):
    model = build_model(name)
    inputs = inputs_of(model)
    classes = WORDS if "LM" in type(model).__name__ or model.config.is_encoder_decoder else 5
    shape = own_logits(model, inputs).shape[:-1]
    inputs["labels"] = torch.randint(3, classes, shape)
    if len(shape) > 1:
        inputs["labels"][0, :2] = -100
    gradients = []
    for checkpointing in (False, True):
        twin = copy.deepcopy(model).train()
        if checkpointing:
            twin.gradient_checkpointing_enable()
            assert twin.is_gradient_checkpointing
            assert all(stack.recompute for stack in twin.stacks())
        twin(**inputs).loss.backward()
        gradients.append({key: weight.grad for key, weight in twin.named_parameters()})
    assert all(grad is not None for grad in gradients[0].values())
    assert all(torch.allclose(gradients[0][key], gradients[1][key], atol=1e-6) for key in gradients[0])


def test_a_mixture_adds_its_own_loss_in_training_alone():
    model = build_model("experts")
    inputs = inputs_of(model)
    inputs["labels"] = inputs["input_ids"]
    alone = model(**inputs).loss
    together = model.train()(**inputs).loss
    assert together > alone + 1e-3  # of two layers, each 0.01 at uniform load


class Streams(PreNorm):
    """A block of two streams, both of which carry the same."""

    residual_streams = 2

    def forward(self, x, context):
        return super().forward(x.mean(-2), context).unsqueeze(-2).expand_as(x)


@torch.no_grad()
def test_hidden_states_of_several_streams_are_their_mean():
    model = build_model("alibi-swiglu")
    inputs = inputs_of(model)
    states = model(**inputs, output_hidden_states=True).hidden_states
    for block in model.net.stack.blocks:
        block.__class__ = Streams
    streams = model(**inputs, output_hidden_states=True).hidden_states
    assert all(torch.allclose(mine, theirs, atol=1e-6) for mine, theirs in zip(streams, states, strict=True))


@pytest.mark.parametrize("name", ["alibi-swiglu", "window-sandwich", "t5-bias", "masked", "masked-no-bias", "texts"])
@torch.no_grad()
def test_the_vocabulary_can_grow_and_shrink(name, tmp_path):
    model = build_model("masked", output_bias=False) if name == "masked-no-bias" else build_model(name)
    inputs = inputs_of(model)
    before = model(**inputs).logits
    model.resize_token_embeddings(WORDS + 9, mean_resizing=False)
    after = model(**inputs).logits
    assert torch.allclose(after[..., : before.size(-1)], before, atol=1e-6)
    model.save_pretrained(tmp_path)
    again = model.auto.from_pretrained(tmp_path)
    assert again.config.vocab_size == WORDS + 9
    assert torch.equal(again(**inputs).logits, after)
    model.resize_token_embeddings(WORDS)
    assert torch.allclose(model(**inputs).logits, before, atol=1e-6)


@pytest.mark.parametrize("name", CAUSAL)
def test_states_and_the_matrix_of_logits_are_there_for_trainers_that_join_them_themselves(name):
    model = build_model(name).train()
    ids, labels = torch.randint(5, WORDS, (2, 9)), torch.randint(5, WORDS, (2, 9))
    states = model.base_model(input_ids=ids, use_cache=False, output_hidden_states=True)
    assert states.hidden_states[-1] is states.last_hidden_state
    head = model.get_output_embeddings()
    logits = states.last_hidden_state @ head.weight.T * model.config.logit_scale
    logits = logits if head.bias is None else logits + head.bias
    if cap := model.config.final_logit_softcapping:
        logits = cap * torch.tanh(logits / cap)
    assert torch.allclose(logits, model(ids).logits, atol=1e-5)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    grads = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), labels.flatten()).backward()
    assert all(torch.allclose(weight.grad, grads[name], atol=1e-5) for name, weight in model.named_parameters()
               if weight.grad is not None)  # fmt: skip
    names = set(model.state_dict())
    model.set_output_embeddings(model.get_output_embeddings())
    assert set(model.state_dict()) == names


def labels_of(model, inputs):
    """Random labels (B,) or (B, T) of which rows count different numbers."""
    classes = WORDS if "LM" in type(model).__name__ or model.config.is_encoder_decoder else 5
    labels = torch.randint(3, classes, own_logits(model, inputs).shape[:-1])
    for row in range(len(labels) if labels.dim() > 1 else 0):
        labels[row, : row + 1] = -100
    return labels


PROBLEMS = [(name, None) for name in CASES] + [("texts", "multi_label_classification"), ("texts", "regression")]


@pytest.mark.parametrize(("name", "problem"), PROBLEMS)
@torch.no_grad()
def test_the_losses_of_pieces_of_a_batch_add_up_to_that_of_the_batch(name, problem):
    model = build_model(name).eval()
    model.config.problem_type = problem
    inputs = inputs_of(model)
    inputs["labels"] = torch.rand(3, 5) if problem else labels_of(model, inputs)
    labels = inputs["labels"][:, 1:] if isinstance(model, models.ZooForCausalLM) else inputs["labels"]
    items = labels.ne(-100).sum()
    whole = model(**inputs).loss
    pieces = [{key: value[row : row + 1] for key, value in inputs.items()} for row in range(3)]
    assert torch.allclose(sum(model(**piece, num_items_in_batch=items).loss for piece in pieces), whole, rtol=1e-4)
    assert torch.allclose(model(**inputs, num_items_in_batch=int(items)).loss, whole, rtol=1e-4)


def test_a_mixtures_own_loss_is_shared_among_accumulated_batches():
    model = build_model("experts").train()
    inputs = inputs_of(model)
    inputs["labels"] = inputs["input_ids"]
    items = inputs["labels"][:, 1:].numel()
    whole = model(**inputs).loss
    assert torch.allclose(model(**inputs, num_items_in_batch=4 * items).loss, whole / 4, rtol=1e-4)


TIED = [("alibi-swiglu", True), ("masked", True), *(("t5-bias", tie) for tie in ("output", "inputs", "all"))]


@pytest.mark.parametrize(
    ("name", "tie", "replace"),
    [  # each load takes half a second: one of the two for each model in turn
        pytest.param(name, tie, replace, marks=[] if number % 2 == replace else [pytest.mark.campaign])
        for number, (name, tie) in enumerate(TIED)
        for replace in (False, True)
    ],
)
@torch.no_grad()
def test_a_tied_model_loaded_untied_has_its_own_matrix_and_is_saved_with_it(name, tie, replace, tmp_path):
    model = build_model(name, tie=tie)
    inputs = inputs_of(model)
    model.save_pretrained(tmp_path / "tied")
    untied = model.auto.from_pretrained(tmp_path / "tied", tie_word_embeddings=False)
    assert torch.equal(untied(**inputs).logits, model(**inputs).logits)
    assert untied.config.tie_word_embeddings is False
    assert not models.shared_weights(untied)
    head = untied.get_output_embeddings()
    if replace:
        head = torch.nn.Linear(DIM, WORDS, bias=False)
        untied.set_output_embeddings(head)
    head.weight.add_(torch.rand_like(head.weight))
    logits = untied(**inputs).logits
    assert not torch.allclose(logits, model(**inputs).logits, atol=1e-2)
    untied.save_pretrained(tmp_path / "untied")
    again = model.auto.from_pretrained(tmp_path / "untied")
    assert torch.equal(again(**inputs).logits, logits)
    assert again.config.tie_word_embeddings is False
    tied = model.auto.from_pretrained(tmp_path / "untied", tie_word_embeddings=True)
    assert tied.config.tie_word_embeddings is True
    assert tied.net.state_dict().keys() < again.net.state_dict().keys() or name == "t5-bias"


@pytest.mark.parametrize(("name", "tie"), TIED)
@torch.no_grad()
def test_a_new_matrix_of_a_tied_model_is_saved(name, tie, tmp_path):
    model = build_model(name, tie=tie)
    inputs = inputs_of(model)
    model.set_output_embeddings(torch.nn.Linear(DIM, WORDS, bias=False))
    logits = model(**inputs).logits
    model.save_pretrained(tmp_path)
    again = model.auto.from_pretrained(tmp_path)
    assert torch.equal(again(**inputs).logits, logits)
    assert models.shared_weights(again) == models.shared_weights(model)


@pytest.mark.parametrize("name", ["texts", "tokens", "vit"])
def test_adapters_train_and_save_a_new_layer_of_classes(name, tmp_path):
    """PEFT puts a copy in the place of each module whose name ends with ``classifier`` or ``score``."""
    build_model(name).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {key for key in stored if "head" in key} == {"net.head.weight", "net.head.bias"}
    model = build_model(name).auto.from_pretrained(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    names = [key for key, _ in model.named_modules() if key.endswith(("classifier", "score"))]
    assert len(names) == 1
    parent, _, child = names[0].rpartition(".")
    setattr(model.get_submodule(parent), child, torch.nn.Linear(DIM, 3, bias=False))
    model(**inputs_of(model)).logits.square().sum().backward()
    assert model.get_submodule(names[0]).weight.grad.abs().sum() > 0
    again = build_model(name)
    again.load_state_dict(stored)  # as a trainer that goes on reads it
    whole = model.auto.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(weight, whole[key]) for key, weight in again.state_dict().items())
    peft = pytest.importorskip("peft", reason="adapts models")
    kind = {"texts": "SEQ_CLS", "tokens": "TOKEN_CLS"}.get(name)
    saved = {} if kind else {"modules_to_save": ["classifier"]}
    model = model.auto.from_pretrained(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["qkv"], task_type=kind, **saved))
    trained = [key for key, weight in adapted.named_parameters() if weight.requires_grad and "lora" not in key]
    assert [key.rpartition(".")[2] for key in trained] == ["weight", "bias"]


@pytest.mark.parametrize("name", [*CAUSAL, *PAIRS, "masked"])
def test_the_matrix_of_logits_is_one_module_that_adapters_find_and_leave_out(name):
    model = build_model(name)
    head = model.get_output_embeddings()
    if head is not None:
        assert [module for module in model.modules() if module is head] == [model.get_output_embeddings()]
    peft = pytest.importorskip("peft", reason="adapts models")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    assert any("lora" in key for key, _ in adapted.named_parameters())
    twin = copy.deepcopy(build_model(name))
    if name in CAUSAL:
        assert twin.get_output_embeddings().weight is twin.net.output


@pytest.mark.parametrize(
    "name",  # one model of each class
    [
        pytest.param(name, marks=[] if name in ("grouped", "t5-bias", *OTHERS) else [pytest.mark.campaign])
        for name in CASES
        if name != "vit-registers"
    ],
)
def test_sizes_that_follow_from_the_task_cannot_be_set_beside_it(name, tmp_path):
    model = build_model(name)
    model.save_pretrained(tmp_path)
    facts = sizes(model.config.task["init_args"])
    for key in facts.keys() - {"vocab_size", "num_labels", "tie_word_embeddings"}:
        with pytest.raises(ValueError, match=rf"{key}={facts[key] + 1} is not this model's, which is {facts[key]}"):
            model.auto.from_pretrained(tmp_path, **{key: facts[key] + 1})


@pytest.mark.parametrize("shape", [(3, 4, 8), (3, 8, 4), (3, 16, 16), (1, 8, 8), (4, 8, 8), (8, 8)])
def test_an_image_of_another_shape_is_refused_with_both(shape):
    words = r"must be \(batch, 3, 8, 8\), got \(2, " + ", ".join(map(str, shape))
    with pytest.raises(ValueError, match=words):
        build_model("vit")(torch.rand(2, *shape))


class MeanState(PartState):
    """The sum of all tokens so far, (B, dim), and their number."""

    def __init__(self):
        self.total, self.count = torch.empty(0), 0


class RunningMean(TokenMixer):
    """The mean of a token and those before it: a part that remembers no keys."""

    def cache(self, capacity, window=None):
        return MeanState()

    def forward(self, x, memory=None, *, pattern, position=None, cache=None):
        before, count = (cache.total, cache.count) if cache is not None and cache.count else (0.0, 0)
        total = x.cumsum(1) + (before[:, None] if count else 0.0)
        number = torch.arange(count + 1, count + 1 + x.size(1))[None, :, None]
        if cache is not None:
            cache.total, cache.count = total[:, -1], count + x.size(1)
        return total / number


@pytest.mark.parametrize("layers", [pytest.param([0], marks=pytest.mark.campaign), [1], [0, 1]])
@torch.no_grad()
def test_a_part_with_a_state_of_its_own_is_decoded(layers, monkeypatch):
    build = models.build_network

    def mixed(config):
        net = build(config)
        for layer in layers:
            net.stack.blocks[layer].attend.part = RunningMean(DIM, 4)
        return net

    monkeypatch.setattr(models, "build_network", mixed)
    model = build_model("grouped")
    ids = torch.randint(3, WORDS, (2, 9))
    whole = model(ids, use_cache=False).logits
    for cache in (DynamicCache(), DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=16)):
        for _ in range(2):
            pieces = [model(piece, cache=cache).logits for piece in ids.split([4, 1, 4], 1)]
            assert torch.allclose(torch.cat(pieces, 1), whole, atol=2e-5)
            assert int(cache.get_seq_length()) == 9
            cache.reset()
            if isinstance(cache, DynamicCache) and len(layers) < 2:
                break  # of keys it only sets zeros, and remembers how many there were
    for search in ({}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 3}):
        texts = [
            model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=use, **search) for use in (True, False)
        ]
        assert torch.equal(*texts)
    with pytest.raises((ValueError, NotImplementedError)):
        model.generate(ids[:1], max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)


def test_a_trainer_with_a_loss_of_its_own_keeps_no_graph_of_earlier_steps():
    """It takes the labels out of what the model gets, and with them the losses of a mixture's balance."""
    model = build_model("experts").train()
    ids = torch.randint(3, WORDS, (2, 6))
    losses = []
    for _ in range(3):
        model(ids).logits.sum().backward()
        losses += [part.aux_loss for part in model.modules() if getattr(part, "aux_loss", None) is not None]
        assert all(part.aux_calls == 1 for part in model.modules() if getattr(part, "aux_loss", None) is not None)
    assert losses
    model(ids, labels=ids).loss.backward()


@torch.no_grad()
def test_what_zoo_would_compute_otherwise_is_refused():
    model = build_model("alibi-swiglu")
    ids = torch.randint(3, WORDS, (2, 6))
    with pytest.raises(ValueError, match="position_ids must count"):
        model(ids, position_ids=torch.arange(5, 11)[None])
    model(ids, position_ids=torch.arange(6)[None])
    encoder = build_model("texts")
    padded = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    for net in (model, encoder):
        net(ids, attention_mask=padded, position_ids=torch.arange(6)[None])
    with pytest.raises(ValueError, match="position_ids must count"):
        encoder(ids, position_ids=torch.arange(6).flip(0)[None])
    with pytest.raises(ValueError, match=r"attention_mask must be \(batch, tokens\)"):
        model(ids, attention_mask=torch.ones(2, 1, 6, 6))
    pair = build_model("deep-decoder")
    with pytest.raises(ValueError, match="one vocabulary for both sides"):
        pair.resize_token_embeddings(WORDS + 1)


FIT = {
    "lm-tiny": ("AutoModelForCausalLM", ["--model.position", "alibi", "--model.ffn", "swiglu"]),
    "translation-tiny": ("AutoModelForSeq2SeqLM", ["--model.norm", "rmsnorm"]),
    "vit-glyphs": ("AutoModelForImageClassification", ["--model.position", "rope"]),
}
PROGRAM = """
import json, sys, torch, transformers
torch.set_num_threads(1)
folder, auto = sys.argv[1:3]
model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
generator = torch.Generator().manual_seed(1)
if model.main_input_name == "pixel_values":
    side, channels = model.config.image_size, model.config.num_channels
    inputs = {"pixel_values": torch.randn(2, channels, side, side, generator=generator)}
else:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = {"input_ids": tokenizer("Return the", return_tensors="pt")["input_ids"]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :3]
model.save_pretrained("again")
again = getattr(transformers, auto).from_pretrained("again", trust_remote_code=True)
with torch.no_grad():
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)
    print(json.dumps([model(**inputs).logits.double().flatten().tolist(), {k: v.tolist() for k, v in inputs.items()}]))
"""


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name == "lm-tiny" else [pytest.mark.campaign]) for name in FIT]
)
def test_a_run_is_exported_and_loaded_where_nothing_imported_zoo(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    auto, options = FIT[recipe]
    small = ["--model.dim", "16", "--model.depth", "1", "--model.heads", "2"]
    assert main(["fit", recipe, *options, *small, "--trainer.max_steps", "2"]) == 0
    run = next((tmp_path / "runs").rglob("config.yaml")).parent
    assert main(["export", str(run), "out", "--format", "transformers"]) == 0, capsys.readouterr().err
    assert "transformers: Zoo" in capsys.readouterr().err
    names = [name for name in sys.path if name]
    done = run_program(
        [sys.executable, "-c", PROGRAM, "out", auto], capture_output=True, text=True,
        env={"PYTHONPATH": ":".join(names), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    logits, inputs = json.loads(done.stdout.splitlines()[-1])
    net = zoo.load(run).net
    tensors = [torch.tensor(value) for value in inputs.values()]
    with torch.no_grad():
        assert torch.allclose(net(*tensors).flatten(), torch.tensor(logits), atol=1e-5)


@pytest.mark.campaign
def test_a_translators_second_tokenizer_is_kept_and_named(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    texts = {"en": "a b c\nd e\nb d a\n" * 9, "de": "xy z\nz\nyy x\n" * 9}
    for split in ("train", "val"):
        for language, text in texts.items():
            (tmp_path / f"{split}.{language}").write_text(text)
    data = ["--data.path", ".", "--data.source", "en", "--data.target", "de", "--data.options.shared", "false"]
    words = ["fit", "translation-tiny", "--data", "ParallelFiles", *data, "--model.tie", "output"]
    assert main([*words, "--trainer.max_steps", "2"]) == 0, capsys.readouterr().err
    run = next((tmp_path / "runs").rglob("config.yaml")).parent
    assert main(["export", str(run), "out", "--format", "transformers"]) == 0
    target = transformers.PreTrainedTokenizerFast(tokenizer_file="out/target-tokenizer.json")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained("out")
    assert len(target) == model.config.vocab_size
    assert model.generation_config.eos_token_id == target.convert_tokens_to_ids("<eos>")
    assert "decode targets by target-tokenizer.json" in capsys.readouterr().err + caplog.text


def test_a_folder_without_the_packages_names_them(tmp_path):
    text = models.STUB.format(
        config="NoSuchConfig", model="NoSuch", packages="zoo-transformers 0.1.0, zoo-pretrained 0.1.0"
    )
    with pytest.raises(ImportError, match=r"needs zoo-transformers 0\.1\.0, zoo-pretrained 0\.1\.0"):
        exec(compile(text, "modeling_zoo.py", "exec"), {})


def test_other_models_are_refused_with_what_there_is(tmp_path):
    model = build_model("alibi-swiglu")
    config = copy.deepcopy(model.config)
    with pytest.raises(ValueError, match="LanguageModel of zoo is no ViT: take another"):
        models.ZooForImageClassification(config)
    with pytest.raises(ValueError, match="needs task"):
        models.ZooForCausalLM(models.ZooCausalLMConfig())
    assert transformers.AutoConfig.for_model("zoo_causal_lm")


@pytest.mark.parametrize(
    "path", ["zoo_text.tasks.preference.DPO", "zoo_text.tasks.infill.FIM", "zoo_frontier.task.MTP"]
)
def test_the_files_of_a_language_model_are_those_of_one_whatever_task_trained_it(path, tmp_path):
    """The side of padding, the beginning of a text, the special tokens around it, and the rules of generation."""
    (run := tmp_path / "run").mkdir()
    tokenizer = Tokenizer.bytes(("<eos>", "<pad>", "<cls>"))
    tokenizer.save(run / "tokenizer.json")
    files = []
    for class_path in (LM, path):
        options = {**TEXT, "vocab_size": tokenizer.vocab_size}
        task = complete_options({"class_path": class_path, "init_args": options})
        net = models.ZooForCausalLM(models.ZooCausalLMConfig(task=task, **sizes(task["init_args"]))).net
        place = SimpleNamespace(config={"model": task}, folder=run)
        export_transformers(SimpleNamespace(net=net, place=place), out := tmp_path / class_path)
        names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
        files.append({name: (out / name).read_text() for name in names})
        assert transformers.AutoTokenizer.from_pretrained(out).padding_side == "left"
    assert files[0] == files[1]

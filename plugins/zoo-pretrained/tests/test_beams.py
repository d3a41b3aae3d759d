"""Searches with several beams write what transformers writes: with several end tokens, and under every rule."""

import peers
import pytest
import torch

from zoo.inference.decoding_rules import GenerationRules, Ruled
from zoo.models.generation import GenerationConfig, generate

V, PROMPT, LONGEST = 12, [3, 5], 10
RULES = {
    "none": {}, "pairs": {"no_repeat_ngram_size": 2}, "triples": {"no_repeat_ngram_size": 3},
    "repetition": {"repetition_penalty": 1.5}, "rewarded repetition": {"repetition_penalty": 0.8},
    "words": {"bad_words_ids": [[7], [8], [2, 9]]}, "tokens": {"suppress_tokens": [4, 6]},
    "beginning": {"begin_suppress_tokens": [2, 7]}, "least": {"min_new_tokens": 4}, "end": {"forced_eos_token_id": 1},
    "divided": {"bad_words_ids": [[7], [8]], "repetition_penalty": 1.5, "renormalize_logits": True},
    "all": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "suppress_tokens": [4], "min_new_tokens": 2},
}  # fmt: skip


class Peer:
    """A decoding state of a model of transformers that computes the whole text anew."""

    def __init__(self, model):
        self.model, self.tokens = model, torch.empty(1, 0, dtype=torch.long)

    def step(self, tokens):
        self.tokens = torch.cat([self.tokens, tokens], 1)
        return self.model(self.tokens).logits[:, -1]

    def select(self, order):
        self.tokens = self.tokens[order]


def draw_model(seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": V, "n_positions": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.6}
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return peers.transformers.GPT2LMHeadModel(peers.transformers.GPT2Config(**sizes, **special)).eval()


@torch.no_grad()
@pytest.mark.parametrize("ends", [[0], [0, 1], [0, 1, 2, 3]])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("beams", [2, 3])
def test_beams_are_those_of_transformers(ends, name, beams):
    for seed in range(6):
        model, prompt = draw_model(seed), torch.tensor([PROMPT])
        settings = {"do_sample": False, "num_beams": beams, "max_new_tokens": LONGEST, "early_stopping": "never"}
        theirs = model.generate(prompt, attention_mask=torch.ones_like(prompt), eos_token_id=ends, pad_token_id=0,
                                length_penalty=2.0, **settings, **RULES[name])[0, len(PROMPT):].tolist()  # fmt: skip
        last = next((place for place, token in enumerate(theirs) if token in ends), len(theirs))
        rules = GenerationRules(eos_token_id=ends, **RULES[name])
        state = Ruled(Peer(model), [PROMPT], rules, [LONGEST], beams) if rules.change_logits else Peer(model)
        search = GenerationConfig(max_length=LONGEST, beams=beams, length_penalty=2.0)
        assert generate(state, prompt, ends, search)[0][0].tokens == theirs[:last], seed

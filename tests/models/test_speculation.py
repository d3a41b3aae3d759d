"""Speculative decoding gives the texts and the distribution of plain decoding, with fewer steps."""

import itertools
import random
from collections import Counter

import pytest
import torch
from scipy import stats

from tests.covering import choices_in_turn
from tests.models.test_generation import STATES, WRITERS, V, recipe_cases, rows, sharpen, sizes_and_classes
from tests.test_recipes import build
from zoo.errors import UsageError
from zoo.models import LanguageModel, Seq2Seq
from zoo.models.decoding_state import LanguageState
from zoo.models.generation import GenerationConfig, generate
from zoo.models.speculation import LONGEST, DraftModel, Guess, PromptLookup, check_state, generate_speculatively
from zoo.parts.cache import Cache, PartState


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Oracle:
    """Guesses that are right up to a place that changes from guess to guess, so that every outcome occurs."""

    def __init__(self, text, vocabulary, start):
        self.text, self.vocabulary, self.start = text, vocabulary, start
        self.wrong = itertools.cycle([0, 3, 9, 1, 2, 0, 0, 5])

    def guess(self, tokens, count):
        done = len(tokens) - self.start
        guess = list(self.text[done : done + count])
        place = next(self.wrong)
        if place < len(guess):
            guess[place] = (guess[place] + 1) % self.vocabulary
        return Guess(guess)


def check_speculation(model, vocabulary, length=20, own_draft=None):
    """Raises unless greedy text and score are those of plain decoding, whatever is guessed."""
    prompt = torch.randint(vocabulary, (12,)).tolist()
    search = GenerationConfig(max_length=length)
    ((expected,),) = generate(model.begin(40), torch.tensor([prompt]), None, search)
    end = expected.tokens[-3]
    ((ended,),) = generate(model.begin(40), torch.tensor([prompt]), end, search)
    other = sharpen(LanguageModel(vocabulary, 40, dim=8, depth=1, heads=1))
    for draft, right, last in (
        (Oracle(expected.tokens, vocabulary, len(prompt)), expected, None),
        (Oracle(expected.tokens, vocabulary, len(prompt)), ended, end),
        (PromptLookup(), expected, None),
        (DraftModel((other if own_draft is None else own_draft).begin(40), search), expected, None),
    ):
        result = generate_speculatively(model.begin(40), prompt, last, search, draft)
        assert (result.tokens, result.ended) == (right.tokens, right.ended)
        assert result.score == pytest.approx(right.score)


@rows("LanguageModel", strength=1)
@torch.no_grad()
def test_greedy_text_is_that_of_plain_decoding_for_parts_of_a_language_model(parts):
    check_speculation(sharpen(LanguageModel(V, 40, **sizes_and_classes(parts))), V)


@pytest.mark.parametrize("parts", STATES)
@torch.no_grad()
def test_greedy_text_is_that_of_plain_decoding_for_parts_with_states_of_their_own(parts):
    model = sharpen(LanguageModel(V, 40, dim=16, depth=2, heads=2, **parts))
    assert not model.begin(40).can_truncate
    check_speculation(model, V, own_draft=model)


@pytest.mark.parametrize("name", recipe_cases(*WRITERS))
@torch.no_grad()
def test_greedy_text_is_that_of_plain_decoding_for_every_recipe(name):
    net = build(name, torch.device("cpu"), small=True).net.double()
    if isinstance(net, LanguageModel):
        check_speculation(sharpen(net), 64, min(20, net.max_length - 13))


class Table:
    """The state of a toy whose next token depends on the last one only."""

    def __init__(self, logits):
        self.table, self.device, self.can_truncate = logits, torch.device("cpu"), True

    def logits(self, tokens, last):
        return self.table[tokens[:, -last:]]

    def truncate(self, length):
        pass


@pytest.mark.parametrize(
    ("options", "kind"),
    choices_in_turn([{}, {"temperature": 0.7, "top_k": 3}, {"temperature": 1.3, "top_p": 0.8}], ["draft", "lookup"]),
)
def test_samples_are_distributed_as_in_plain_decoding(kind, options):
    """Texts of three tokens over four symbols against their probabilities, by the chi-square test."""
    torch.manual_seed(5)
    target, other = torch.randn(4, 4), torch.randn(4, 4)
    search = GenerationConfig(max_length=3, **{"temperature": 1.0} | options)

    def logits(table):
        from zoo.models.generation import sampling_distribution

        return sampling_distribution(table.log_softmax(-1), search)

    steps = logits(target)
    prompt = [0, 1, 2, 3, 0, 1, 3, 2, 0, 1]
    expected = {
        text: float(steps[prompt[-1], text[0]] * steps[text[0], text[1]] * steps[text[1], text[2]])
        for text in itertools.product(range(4), repeat=3)
    }
    count, counts = 800, Counter()
    for seed in range(count):
        own = GenerationConfig(max_length=3, seed=seed, **{"temperature": 1.0} | options)
        draft = PromptLookup() if kind == "lookup" else DraftModel(Table(other), own)
        counts[tuple(generate_speculatively(Table(target), prompt, None, own, draft).tokens)] += 1
    impossible = {text for text, chance in expected.items() if chance == 0}
    assert not impossible & counts.keys()
    likely = [text for text in expected if expected[text] * count >= 5]
    observed = [counts[text] for text in likely]
    frequencies = [expected[text] * count for text in likely]
    unlikely = count - sum(frequencies)
    if unlikely > 5:
        observed, frequencies = [*observed, count - sum(observed)], [*frequencies, unlikely]
    frequencies = [one * sum(observed) / sum(frequencies) for one in frequencies]
    assert stats.chisquare(observed, frequencies).pvalue > 1e-3


def test_a_lookup_goes_on_as_the_longest_match_did_and_repeats_a_period():
    lookup = PromptLookup()
    assert lookup.guess([1, 2, 3], 4).tokens == []
    assert lookup.guess([1, 2, 3, 9, 1, 2], 3).tokens == [3, 9, 1]
    tokens = [1, 2, 3, 9, 1, 2, 5, 1, 2, 3]
    assert lookup.guess(tokens, 2).tokens == [9, 1]  # behind 1 2 3, not behind the later 1 2
    assert PromptLookup().guess([7, 8, 7, 8, 7], 6).tokens == [8, 7, 8, 7, 8, 7]
    assert PromptLookup().guess([7, 8, 7, 8], 0).tokens == []
    draw = random.Random(3)
    text = [draw.randrange(3) for _ in range(60)]
    grown, whole = PromptLookup(), []
    for token in text:  # grown token by token or read at once, it says the same
        whole.append(token)
        assert grown.guess(whole, 4) == PromptLookup().guess(whole, 4)


@torch.no_grad()
def test_a_text_that_repeats_itself_takes_fewer_steps(monkeypatch):
    model = sharpen(LanguageModel(V, 200, dim=16, depth=1, heads=2))
    steps, logits = [], LanguageState.logits
    monkeypatch.setattr(LanguageState, "logits", lambda *call: steps.append(call[1].size(1)) or logits(*call))
    text = generate_speculatively(
        model.begin(200), [1, 2, 3], None, GenerationConfig(max_length=150), Oracle([], V, 3)
    ).tokens
    assert steps == [3] + [1] * 149
    steps.clear()
    right = Oracle(text, V, 3)
    right.wrong = itertools.repeat(LONGEST)
    generate_speculatively(model.begin(200), [1, 2, 3], None, GenerationConfig(max_length=150), right)
    assert steps[:3] == [3 + 4, 1 + 8, 1 + LONGEST]
    assert len(steps) <= 3 + 150 // LONGEST


@torch.no_grad()
def test_min_length_and_stops_and_limits_are_those_of_plain_decoding():
    model = sharpen(LanguageModel(V, 60, dim=16, depth=1, heads=2))
    prompt = [1, 2, 3, 1, 2, 3]
    ((free,),) = generate(model.begin(60), torch.tensor([prompt]), None, GenerationConfig(max_length=20))
    end = free.tokens[0]
    search = GenerationConfig(max_length=20, min_length=6)
    ((expected,),) = generate(model.begin(60), torch.tensor([prompt]), end, search)
    result = generate_speculatively(model.begin(60), prompt, end, search, PromptLookup())
    assert (result.tokens, result.ended) == (expected.tokens, expected.ended)
    assert len(result.tokens) >= 6
    stopped = generate_speculatively(
        model.begin(60), prompt, None, search, PromptLookup(), lambda tokens: tokens[-1] == free.tokens[4]
    )
    assert stopped.ended
    assert stopped.tokens == free.tokens[: free.tokens.index(free.tokens[4]) + 1]
    short = DraftModel(LanguageModel(V, 8, dim=8, depth=1, heads=1).begin(60), search, limit=8)
    assert len(short.guess(prompt, 9).tokens) == 3  # the draft reads 8 tokens, of which the last is followed by one
    with pytest.raises(UsageError, match="beam search cannot be speculative"):
        generate_speculatively(model.begin(9), prompt, None, GenerationConfig(beams=2), PromptLookup())


def test_states_that_cannot_be_copied_are_refused_by_name():
    class Remembers(PartState):
        def __init__(self):
            self.tensors = [torch.ones(1)]

    model = LanguageModel(V, 8, dim=8, depth=1, heads=1)
    state = model.begin(8)
    assert check_state(state, "a model") is state
    state.caches[0] = state.caches[0]._replace(own=Remembers())
    with pytest.raises(UsageError, match="the state Remembers holds tensors, a list, and has no snapshot"):
        check_state(state, "a model")
    with pytest.raises(UsageError, match="a model cannot be decoded speculatively"):
        check_state(Seq2Seq(V, V, 8, dim=8, depth=1, heads=1).begin(torch.ones(1, 2, dtype=torch.long), None, 8),
                    "a model")  # fmt: skip


@torch.no_grad()
def test_a_snapshot_is_left_unchanged_by_later_steps():
    for window in (None, 3):
        cache = Cache(10, window)
        keys = torch.randn(1, 1, 10, 2)
        cache.extend(keys[:, :, :4], keys[:, :, :4])
        for new in (5, 6):  # the second time from the snapshot
            before = cache.snapshot()
            first = cache.extend(keys[:, :, new : new + 2], keys[:, :, new : new + 2])[0].clone()
            cache = before.snapshot()
            assert torch.equal(cache.extend(keys[:, :, new : new + 2], keys[:, :, new : new + 2])[0], first)
            cache = before

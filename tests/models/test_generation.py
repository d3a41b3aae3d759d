"""A model writes what it was trained to: with and without cache, in a batch or alone, padded or not, beam or greedy."""

import functools
import itertools

import pytest
import torch
import yaml
from small import covering_cases, part_options

from tests.conformance.published import GatedConvolution, Retention, TokenShift
from tests.test_recipes import DISTINCT, build
from zoo import recipe_files
from zoo.errors import UsageError
from zoo.models import LanguageModel, Seq2Seq
from zoo.models.generation import GenerationConfig, generate, independent_search, sample_token
from zoo.models.layer_overrides import Override

V, BEGIN, END = 13, 1, 2
WRITERS = ("CausalLM", "Translation")
# recipes of large models whose parts another recipe has, in a row that the default run tries
COSTLY_RECIPES = {"palm-540b": "palm-8b", "mistral-7b": "mixtral-8x7b", "llama3-8b": "mixtral-8x7b"}


def recipe_cases(*tasks):
    """The recipes of these tasks as cases of a test, those of COSTLY_RECIPES as cases of a campaign."""
    names = [name for name in DISTINCT if task_of(name) in tasks]
    assert {*COSTLY_RECIPES, *COSTLY_RECIPES.values()} <= set(names)
    return [pytest.param(name, marks=[pytest.mark.campaign] if name in COSTLY_RECIPES else []) for name in names]


def task_of(recipe):
    return yaml.safe_load(recipe_files.packaged_recipe(recipe).path.read_text())["model"]["class_path"]


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sharpen(model):
    """Make likeliest tokens differ, so that equality of tokens says something."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    return model.eval()


def takes_padding(model):
    return not any(part.unsupported(frozenset({"valid"})) for part in model.stack.attentions())


@torch.no_grad()
def uncached(model, prompt, length):
    """The likeliest tokens, each from a forward over everything so far."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def check_language_model(model, vocabulary):
    """Raises unless all ways of writing agree; returns how many tokens they agreed on."""
    prompts = [torch.randint(vocabulary, (n,)).tolist() for n in (3, 5, 5)]
    length = 6
    greedy = [uncached(model, prompt, length) for prompt in prompts]
    for beams in (1, 3):
        search = GenerationConfig(max_length=length, beams=beams)
        alone = [generate(model.begin(16), torch.tensor([prompt]), None, search)[0][0] for prompt in prompts]
        both = generate(model.begin(16), torch.tensor(prompts[1:]), None, search)
        assert [row[0].tokens for row in both] == [one.tokens for one in alone[1:]]
        if beams == 1:
            assert [one.tokens for one in alone] == greedy
        if takes_padding(model):
            width = max(map(len, prompts))
            padded = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
            valid = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
            hypotheses = generate(model.begin(16, valid), padded, None, search)
            assert [row[0].tokens for row in hypotheses] == [one.tokens for one in alone]
            assert [row[0].score for row in hypotheses] == pytest.approx([one.score for one in alone])
    tokens = torch.tensor([prompts[1] + greedy[1]])
    log_probs = model(tokens)[0].log_softmax(-1)
    want = sum(float(log_probs[i - 1, tokens[0, i]]) for i in range(len(prompts[1]), tokens.size(1)))
    got = generate(model.begin(16), tokens[:, :5], None, GenerationConfig(max_length=length))[0][0].score
    assert got == pytest.approx(want)
    state = model.begin(tokens.size(1))
    steps = torch.stack([state.step(tokens[:, i : i + 1])[0] for i in range(tokens.size(1))])
    torch.testing.assert_close(steps, model(tokens)[0], atol=1e-10, rtol=1e-8)


def check_translation(model, vocabulary):
    source = torch.randint(3, vocabulary, (3, 6))
    valid = torch.ones(3, 6, dtype=torch.bool)
    valid[1, 4:] = valid[2, 2:] = False
    first = torch.full((3, 1), BEGIN)
    greedy = []
    for row in range(3):
        tokens = [BEGIN]
        while len(tokens) < 8 and (len(tokens) == 1 or tokens[-1] != END):
            logits = model(source[row : row + 1], torch.tensor([tokens]), valid[row : row + 1])
            tokens.append(int(logits[0, -1].argmax()))
        greedy.append([token for token in tokens[1:] if token != END])
    for beams in (1, 3):
        search = GenerationConfig(max_length=7, beams=beams)
        batch = [row[0].tokens for row in generate(model.begin(source, valid, 8), first, END, search)]
        alone = [
            generate(model.begin(source[r : r + 1], valid[r : r + 1], 8), first[:1], END, search)[0][0]
            for r in range(3)
        ]
        short = generate(model.begin(source[2:, :2], None, 8), first[:1], END, search)[0][0]
        assert batch == [one.tokens for one in alone]
        assert short.tokens == batch[2]
        if beams == 1:
            assert batch == greedy
    target = torch.tensor([[BEGIN, *torch.randint(3, vocabulary, (6,)).tolist()]] * 3)
    state = model.begin(source, valid, 8)
    steps = torch.stack([state.step(target[:, i : i + 1]) for i in range(7)], 1)
    torch.testing.assert_close(steps, model(source, target, valid), atol=1e-10, rtol=1e-8)


def rows(model, strength):
    """Parts of a model: each one for strength 1, for 2 all pairs that do not refuse each other."""
    cases = covering_cases(model, "position", "attention", "backend", strength=strength, window=[None, 3])
    return pytest.mark.parametrize("parts", cases, ids=lambda row: "-".join(map(str, row.values())))


def sizes_and_classes(parts):
    return {"dim": 16, "depth": 2, "heads": 2, "window": parts["window"]} | part_options(
        {kind: name for kind, name in parts.items() if kind != "window"}
    )


@rows("LanguageModel", strength=2)
@torch.no_grad()
def test_all_ways_of_writing_agree_for_parts_of_a_language_model(parts):
    check_language_model(sharpen(LanguageModel(V, 32, **sizes_and_classes(parts))), V)


@rows("Seq2Seq", strength=1)
@torch.no_grad()
def test_all_ways_of_writing_agree_for_parts_of_a_translation(parts):
    check_translation(sharpen(Seq2Seq(V, V, 32, **sizes_and_classes(parts))), V)


STATES = [
    {"attention": Retention},
    {"overrides": [Override(layers="first", attention=Retention), Override(layers="last", block=TokenShift)]},
    {"overrides": [Override(layers="first", attention=GatedConvolution), Override(layers="last", window=3)]},
]


@pytest.mark.parametrize("parts", STATES)
@torch.no_grad()
def test_all_ways_of_writing_agree_for_parts_with_states_of_their_own(parts):
    sizes = {"dim": 16, "depth": 2, "heads": 2}
    check_language_model(sharpen(LanguageModel(V, 32, **sizes, **parts)), V)
    check_translation(sharpen(Seq2Seq(V, V, 32, **sizes, **parts)), V)


@pytest.mark.parametrize("name", recipe_cases(*WRITERS))
@torch.no_grad()
def test_all_ways_of_writing_agree_for_the_parts_of_every_recipe(name):
    net = build(name, torch.device("cpu"), small=True).net.double()
    check = check_language_model if isinstance(net, LanguageModel) else check_translation
    check(sharpen(net), 64)


def toy():
    torch.manual_seed(0)
    return sharpen(Seq2Seq(7, 5, 16, dim=16, depth=1, heads=2))


def toy_sources():
    """Two sources for ``toy``, of which the second is shorter."""
    source, valid = torch.randint(7, (2, 6), generator=torch.Generator().manual_seed(0)), torch.ones(2, 6).bool()
    valid[1, 3:] = False
    return source, valid


LONGEST = 4


@functools.cache
@torch.no_grad()
def enumeration(row):
    """Every sequence of at most LONGEST tokens over 5 symbols, whether it ends there, and its log-probability from one
    teacher-forced forward: penalties and least lengths change none of them.
    """
    model, (source, valid), every = toy(), toy_sources(), []
    for length in range(LONGEST + 1):
        for text in itertools.product([0, 1, 3, 4], repeat=length):
            ends = length < LONGEST
            tokens = torch.tensor([[BEGIN, *text, *([END] if ends else [])]])
            log_probs = model(source[row : row + 1], tokens[:, :-1], valid[row : row + 1]).log_softmax(-1)
            every.append((list(text), ends, float(log_probs[0].gather(1, tokens[0, 1:, None]).sum())))
    return every


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("least", [0, 2])
@torch.no_grad()
def test_wide_beams_find_what_enumeration_finds(penalty, least):
    source, valid = toy_sources()
    search = GenerationConfig(max_length=LONGEST, min_length=least, beams=400, n_best=5, length_penalty=penalty)
    answer = generate(toy().begin(source, valid, 16), torch.full((2, 1), BEGIN), END, search)
    for row in range(2):
        allowed = [
            (score / max(1, len(text) + ends) ** penalty, score, text)
            for text, ends, score in enumeration(row)
            if not ends or len(text) + 1 > least
        ]
        allowed.sort(key=lambda one: -one[0])
        assert [one.tokens for one in answer[row]] == [text for _, _, text in allowed[:5]]
        assert [one.score for one in answer[row]] == pytest.approx([score for _, score, _ in allowed[:5]])


class Chain:
    """Texts whose next token depends on the last one alone."""

    def __init__(self, logits):
        self.logits = logits

    def step(self, tokens):
        return self.logits[tokens[:, -1]]

    def select(self, order):
        pass


def slow_beams(log_probs, ends, width, limit):
    """The best finished text of a search that looks at every continuation of every beam, as transformers has it."""
    beams, finished = [(0.0, [BEGIN])], []
    for length in range(1, limit + 1):
        best = sorted(
            (
                (score + float(log_probs[text[-1], token]), [*text, token])
                for score, text in beams
                for token in range(V)
            ),
            reverse=True,
        )
        finished += [(score / length**2, text) for score, text in best[:width] if text[-1] in ends or length == limit]
        beams = [(score, text) for score, text in best if text[-1] not in ends][:width]
    text = max(finished)[1]
    return text[1:-1] if text[-1] in ends else text[1:]


@pytest.mark.parametrize("ends", [[2], [2, 3], [2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("width", [2, 3])
def test_beams_go_on_however_many_tokens_end_a_text(ends, width):
    for seed in range(40):
        logits = 3 * torch.randn(V, V, generator=torch.Generator().manual_seed(seed))
        logits[:, ends] += 2
        search = GenerationConfig(max_length=6, beams=width, length_penalty=2.0)  # longer texts win in the end
        answer = generate(Chain(logits), torch.tensor([[BEGIN]]), ends, search)
        assert answer[0][0].tokens == slow_beams(logits.log_softmax(-1), ends, width, 6)


@torch.no_grad()
def test_a_source_is_encoded_once_and_its_memory_projected_once():
    model, calls = toy(), []
    model.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    projections = []
    cross = model.decoder.blocks[0].cross.part
    keys = cross._keys
    cross._keys = lambda memory: projections.append(1) or keys(memory)
    generate(
        model.begin(torch.randint(7, (2, 6)), None, 16),
        torch.full((2, 1), BEGIN),
        END,
        GenerationConfig(max_length=9, beams=2),
    )
    assert calls == ["encoder"]
    assert len(projections) == 1


def test_draws_follow_the_distribution_top_k_and_top_p():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]).log().expand(20000, -1)
    generator = torch.Generator().manual_seed(1)

    def shares(**options):
        return torch.bincount(sample_token(logits, GenerationConfig(**options), generator), minlength=5) / 20000

    torch.testing.assert_close(shares(temperature=1.0), logits[0].exp(), atol=0.02, rtol=0)
    torch.testing.assert_close(shares(temperature=0.5), (logits[0] * 2).softmax(-1), atol=0.02, rtol=0)
    top_shares = shares(temperature=1.0, top_k=2)
    torch.testing.assert_close(top_shares, torch.tensor([2 / 3, 1 / 3, 0, 0, 0]), atol=0.02, rtol=0, check_dtype=False)
    assert shares(temperature=1.0, top_p=0.6).nonzero().flatten().tolist() == [0, 1]
    assert shares(temperature=1.0, top_p=0.2).nonzero().flatten().tolist() == [0]


@torch.no_grad()
def test_sampling_repeats_with_its_seed_and_leaves_the_global_one_alone():
    model = sharpen(LanguageModel(V, 32, dim=16, depth=1, heads=2))
    before = torch.get_rng_state()
    texts = [
        generate(
            model.begin(24), torch.tensor([[3]]), None, GenerationConfig(max_length=20, temperature=1.5, seed=seed)
        )[0][0].tokens
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def test_lengths_are_bounded_by_row_and_the_end_comes_not_before_the_least():
    model = toy()
    source = torch.randint(7, (3, 6))
    for beams in (1, 3):
        search = GenerationConfig(max_length=9, min_length=3, beams=beams)
        state = model.begin(source, None, 16)
        answer = generate(state, torch.full((3, 1), BEGIN), END, search, torch.tensor([3, 5, 9]))
        for (best, *_), longest in zip(answer, (3, 5, 9), strict=True):
            assert 3 <= len(best.tokens) + best.ended <= longest
            assert END not in best.tokens


@pytest.mark.parametrize(
    "options",
    [
        {"max_length": 0},
        {"min_length": 9, "max_length": 3},
        {"temperature": -1.0},
        {"top_k": 0},
        {"top_p": 0.0},
        {"beams": 0},
        {"n_best": 2},
        {"beams": 2, "temperature": 1.0},
        {"seed": 2**64},
        {"seed": -(2**63) - 1},
    ],
)
def test_impossible_searches_are_refused(options):
    with pytest.raises(UsageError):
        GenerationConfig(**options)


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), 0])
def test_every_seed_that_is_accepted_can_be_drawn_with(seed):
    search = GenerationConfig(max_length=1, temperature=1.0, seed=seed)
    for number in (0, 1, 2**40):
        torch.Generator().manual_seed(independent_search(search, number).seed)


def test_embeddings_are_scaled_by_the_root_of_the_width_where_asked_and_only_there():
    torch.manual_seed(0)
    usual, scaled = (LanguageModel(9, 8, dim=16, depth=1, heads=2, scale_embedding=scale) for scale in (False, True))
    scaled.load_state_dict(usual.state_dict())
    ids, inputs = torch.tensor([[1, 2, 3]]), []
    for net in (usual, scaled):
        net.stack.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        net(ids)
    assert torch.allclose(inputs[1], inputs[0] * 4.0)
    assert torch.equal(inputs[0], usual.embedding(ids))


@pytest.mark.parametrize("padded", [False, True])
def test_nothing_grows_with_each_token_where_no_prompt_is_padded(padded):
    model, tokens = LanguageModel(7, 16, dim=16, depth=1, heads=2).eval(), torch.randint(7, (2, 4))
    valid = torch.ones(2, 4, dtype=torch.bool)
    valid[1, 0] = not padded
    state = model.begin(12, valid)
    for step in (tokens, tokens[:, :1], tokens[:, :1]):
        state.step(step)
    assert (state.valid.shape if padded else state.valid) == ((2, 6) if padded else None)

"""Odd tokenizers, imported: tokens, texts, greedy generation and scores equal transformers', or a named refusal."""

import dataclasses
import io
import itertools
import json
from contextlib import redirect_stdout
from types import SimpleNamespace

import numpy as np
import peers
import pytest
import torch
from odd_tokenizers import LLAMA as LLAMA_SPECIALS
from odd_tokenizers import (
    TEXTS,
    by_class,
    byte_bpe,
    decoder_tokenizers,
    encoder_tokenizers,
    pair_tokenizers,
    piece_bpe,
    unigram,
    wordpiece,
)
from tokenizers import AddedToken
from zoo_pretrained import tokenizer_classes
from zoo_pretrained.tokenizer_files import export_tokenizers
from zoo_text.data.infill import InfillText
from zoo_text.data.infill_prompt import MIDDLE, PREFIX, SUFFIX
from zoo_text.data.preferences import PreferenceFiles
from zoo_text.inference.infill import TrainedInfill

import zoo
from zoo.cli import main
from zoo.data.conversation import SPECIALS, Turn, chat_tokens
from zoo.data.parallel_files import PairOptions, ParallelFiles
from zoo.data.text import TextFiles
from zoo.data.tokenizer import MASK, Tokenizer
from zoo.data.tokenizer_file import FORCED
from zoo.errors import UsageError
from zoo.inference.trained_model import Gap

transformers = peers.transformers
LLAMA = {**peers.LLAMA, "num_hidden_layers": 1}
LANGUAGE_MODEL = {"class_path": "zoo.tasks.lm.CausalLM", "init_args": {}}
TRANSLATOR = {"class_path": "zoo.tasks.translation.Translation", "init_args": {}}
DECODERS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**peers.GPT2, "n_layer": 1}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 8}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 2, "sliding_window": None}),
}
VOCABULARY_ALONE = {"bytes-prefix-space", "bytes-bos-by-flag", "bytes-added-by-file", "bytes-added-by-decoder"}
QWEN_ALONE = {"pieces", "unigram", "words"}  # which transformers reads with another class of tokenizer and cannot use


def build_checkpoint(case, save, folder, **more):
    """A tiny peer with the tokenizer of a function, in a folder; the peer's tokenizer."""
    folder.mkdir()
    cls, config, options = case
    kind = getattr(transformers, config).model_type
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    save(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    numbers = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    size = max(tokenizer.get_vocab().values()) + 1
    model = peers.build_peer((cls, config, {**options, "vocab_size": size, **numbers, **more}))
    model.save_pretrained(folder)
    return model, tokenizer


def import_checkpoint(source, target, *options):
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["import", str(source), str(target), *options]) == 0
    return zoo.load(target, device="cpu"), out.getvalue()


def same_tokens(ours, theirs, texts=TEXTS):
    """Tokens of every text, and the text of those tokens."""
    for text in texts:
        ids = theirs(text).input_ids
        assert ours.framed(ours.encode(text)) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    assert {ours.special(f"<{name}>") for name in ("eos", "pad", "bos")} == {
        theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id
    }  # fmt: skip


def right_text(model, tokenizer, prompt, **settings):
    """What transformers writes behind a prompt, as its pipeline cuts it off."""
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    pad = tokenizer.pad_token_id or 0
    whole = model.generate(**ids, do_sample=False, num_beams=1, pad_token_id=pad, **settings)[0]
    before = tokenizer.decode(ids.input_ids[0], skip_special_tokens=True)
    return tokenizer.decode(whole, skip_special_tokens=True)[len(before) :]


def in_turn(families, names, has_class):
    """Every family with every tokenizer that it can have; the default run has each tokenizer once, families in turn."""
    parameters = []
    for number, name in enumerate(names):
        usable = [family for family in families if has_class(family, name)]
        for family in usable:
            marks = [] if family == usable[number % len(usable)] else [pytest.mark.campaign]
            parameters.append(pytest.param(family, name, marks=marks))
    return parameters


def reads_decoder(family, name):
    """Whether transformers has a class for these files in this family; every tokenizer of a qwen2 is bytes to it."""
    if name in VOCABULARY_ALONE and family in ("mistral", "mixtral"):
        return False
    return family != "qwen2" or name.partition("-")[0] not in QWEN_ALONE


@torch.no_grad()
@pytest.mark.parametrize(("family", "name"), in_turn(DECODERS, decoder_tokenizers(), reads_decoder))
def test_a_decoder_reads_writes_and_scores_as_transformers(family, name, tmp_path):
    model, theirs = build_checkpoint(DECODERS[family], decoder_tokenizers()[name], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    same_tokens(ours.tokenizer, theirs)
    for text in ("the quick", "The model <tag> fox", "<|im_start|>user\nhi"):
        assert ours.generate(text, length=7, temperature=0.0)[0].text == right_text(
            model, theirs, text, max_new_tokens=7
        )
        ids = theirs(text, return_tensors="pt").input_ids
        start = theirs.bos_token_id if theirs.bos_token_id is not None else theirs.eos_token_id
        if not ours.tokenizer.template[0] and start is not None:
            ids = torch.cat([torch.tensor([[start]]), ids], 1)
        chance = model(ids).logits[:, :-1].double().log_softmax(-1).gather(2, ids[:, 1:, None])
        assert ours.score(text).log_probability == pytest.approx(float(chance.sum()), abs=1e-4)


@pytest.mark.parametrize("name", decoder_tokenizers())
def test_a_tokenizer_that_transformers_saved_reads_own_data(name, tmp_path):
    """transformers 5 writes the names of special tokens into tokenizer_config.json alone."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/config.json").write_text(json.dumps({"model_type": "llama"}))
    decoder_tokenizers()[name](tmp_path / "made")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    theirs.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved/special_tokens_map.json").unlink(missing_ok=True)
    ours = Tokenizer.load(tmp_path / "saved/tokenizer.json")
    for text in TEXTS:
        assert ours.framed(ours.encode(text)) == theirs(text).input_ids, text
    if name != "words-cleaned":  # transformers' class takes spaces out of the text afterwards; an import does, too
        same_tokens(ours, theirs)


ENCODERS = {"deberta": "deberta-3", "xlm": "xlm-roberta"}  # where a tokenizer's first word is not its family


@pytest.mark.parametrize("number", [0, 1, 2, 7])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "camembert"])
def test_positions_that_are_counted_by_another_token_than_the_padding_are_refused(family, number, tmp_path, capsys):
    """These families give the token of ``pad_token_id`` no position, whatever it is in the tokenizer."""
    _, theirs = build_checkpoint(peers.ENCODERS[family], encoder_tokenizers()[family], tmp_path / "theirs")
    path = tmp_path / "theirs/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": number}))
    is_padding = number == theirs.pad_token_id
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == (0 if is_padding else 2)
    message = f"pad_token_id={number} is the number of {theirs.convert_ids_to_tokens(number)!r}"
    assert is_padding or message in capsys.readouterr().err


@torch.no_grad()
@pytest.mark.parametrize("name", encoder_tokenizers())
def test_an_encoder_reads_and_fills_in_as_transformers(name, tmp_path):
    word = name.partition("-")[0]
    case = peers.ENCODERS[ENCODERS.get(word, word)]
    model, theirs = build_checkpoint(case, encoder_tokenizers()[name], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    same_tokens(ours.tokenizer, theirs)
    for text in ("the quick [MASK] jumps", "[MASK] fox", "a [MASK]"):
        row = theirs(text.replace("[MASK]", theirs.mask_token), return_tensors="pt").input_ids
        place = int((row[0] == theirs.mask_token_id).nonzero()[0])
        logits = model(row).logits[0, place].double()
        logits[sorted(ours.tokenizer.specials.values())] = -torch.inf
        best = logits.softmax(-1).topk(5)
        guesses = ours.fill(text)[0].guesses[0]
        assert [guess.probability for guess in guesses] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert [guess.label for guess in guesses] == [theirs.decode([number]) for number in best.indices.tolist()]


PAIRS = {"bart": "bart", "t5": "t5", "mt5": "mt5", "marian": "marian", "mbart": "mbart", "m2m100": "m2m100"}
OWN = {"bart": ("bart",), "t5": ("t5", "mt5"), "mbart": ("mbart",), "nllb": ("m2m100",)}  # families with a class


def reads_pair(family, name):
    """Whether the tokenizer is of no other family's own class."""
    return family in OWN.get(name.partition("-")[0], PAIRS)


@torch.no_grad()
@pytest.mark.parametrize(("family", "name"), in_turn(PAIRS, pair_tokenizers(), reads_pair))
def test_a_pair_translates_and_scores_as_transformers(family, name, tmp_path):
    layers = {"num_layers": 3} if "t5" in family else {}  # transformers' cache is as long as the encoder
    start = 2 if family == "m2m100" else 0  # M2M100 gives padding no position, and there 0 may be padding
    model, theirs = build_checkpoint(
        peers.PAIRS[PAIRS[family]], pair_tokenizers()[name], tmp_path / "theirs", decoder_start_token_id=start, **layers
    )
    if name == "no-template":
        model.generation_config.forced_bos_token_id = 0
        model.generation_config.save_pretrained(tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for text in TEXTS:
        assert ours._fit(1, ours.source_tokenizer.encode(text), "error") == theirs(text).input_ids, text
    for text in ("the quick brown fox", "it <extra_id_0> no !"):
        source = theirs(text, return_tensors="pt", return_token_type_ids=False)
        answer = model.generate(**source, do_sample=False, num_beams=1, max_new_tokens=9)
        translation = ours.translate(text, max_length=9)[0].text
        assert translation == theirs.decode(answer[0], skip_special_tokens=True)
        labels = theirs("quick fox", return_tensors="pt").input_ids
        decoder_ids = torch.cat([torch.tensor([[start]]), labels[:, :-1]], 1)
        chance = model(**source, decoder_input_ids=decoder_ids).logits.double().log_softmax(-1)
        right = float(chance.gather(2, labels[..., None]).sum())
        assert ours.score(text, "quick fox").log_probability == pytest.approx(right, abs=1e-4)


LANGUAGES = {  # the class, its family, the languages, and where the files say the target's
    "mbart-start": ("MBartTokenizer", "mbart", "en_XX", "ro_RO", "decoder_start_token_id"),
    "mbart-50-forced": ("MBart50Tokenizer", "mbart", "en_XX", "ro_RO", "forced_bos_token_id"),
    "mbart-50-named": ("MBart50Tokenizer", "mbart", "ro_RO", "en_XX", "tgt_lang"),
    "nllb-forced": ("NllbTokenizer", "m2m100", "eng_Latn", "fra_Latn", "forced_bos_token_id"),
    "nllb-legacy": ("NllbTokenizer", "m2m100", "eng_Latn", "fra_Latn", "forced_bos_token_id"),
    "nllb-named": ("NllbTokenizer", "m2m100", "fra_Latn", "deu_Latn", "tgt_lang"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", LANGUAGES)
def test_a_target_is_scored_and_trained_in_its_own_language(name, tmp_path):
    """transformers frames ``text_target`` with the target's language; what names it may be any of three files."""
    cls, family, source_language, target_language, where = LANGUAGES[name]
    settings = {"src_lang": source_language, **({"tgt_lang": target_language} if where == "tgt_lang" else {})}
    settings |= {"legacy_behaviour": True} if name == "nllb-legacy" else {}
    save = by_class(cls, **settings)
    model, theirs = build_checkpoint(peers.PAIRS[family], save, tmp_path / "theirs", decoder_start_token_id=2)
    theirs.tgt_lang, number = target_language, theirs.convert_tokens_to_ids(target_language)
    if where != "tgt_lang":
        setattr(model.generation_config, where, number)
        model.generation_config.save_pretrained(tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    start = number if where == "decoder_start_token_id" else 2
    for text in TEXTS:
        assert ours.source_tokenizer.framed(ours.source_tokenizer.encode(text)) == theirs(text).input_ids, text
        assert ours.target_ids(text) == [start, *theirs(text_target=text).input_ids], text
    source, labels = theirs("the quick fox", return_tensors="pt"), theirs(text_target="no fox", return_tensors="pt")
    decoder_ids = torch.cat([torch.tensor([[start]]), labels.input_ids[:, :-1]], 1)
    chance = model(**source, decoder_input_ids=decoder_ids).logits.double().log_softmax(-1)
    right = float(chance.gather(2, labels.input_ids[..., None]).sum())
    assert ours.score("the quick fox", "no fox").log_probability == pytest.approx(right, abs=1e-4)
    if theirs.suffix_tokens == [theirs.eos_token_id]:  # a language behind the text is refused for training
        (tmp_path / "train.en").write_text("the quick\nfox\n" * 20)
        (tmp_path / "train.de").write_text("no fox\nit\n" * 20)
        data = ParallelFiles(str(tmp_path), seed=0, options=PairOptions(tokenizer=str(tmp_path / "ours")))
        data.ready()
        train = data.datasets["train"]
        assert (train.batch(np.arange(len(train)), 0)["target"][:, 1] == number).all()


@pytest.mark.parametrize("kind", ["decoder", "encoder", "pair"])
def test_two_texts_stand_in_the_special_tokens_and_types_of_their_class(kind, tmp_path):
    """Every tokenizer, as its export gives it to transformers: two texts as with the published files."""
    for name, save in {"decoder": decoder_tokenizers, "encoder": encoder_tokenizers, "pair": pair_tokenizers}[
        kind
    ]().items():
        for folder in (
            source := tmp_path / name / "theirs",
            run := tmp_path / name / "run",
            out := tmp_path / name / "out",
        ):
            folder.mkdir(parents=True)
        save(source)
        word = name.partition("-")[0]
        families = {
            "roberta": "roberta",
            "deberta": "deberta-v2",
            "xlm": "xlm-roberta",
            "modernbert": "modernbert",
            "t5": "t5",
        }
        config = {"model_type": families.get(word, {"decoder": "gpt2", "encoder": "bert", "pair": "bart"}[kind])}
        (source / "config.json").write_text(json.dumps(config))
        theirs = transformers.AutoTokenizer.from_pretrained(source)
        published = tokenizer_classes.read(source, config)
        names = {f"<{role}>": token for role, token in published.roles.items()}
        Tokenizer(published.inner, names, published.splits_specials).save(run / "tokenizer.json")
        options = {"segments": 2 if "token_type_ids" in theirs.model_input_names else 1, "max_length": 12}
        export_tokenizers(
            run, out, {"class_path": "zoo_text.tasks.labelling.SequenceClassification", "init_args": options}, config
        )
        (out / "config.json").write_text(json.dumps(config))
        ours = transformers.AutoTokenizer.from_pretrained(out)
        for texts in (("the quick", "fox"), ("", "no"), ("it", "")):
            right = theirs(*texts, return_token_type_ids=True)
            assert {**ours(*texts, return_token_type_ids=True)} == {**right}, (name, texts)
            assert {**ours(*texts)} == {**theirs(*texts)}, (name, texts)
        assert len(ours("the quick " * 9, truncation=True)["input_ids"]) == 12, name


RULES = {
    "ends": {"eos_token_id": [0, 7, 11]}, "no-end": {"eos_token_id": None}, "forced-end": {"forced_eos_token_id": 5},
    "suppressed": {"suppress_tokens": [3, 4, 40]}, "begin": {"begin_suppress_tokens": list(range(30, 200))},
    "bad-words": {"bad_words_ids": [[9], [300, 12], [0]], "eos_token_id": 0},
    "short": {"min_length": 12, "min_new_tokens": 3, "eos_token_id": list(range(100))},
    "repeated": {"no_repeat_ngram_size": 2}, "penalty": {"repetition_penalty": 3.0},
    "first": {"forced_bos_token_id": 8},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "where"),
    [
        pytest.param(name, where, marks=[] if (row + column) % 2 == 0 else [pytest.mark.campaign])
        for row, name in enumerate(RULES)
        for column, where in enumerate(["generation_config.json", "config.json"])
    ],
)
def test_rules_of_generation_are_obeyed(name, where, tmp_path):
    save = decoder_tokenizers()["bytes"]
    model, theirs = build_checkpoint(DECODERS["gpt2"], save, tmp_path / "theirs")
    config = tmp_path / "theirs" / "generation_config.json"
    if where == "config.json":
        config.unlink()
        config = tmp_path / "theirs" / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, **RULES[name]}))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for prompt in ("the quick brown fox", "a", "it doesn't matter it doesn't"):
        right = right_text(model, theirs, prompt, max_new_tokens=12)
        assert ours.generate(prompt, length=12, temperature=0.0)[0].text == right
    ours.export(tmp_path / "exported")
    again = zoo.load(tmp_path / "exported", device="cpu")
    assert (again.tokenizer.names, again.tokenizer.published) == (ours.tokenizer.names, True)
    assert again.generate("a", length=12, temperature=0.0) == ours.generate("a", length=12, temperature=0.0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["pieces-first", "pieces-legacy", "unigram-bytes", "bytes", "words-cleaned"])
def test_what_follows_a_prompt_is_cut_from_the_whole_text(name, tmp_path):
    model, theirs = build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()[name], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    prompt, before = "the quick brown", ours.tokenizer.template[0]
    text = ours.generate(prompt, length=12, temperature=0.0)[0].text
    for start in range(0, len(text) - 1, 3):
        stop = text[start : start + 3]
        for speculate in (None, "lookup"):
            ours.speculate(speculate)
            answer = ours.generate(prompt, length=12, temperature=0.0, stop=stop)[0]
            assert (answer.text, answer.ended) == (text[: text.index(stop)], True)
        ours.speculate(None)
    for context, ending in (
        ("the quick", " fox"),
        ("the quick", "ly"),
        ("quick ", "fox"),
        ("", "fox"),
        ("f", "ox jumps"),
    ):
        visible = theirs(context.rstrip()).input_ids if context else before or ours.tokenizer.beginning()
        if context and ours.tokenizer.template[1]:
            visible = visible[:-1]
        whole = theirs(context + ending).input_ids
        own = whole[len(visible) :] if context else theirs(ending).input_ids[len(ours.tokenizer.template[0]) :]
        ids = torch.tensor([[*visible, *own]])
        chance = model(ids).logits[:, :-1].double().log_softmax(-1).gather(2, ids[:, 1:, None])[0, len(visible) - 1 :]
        assert ours.score(ending, context=context).log_probability == pytest.approx(float(chance.sum()), abs=1e-4)


def test_a_text_that_merges_with_its_context_is_scored_alone(tmp_path):
    build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["bytes"], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    context, text = "q", "u"
    assert len(ours.tokenizer.encode(context + text)) <= len(ours.tokenizer.encode(context))
    lead, own = ours.tokenizer.encode(context), ours.tokenizer.encode(text)
    expected = ours.log_probabilities(torch.tensor([[*lead, *own]]))[0, len(lead) - 1 :].sum().item()
    score = ours.score(text, context=context)
    assert score.tokens == len(own) > 0
    assert score.log_probability == pytest.approx(expected, abs=1e-6)
    assert ours.score("fox", context=" ").tokens > 0


def check_preferences(tokenizer, theirs, folder):
    """Rows of a prompt and an answer lose no letter; where a prompt's tokens begin those of both, as of trl."""
    prompts = ("the quick", "quickly twice", "it does", "f", "fox ", "")
    answers = (" brown fox", "ly jumps", "n't matter", "ox", "(x)", "12", "Größe")
    pairs = [pair for pair in itertools.product(prompts, answers, answers[:2]) if pair[1] != pair[2]]
    lines = [json.dumps(dict(zip(("prompt", "chosen", "rejected"), pair, strict=True))) for pair in pairs]
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(lines))
    data = PreferenceFiles(str(path), str(folder / "ours"), val_path=str(path), seed=0)
    data.ready()
    behind = len(tokenizer.template[1])
    for rows, (prompt, *texts) in zip(data.datasets["train"].pairs, pairs, strict=True):
        prompt_ids, *wholes = (theirs(text).input_ids for text in (prompt, *(prompt + text for text in texts)))
        prompt_ids, *wholes = (ids[: len(ids) - behind] for ids in (prompt_ids, *wholes))
        assert rows.prompt.tolist() == (prompt_ids or tokenizer.beginning()), prompt
        for answer, whole in zip(rows[1:], wholes, strict=True):
            row = [*rows.prompt.tolist(), *answer.tolist()]
            assert tokenizer.decode(row) == tokenizer.decode(whole), (prompt, texts)
            if prompt and whole[: len(prompt_ids)] == prompt_ids:
                assert row == [*whole, tokenizer.eos], (prompt, texts)


def check_gaps(folder):
    """A document's special tokens stand before <fim_prefix>, its parts lose no letter, and are what is asked with."""
    documents = ["the quick brown fox jumps over the lazy dog", "return the value of f(x) = 3.14", "does it matter?"]
    (folder / "texts").mkdir()
    for number, document in enumerate(documents):
        (folder / "texts" / f"{number}.txt").write_text(document)
    options = {"path": str(folder / "texts"), "val_path": str(folder / "texts"), "tokenizer": str(folder / "ours")}
    data = InfillText(lambda: TextFiles(max_length=160, seed=0, **options), rate=1.0, spm=0.0, seed=0)
    data.ready()
    tokenizer, rows, agreements = data.tokenizer, data.datasets["train"], 0
    marks = [tokenizer.special(mark) for mark in (PREFIX, SUFFIX, MIDDLE)]
    before = tokenizer.template[0]
    for epoch in range(8):
        (tokens,) = rows.batch(np.arange(len(rows)), epoch)["infill_inputs"].tolist()
        for begin in (place for place, token in enumerate(tokens) if token == marks[0]):
            assert tokens[begin - len(before) : begin] == before
            places = [*(tokens.index(mark, begin) for mark in marks), tokens.index(tokenizer.eos, begin)]
            prefix, suffix, middle = (tokens[start + 1 : stop] for start, stop in itertools.pairwise(places))
            assert not {*prefix, *middle, *suffix} & {*tokenizer.specials.values()}
            text = tokenizer.decode([*prefix, *middle, *suffix]).lstrip()
            assert any(document.startswith(text) for document in documents), text
            gap = Gap(tokenizer.decode(prefix), tokenizer.continuation(prefix, suffix))
            prompt = TrainedInfill.encode_prompt(SimpleNamespace(tokenizer=tokenizer), gap)
            size = len(prompt) - 2  # the end of a row's suffix may be missing
            agreements += prompt[:size] == tokens[begin - len(before) :][:size] and bool(prefix and suffix)
    assert agreements >= 12


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(("bytes", "gpt2"), ("bytes-json-of-a-class", "gpt2"), ("chat", "qwen2"), ("unigram-bytes", "llama")),
        *((f"pieces-{name}", "llama") for name in ("first", "legacy", "no-prefix", "eos-behind")),
    ],
)
def test_preferences_and_gaps_are_trained_on_the_tokens_that_generation_reads(name, case, tmp_path):
    _, theirs = build_checkpoint(DECODERS[case], decoder_tokenizers()[name], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    check_preferences(ours.tokenizer, theirs, tmp_path)
    check_gaps(tmp_path)


def test_added_tokens_without_a_row_are_left_out_and_named(tmp_path):
    build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["bytes"], tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": "<|late|>"}))
    ours, output = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert "1 added tokens are left out" in output
    assert "<|late|>" in output
    assert len(ours.tokenizer.encode("<|late|>")) > 1
    assert ours.generate("the", length=2, temperature=0.0)


def test_prefixes_of_tasks_are_named(tmp_path):
    build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["bytes"], tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    tasks = {"translation": {"prefix": "to German: ", "num_beams": 4}, "text-generation": {"do_sample": True}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_specific_params": tasks}))
    _, output = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert "not put before texts; write it yourself (task_specific_params): translation 'to German: '" in output
    assert "text-generation" not in output


def test_rules_that_leave_no_token_are_named(tmp_path):
    build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["bytes"], tmp_path / "theirs")
    path = tmp_path / "theirs" / "generation_config.json"
    rules = {"forced_eos_token_id": 7, "suppress_tokens": [7]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **rules}))
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for settings in ({"temperature": 0.0}, {"temperature": 1.0}, {"beams": 2}):
        with pytest.raises(UsageError, match=r"leave no token after 2 .*forced_eos_token_id, suppress_tokens"):
            ours.generate("the", length=3, **settings)


def test_a_tokenizers_dropout_is_switched_off(tmp_path):
    build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["bytes"], tmp_path / "theirs")
    path = tmp_path / "theirs" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))
    path = tmp_path / "theirs" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["dropout"] = 0.5
    path.write_text(json.dumps(content))
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    path = tmp_path / "ours" / "tokenizer.json"
    content = json.loads(path.read_text())
    assert content["model"]["dropout"] is None
    content["model"]["dropout"] = 0.5  # as imports before had it
    path.write_text(json.dumps(content))
    ours = zoo.load(tmp_path / "ours", device="cpu")
    assert len({tuple(ours.tokenizer.encode("the quick brown fox")) for _ in range(9)}) == 1


def test_an_import_without_a_tokenizer_says_so(tmp_path):
    peers.build_peer(peers.LANGUAGE["gpt2"]).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.model").write_bytes(b"pieces")
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert "no tokenizer: tokenizer.model is not read alone" in out.getvalue()


def test_special_tokens_of_a_prompt_can_be_split_like_other_text(tmp_path, capsys):
    _, theirs = build_checkpoint(DECODERS["gpt2"], decoder_tokenizers()["chat"], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    prompt = "<|im_start|>user"
    assert ours.tokenizer.encode(prompt) == theirs(prompt).input_ids
    ours.tokenizer.splits_specials = True
    assert ours.tokenizer.encode(prompt) == theirs(prompt, split_special_tokens=True).input_ids
    for words in ([], ["--split-special-tokens"]):
        command = ["generate", str(tmp_path / "ours"), "--prompt", prompt, "--length", "3", "--temperature", "0"]
        assert main([*command, "--json", *words]) == 0
    outputs = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    assert outputs[0] != outputs[1]


CORPUS = "the quick brown fox jumps over the lazy dog. it doesn't matter!\n" * 40
CONTINUED = {
    "gpt2": (DECODERS["gpt2"], decoder_tokenizers()["bytes-prefix-space"], "--data.path"),
    "llama": (DECODERS["llama"], decoder_tokenizers()["pieces-first"], "--data.path"),
    "bert": (peers.ENCODERS["bert"], encoder_tokenizers()["bert-cased"], "--data.text.path"),
    "deberta": (peers.ENCODERS["deberta-3"], encoder_tokenizers()["deberta"], "--data.text.path"),
    "bert-texts": (peers.ENCODERS["bert-texts"], encoder_tokenizers()["bert-uncased"], "--data.path"),
    "bart": (peers.PAIRS["bart"], pair_tokenizers()["bart"], "--data.path"),
    "t5": (peers.PAIRS["t5"], pair_tokenizers()["t5-sentinels"], "--data.path"),
}


@pytest.mark.parametrize("name", CONTINUED)
def test_the_recipe_of_an_import_trains_its_weights_with_its_tokenizer(name, tmp_path, monkeypatch):
    case, save, option = CONTINUED[name]
    build_checkpoint(
        case, save, tmp_path / "theirs", **({"decoder_start_token_id": 0} if name in ("bart", "t5") else {})
    )
    rules = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "forced_eos_token_id": 3, "eos_token_id": [7, 3]}
    if not name.startswith(("bert", "deberta")):
        (tmp_path / "theirs" / "generation_config.json").write_text(json.dumps(rules))
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    if name in ("bart", "t5"):
        corpus = tmp_path / "pairs"
        corpus.mkdir()
        for side in ("en", "de"):
            (corpus / f"train.{side}").write_text("".join(f"the quick fox {n}\n" for n in range(200)))
    elif name == "bert-texts":
        corpus = tmp_path / "texts"
        corpus.mkdir()
        (corpus / "train.tsv").write_text(
            "".join(f"{kind}\tthe quick fox {n}\n" for n in range(30) for kind in "abcde")
        )
    else:
        corpus = tmp_path / "corpus.txt"
        corpus.write_text(CORPUS)
    monkeypatch.chdir(tmp_path)
    words = [option, str(corpus), "--trainer.max_steps", "1", "--model.lr", "1e-12", "--runs", "runs", "--name", "x"]
    limits = ["--trainer.limit_val_batches", "1", "--trainer.val_check_interval", "1", "--trainer.accelerator", "cpu"]
    assert main(["fit", str(tmp_path / "ours" / "recipe.yaml"), *words, *limits]) == 0
    (run,) = tmp_path.glob("runs/**/finished.json")
    trained = zoo.load(run.parent, device="cpu")
    for key, tensor in ours.net.state_dict().items():
        if not key.startswith("head") or name != "bert-texts":
            assert torch.allclose(trained.net.state_dict()[key], tensor, atol=1e-6), key
    for mine, theirs in zip(trained.tokenizers, ours.tokenizers, strict=True):
        assert (mine.to_json(), mine.names) == (theirs.to_json(), theirs.names)
        assert mine.template == theirs.template
    assert trained.place.config["family"] == ours.place.config["family"]
    if getattr(ours, "rules", None) is not None:  # what the import writes, with what ended texts in training
        assert trained.ends == [7, 3, trained.tokenizers[-1].eos]
        assert dataclasses.replace(trained.rules, eos_token_id=[7, 3]) == ours.rules
        assert zoo.load(trained.export(tmp_path / "export"), device="cpu").rules == trained.rules
        assert main(["export", str(run.parent), str(tmp_path / "hf"), "--format", "hf"]) == 0
        content = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
        assert rules.items() <= (content | {"eos_token_id": content["eos_token_id"][:2]}).items()


def test_a_documents_beginning_is_trained_as_it_is_scored(tmp_path, monkeypatch):
    from zoo.data.text import TextFiles

    build_checkpoint(DECODERS["llama"], decoder_tokenizers()["pieces-first"], tmp_path / "theirs")
    ours, _ = import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text(CORPUS)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    data = TextFiles(str(tmp_path / "*.txt"), tokenizer=str(tmp_path / "ours"), max_length=16)
    data.ready()
    stream = data.datasets["train"].tokens.tolist()
    assert stream[0] == ours.tokenizer.bos
    place = stream.index(ours.tokenizer.eos)
    assert stream[place + 1] == ours.tokenizer.bos


CHATS = {
    "bytes": lambda: (byte_bpe(("<|endoftext|>",)), "<|endoftext|>"), "first": lambda: (piece_bpe(), "</s>"),
    "legacy": lambda: (piece_bpe(legacy=True), "</s>"), "always": lambda: (piece_bpe("always"), "</s>"),
    "never": lambda: (piece_bpe("never"), "</s>"), "unigram": lambda: (unigram(LLAMA_SPECIALS, 0), "</s>"),
    "quoted": lambda: (byte_bpe(("<|'e\"nd|>",)), "<|'e\"nd|>"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_template_of_a_published_tokenizer_gives_the_tokens_of_training(name, tmp_path):
    """Its own token ends an answer, and a text has the space in front that it has alone."""
    inner, end = CHATS[name]()
    Tokenizer(inner, {"<eos>": end}).extended(SPECIALS).save(tmp_path / "tokenizer.json")
    (out := tmp_path / "out").mkdir()
    config = export_tokenizers(tmp_path, out, LANGUAGE_MODEL, {"model_type": "gpt2"})
    (out / "config.json").write_text(json.dumps(config))
    theirs, tokenizer = transformers.AutoTokenizer.from_pretrained(out), Tokenizer.load(tmp_path / "tokenizer.json")
    for texts in (("the quick fox", "no!", "does it"), (" no", "it ", ""), ("  the", "", "\nfox"), ("It's", " ", "x")):
        turns = [Turn(role, text) for role, text in zip(("user", "assistant", "user"), texts, strict=True)]
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids == chat_tokens(tokenizer, turns)[0], texts
        system = {"role": "system", "content": "Be kind."}  # the beginning of what the user says, as in training
        ids = theirs.apply_chat_template([system, *messages], add_generation_prompt=True, return_dict=False)
        assert ids == chat_tokens(tokenizer, [Turn("user", f"Be kind.\n\n{turns[0].text}"), *turns[1:]])[0], texts
        with pytest.raises(Exception, match="only user and assistant speak"):
            theirs.apply_chat_template([*messages, {"role": "tool", "content": "x"}])


def test_chat_templates_of_all_names_come_back(tmp_path):
    build_checkpoint(DECODERS["llama"], decoder_tokenizers()["pieces-first"], tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    theirs.chat_template = {"default": "{{ messages[0]['content'] }}", "tool_use": "{{ tools }}"}
    theirs.save_pretrained(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "additional_chat_templates" / "tool_use.jinja").is_file()
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "again"), "--format", "hf"]) == 0
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again.chat_template == theirs.chat_template


def test_a_chat_without_a_text_of_its_tokens_has_no_template(tmp_path, caplog):
    """A space that is cut before the token that ends an answer is in no rendered text."""
    inner = byte_bpe(("<|endoftext|>",))
    inner.add_special_tokens([AddedToken("<|end|>", lstrip=True, special=True)])
    Tokenizer(inner, {"<eos>": "<|end|>"}).extended(SPECIALS).save(tmp_path / "tokenizer.json")
    (out := tmp_path / "out").mkdir()
    export_tokenizers(tmp_path, out, LANGUAGE_MODEL, {"model_type": "gpt2"})
    assert "chat_template" not in json.loads((out / "tokenizer_config.json").read_text())
    assert "no chat template is written" in caplog.text


@pytest.mark.parametrize("forced", [None, 4])
def test_the_forced_beginning_of_a_translation_is_exported(forced, tmp_path):
    """A run keeps it in the names of its target's tokens, and generate() reads it in generation_config.json."""
    inner = byte_bpe((*LLAMA_SPECIALS, "<pad>", "fra_Latn"))
    names = {"<eos>": "</s>", "<bos>": "<s>", "<pad>": "<pad>"}
    Tokenizer(inner, names).save(tmp_path / "source-tokenizer.json")
    own = {} if forced is None else {FORCED: inner.id_to_token(forced)}
    Tokenizer(inner, {**names, **own}).save(tmp_path / "target-tokenizer.json")
    (out := tmp_path / "out").mkdir()
    config = export_tokenizers(tmp_path, out, TRANSLATOR, {"model_type": "bart"})
    assert config["forced_bos_token_id"] == forced
    rules = transformers.GenerationConfig.from_pretrained(out)
    assert (rules.forced_bos_token_id, rules.decoder_start_token_id) == (forced, 1)


def test_an_export_of_several_languages_can_be_asked_for_one(tmp_path):
    names = ("<pad>", "<bos>", "<eos>")
    source, target = Tokenizer.bytes((*names, "<2fr>", "<2de>")), Tokenizer.bytes(names)
    source.save(tmp_path / "source-tokenizer.json")
    target.save(tmp_path / "target-tokenizer.json")
    (out := tmp_path / "out").mkdir()
    export_tokenizers(tmp_path, out, TRANSLATOR, {"model_type": "bart"})
    ids = transformers.AutoTokenizer.from_pretrained(out)("<2fr>hello")["input_ids"]
    assert ids[: 1 + len("hello")] == [source.special("<2fr>"), *b"hello"]


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_match_in_a_text_as_tokenizer_json_says(flags, special, tmp_path):
    inner = byte_bpe(("<pad>",))
    inner.add_tokens([AddedToken("<mask>", special=special, **{"normalized": False, **flags})])
    inner.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "<mask>", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.of_run(tmp_path)
    for text in ("the <mask> fox", "the<mask>fox", "the <mask>, fox"):
        assert ours.encode(text) == inner.encode(text, add_special_tokens=False).ids, text
    assert ours.special(MASK) == inner.token_to_id("<mask>")


@pytest.mark.parametrize("kind", ["a word", "added", "special"])
def test_special_tokens_that_a_file_beside_names_are_special_whatever_tokenizer_json_says(kind, tmp_path):
    content = json.loads(byte_bpe(("<pad>", "</s>")).to_str())
    content["added_tokens"] = [token | {"special": kind == "special"} for token in content["added_tokens"]]
    if kind == "a word":
        content["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.of_run(tmp_path)
    ids = theirs("a</s>b the<pad>", add_special_tokens=False).input_ids
    assert ours.encode("a</s>b the<pad>") == ids
    assert (ours.eos, ours.pad) == (theirs.eos_token_id, theirs.pad_token_id)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_bytes_of_a_text_are_those_of_its_file_whatever_its_tokens_leave_out(tmp_path, monkeypatch):
    """WordPiece has no spaces, and its normaliser no accents: bits per byte compare across tokenizers all the same."""
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("The fox, the café and the dog.\n" * 50, encoding="utf-8")
    for name, inner in {"BertTokenizer": wordpiece(), "GPT2Tokenizer": byte_bpe(("<|endoftext|>",))}.items():
        (folder := tmp_path / name).mkdir()
        inner.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        data = TextFiles(str(tmp_path / "text.txt"), tokenizer=str(folder), max_length=16, val_fraction=0.5, seed=0)
        data.ready()
        rows = data.datasets["val"]
        whole = rows.byte_lengths[rows.tokens].sum()
        assert whole == pytest.approx(len("The fox, the café and the dog.\n".encode()) * 25, abs=25)
        of_targets = rows.batch(np.arange(len(rows)), 0)["bytes"].sum()
        assert of_targets == pytest.approx(whole, abs=8)  # the first token is not predicted

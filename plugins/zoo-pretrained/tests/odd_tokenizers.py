"""Odd tokenizers as other people save them: each function writes the files of one into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "the quick brown fox jumps over the lazy dog", "it doesn't matter, does it? no!", "grün und Größe: naïve café",
    "return the value of f(x) = 3.14", "quickly quietly  twice  spaced", "人工 intelligence 的 words",
    "The Model READS.",
] * 3  # fmt: skip
TEXTS = [
    "the quick brown fox", " the quick", "quickly", "The Größe  doesn't matter , does it ? no !", "的人 café naïve",
    "a <tag> b", "x<tag>y", "fox</s> dog", "<s>fox", "<mask> and [MASK] [SEP]", "<|im_start|>user\nhi<|im_end|>\n",
    "tab\there", "🙂 zoë", "<extra_id_0> reads", "trailing ", "e\u0301",
]  # fmt: skip
LLAMA = ("<unk>", "<s>", "</s>")
CHAT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ROBERTA = XLM = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>")


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def byte_bpe(specials: tuple[str, ...], prefix: bool = False) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=prefix), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learn = trainers.BpeTrainer(
        vocab_size=340, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(LINES, learn)
    return inner


def piece_bpe(scheme: str = "first", legacy: bool = False, template: bool = True) -> Tokenizer:
    """BPE over ▁ with bytes for unknown characters, as LLaMA's."""
    learner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    names = [*LLAMA, *(f"<0x{byte:02X}>" for byte in range(256))]
    learner.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=420, special_tokens=names, show_progress=False))
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    inner = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    if legacy:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in LLAMA])
    if template:
        inner.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return inner


def unigram(specials: tuple[str, ...], unknown: int, fallback: bool = False, scheme: str = "always") -> Tokenizer:
    learner = Tokenizer(models.Unigram())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    learn = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=list(specials), unk_token=specials[unknown], show_progress=False
    )
    learner.train_from_iterator(LINES, learn)
    pieces = [(piece, score) for piece, score in json.loads(learner.to_str())["model"]["vocab"]]
    if fallback:
        pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    inner = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=fallback))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    if fallback:
        inner.decoder = decoders.Sequence([decoders.ByteFallback(), inner.decoder])
    inner.add_special_tokens(list(specials))
    return inner


WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ascii_lowercase, *(f"##{c}" for c in ascii_lowercase),
    "the", "quick", "fox", "grun", "grün", "größe", "gross", "The", "Größe", "的", "人", "##人", "cafe", "café",
    "naive",
    ".", ",", "?", "!", "'", "(", ")", "does", "##n", "'", "no", "it", "user",
]  # fmt: skip
WORDS = list(dict.fromkeys(WORDS))


def wordpiece(lower: bool = True) -> Tokenizer:
    inner = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=lower),
        pre_tokenizers.BertPreTokenizer(),
    )
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(WORDS[:5])
    inner.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    return inner


def files(inner: Tokenizer, config: dict[str, Any], names: dict[str, Any] | None = None) -> Callable[[Path], None]:
    """A tokenizer.json with these files beside it."""

    def save(folder: Path) -> None:
        inner.save(str(folder / "tokenizer.json"))
        write(folder, "tokenizer_config.json", config)
        if names is not None:
            write(folder, "special_tokens_map.json", names)

    return save


def vocabulary(inner: Tokenizer, config: dict[str, Any], **more: Any) -> Callable[[Path], None]:
    """The files of the vocabulary alone, without tokenizer.json."""

    def save(folder: Path) -> None:
        if isinstance(inner.model, models.WordPiece):
            (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
        else:
            inner.model.save(str(folder))
        write(folder, "tokenizer_config.json", config)
        for name, content in more.items():
            write(folder, f"{name}.json", content)

    return save


def kind(name: str, **more: Any) -> dict[str, Any]:
    return {"tokenizer_class": name, **more}


def token(content: str, **flags: bool) -> dict[str, Any]:
    flags_off = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": False}
    return {"content": content, **flags_off, **flags}


GENERIC = "PreTrainedTokenizerFast"
BERT = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(3))


def with_tokens(inner: Tokenizer, *tokens: AddedToken) -> Tokenizer:
    inner.add_tokens(list(tokens))
    return inner


def template(inner: Tokenizer, single: str, **marks: int) -> Tokenizer:
    tokens = [(text, inner.token_to_id(text)) for text in single.split() if text != "$A"]
    inner.post_processor = processors.TemplateProcessing(single, None, tokens)
    return inner


def decoder_tokenizers() -> dict[str, Callable[[Path], None]]:
    """Of language models."""
    ends = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tags = [AddedToken("<tag>", lstrip=True, rstrip=True, normalized=False), AddedToken("fox", single_word=True)]
    return {
        "bytes": files(byte_bpe(CHAT[:1]), kind(GENERIC, eos_token=CHAT[0])),
        "bytes-prefix-space": vocabulary(byte_bpe(CHAT), kind("GPT2Tokenizer", add_prefix_space=True)),
        "bytes-bos-by-flag": vocabulary(
            byte_bpe(LLAMA), kind("GPT2Tokenizer", add_bos_token=True, add_eos_token=False, **ends)
        ),
        "bytes-json-of-a-class": files(byte_bpe(CHAT, prefix=True), kind("GPT2Tokenizer", add_bos_token=True)),
        "bytes-added-by-file": vocabulary(
            byte_bpe(CHAT), kind("GPT2Tokenizer"), added_tokens={"<tag>": 340, "<new>": 341},
            special_tokens_map={"eos_token": token(CHAT[0], special=True), "additional_special_tokens": ["<new>"]},
        ),
        "bytes-added-by-decoder": vocabulary(
            byte_bpe(CHAT),
            kind("GPT2Tokenizer", added_tokens_decoder={
                "0": token(CHAT[0], special=True), "340": token("<tag>", lstrip=True, rstrip=True),
                "341": token("café", single_word=True, normalized=True),
            }),
        ),
        "pieces-first": files(piece_bpe(), kind("LlamaTokenizer", **ends)),
        "pieces-legacy": files(piece_bpe(legacy=True), kind(GENERIC, **ends)),
        "pieces-of-the-old-class": files(piece_bpe(), kind("LlamaTokenizerFast", legacy=True, **ends)),
        "pieces-no-prefix": files(piece_bpe("never"), kind("LlamaTokenizer", add_prefix_space=False, **ends)),
        "pieces-no-bos-pad-is-eos": files(piece_bpe(template=False), kind(GENERIC, **ends, pad_token="</s>")),
        "pieces-eos-behind": files(template(piece_bpe(), "<s> $A </s>"), kind(GENERIC, **ends)),
        "pieces-added": files(with_tokens(piece_bpe(), *tags), kind(GENERIC, **ends)),
        "pieces-names-in-the-map": files(piece_bpe(), {}, ends),
        "unigram": files(unigram(LLAMA, 0), kind(GENERIC, **ends)),
        "unigram-bytes": files(template(unigram(LLAMA, 0, True, "first"), "<s> $A"), kind(GENERIC, **ends)),
        "chat": files(
            byte_bpe(CHAT),
            kind("Qwen2Tokenizer", eos_token=CHAT[2], pad_token=CHAT[0], additional_special_tokens=[CHAT[1]],
                  chat_template="{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"),
        ),
        "chat-split": files(
            byte_bpe(CHAT), kind(GENERIC, eos_token=CHAT[2], bos_token=None, split_special_tokens=True)
        ),
        "words-cleaned": files(
            wordpiece(), kind(GENERIC, clean_up_tokenization_spaces=True, eos_token="[SEP]", pad_token="[PAD]")
        ),
    }  # fmt: skip


def encoder_tokenizers() -> dict[str, Callable[[Path], None]]:
    """Of encoders with a mask: BERT's and RoBERTa's."""
    roles = dict(zip(("bos", "pad", "eos", "unk", "mask"), ROBERTA, strict=True))
    bytes_names = {f"{role}_token": text for role, text in roles.items()}
    mask = {"mask_token": token("<mask>", lstrip=True, special=True)}
    return {
        "bert-uncased": vocabulary(wordpiece(), kind("BertTokenizer")),
        "bert-accents": vocabulary(wordpiece(), kind("BertTokenizer", strip_accents=False)),
        "bert-cased": vocabulary(wordpiece(), kind("BertTokenizer", do_lower_case=False)),
        "bert-no-accents": vocabulary(wordpiece(), kind("BertTokenizer", do_lower_case=False, strip_accents=True)),
        "bert-chinese": vocabulary(wordpiece(), kind("BertTokenizer", tokenize_chinese_chars=False)),
        "bert-cleaned": vocabulary(wordpiece(), kind("BertTokenizer", clean_up_tokenization_spaces=True)),
        "bert-json-other-flags": files(wordpiece(lower=False), kind("BertTokenizerFast", **BERT)),
        "bert-json": files(wordpiece(lower=False), kind(GENERIC, do_lower_case=True, **BERT)),
        "bert-added": vocabulary(
            wordpiece(), kind("BertTokenizer"), added_tokens={"<tag>": len(WORDS)},
            special_tokens_map={**BERT, "additional_special_tokens": ["<tag>"]},
        ),
        "bert-no-template": files(without_template(wordpiece()), kind(GENERIC, **BERT)),
        "roberta": vocabulary(byte_bpe(ROBERTA), kind("RobertaTokenizer")),
        "roberta-prefix": vocabulary(byte_bpe(ROBERTA), kind("RobertaTokenizer", add_prefix_space=True)),
        "roberta-mask": vocabulary(
            byte_bpe(ROBERTA), kind("RobertaTokenizer"), special_tokens_map={**bytes_names, **mask}
        ),
        "roberta-json": files(byte_bpe(ROBERTA), kind("RobertaTokenizerFast", trim_offsets=False, **bytes_names)),
        "deberta": files(unigram(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"), 3), kind("DebertaV2Tokenizer")),
        "deberta-lower": files(
            unigram(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"), 3),
            kind("DebertaV2TokenizerFast", do_lower_case=True, split_by_punct=True, vocab_type="spm"),
        ),
        "xlm-roberta": files(
            unigram(XLM, 3), kind("XLMRobertaTokenizer"), {"mask_token": token("<mask>", lstrip=True, special=True)}
        ),
        "xlm-roberta-no-prefix": files(
            unigram((*XLM, "<tag>"), 3), kind("XLMRobertaTokenizerFast", add_prefix_space=False)
        ),
        "camembert": files(bare(unigram(CAMEMBERT, 3)), kind("CamembertTokenizer")),
        "camembert-unused-words": files(unigram((*XLM, "<x>"), 3), kind("CamembertTokenizer", unk_token="<x>")),
        "distilbert": vocabulary(wordpiece(), kind("DistilBertTokenizer", do_lower_case=False)),
        "modernbert-of-another-class": files(
            template(byte_bpe(tuple(BERT.values())), "[CLS] $A [SEP]"), kind("BertTokenizer", **BERT)
        ),
        "eurobert": files(template(byte_bpe(tuple(BERT.values())), "[CLS] $A [SEP]"), kind(GENERIC, **BERT)),
        "distilbert-json": files(wordpiece(lower=False), {}),
    }  # fmt: skip


def bare(inner: Tokenizer) -> Tokenizer:
    """The same where no token of the vocabulary is an added one."""
    return Tokenizer.from_str(json.dumps({**json.loads(inner.to_str()), "added_tokens": []}))


def without_template(inner: Tokenizer) -> Tokenizer:
    content = json.loads(inner.to_str())
    return Tokenizer.from_str(json.dumps({**content, "post_processor": None}))


def by_class(name: str, **settings: Any) -> Callable[[Path], None]:
    """What a class of transformers saves, which adds the languages that it knows."""

    def save(folder: Path) -> None:
        import transformers

        if name == "NllbTokenizer":
            model = json.loads(piece_bpe().to_str())["model"]
            words = [*ROBERTA, *(word for word in model["vocab"] if word not in ROBERTA and "<0x" not in word)]
            vocabulary = {"vocab": {word: number for number, word in enumerate(words)}}
            vocabulary["merges"] = [tuple(merge) for merge in model["merges"]]
        else:
            pieces = json.loads(unigram(ROBERTA, 3).to_str())["model"]["vocab"]
            vocabulary = {"vocab": [*map(tuple, pieces), ("en_XX", 0.0), ("ro_RO", 0.0)]}
        getattr(transformers, name)(**vocabulary, **settings).save_pretrained(folder)

    return save


def pair_tokenizers() -> dict[str, Callable[[Path], None]]:
    """Of encoder-decoders: their templates end a text with eos."""
    names = {f"{role}_token": text for role, text in zip(("bos", "pad", "eos", "unk", "mask"), ROBERTA, strict=True)}
    t5 = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    pieces = ("<pad>", "</s>", "<unk>")
    return {
        "bart": vocabulary(byte_bpe(ROBERTA), kind("BartTokenizer")),
        "bart-prefix": vocabulary(byte_bpe(ROBERTA), kind("BartTokenizer", add_prefix_space=True)),
        "bart-json": files(template(byte_bpe(ROBERTA), "<s> $A </s>"), kind("BartTokenizerFast", **names)),
        "bart-generic": files(template(byte_bpe(ROBERTA), "<s> $A </s>"), kind(GENERIC, **names)),
        "t5": files(template(unigram(pieces, 2), "$A </s>"), kind("T5Tokenizer", extra_ids=3, **t5)),
        "t5-sentinels": files(
            template(unigram((*pieces, *reversed(SENTINELS)), 2), "$A </s>"),
            kind("T5TokenizerFast", extra_ids=3, additional_special_tokens=list(SENTINELS), **t5),
        ),
        "t5-generic": files(
            template(unigram((*pieces, *SENTINELS), 2, scheme="first"), "$A </s>"),
            kind(GENERIC, additional_special_tokens=list(SENTINELS), **t5),
        ),
        "unigram-bytes": files(template(unigram(pieces, 2, True), "$A </s>"), kind(GENERIC, **t5)),
        "mbart": by_class("MBartTokenizer", src_lang="de_DE"),
        "mbart-50": by_class("MBart50Tokenizer"),
        "nllb": by_class("NllbTokenizer", src_lang="fra_Latn"),
        "nllb-legacy": by_class("NllbTokenizer", legacy_behaviour=True),
        "words": files(template(wordpiece(), "$A [SEP]"), kind(GENERIC, eos_token="[SEP]", pad_token="[PAD]")),
        "words-cleaned": files(
            template(wordpiece(), "[CLS] $A [SEP]"),
            kind(GENERIC, clean_up_tokenization_spaces=True, eos_token="[SEP]", pad_token="[PAD]", bos_token="[CLS]"),
        ),
        "no-template": files(byte_bpe(ROBERTA), kind(GENERIC, **names)),
    }  # fmt: skip

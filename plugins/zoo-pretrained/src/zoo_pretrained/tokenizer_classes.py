"""Build a published tokenizer from its files as its class in transformers does: steps, added tokens, and roles."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from zoo.data.tokenizer_errors import native_call
from zoo.errors import UsageError
from zoo.io import limits
from zoo_pretrained import hf_files
from zoo_pretrained.config_keys import shorten
from zoo_pretrained.side_files import ROLES, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, read_side_file

Settings = dict[str, Any]
FILE, CONFIG, NAMES = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
ADDED = "added_tokens.json"
GENERIC = "PreTrainedTokenizerFast"  # whose tokenizer.json is the whole tokenizer
ALIASES = {
    "BartTokenizer": "RobertaTokenizer", "DistilBertTokenizer": "BertTokenizer", "ElectraTokenizer": "BertTokenizer",
    "MT5Tokenizer": "T5Tokenizer",
}  # fmt: skip
CLASS_OF_FAMILY = {
    "bart": "RobertaTokenizer", "bert": "BertTokenizer", "deberta-v2": "DebertaV2Tokenizer", "gpt2": "GPT2Tokenizer",
    "mt5": "T5Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "roberta": "RobertaTokenizer",
    "t5": "T5Tokenizer", "camembert": "CamembertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer", "mbart": "MBartTokenizer", "mpnet": "MPNetTokenizer",
    "whisper": "WhisperTokenizer",
}  # fmt: skip
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")  # which lose their spaces


@dataclass(frozen=True)
class Published:
    """A published tokenizer, the token of each role such as ``eos``, whether special tokens in a text are text, and
    what stands around a target where its language is another than that of a source.
    """

    inner: Tokenizer
    roles: dict[str, str]
    splits_specials: bool
    target_template: processors.PostProcessor | None


@dataclass(frozen=True)
class TokenizerClass:
    """What a class of transformers adds to the vocabulary: its model, and the tokens of its roles by default."""

    model: str
    defaults: Mapping[str, str]
    files: tuple[str, ...] = ()  # which hold the vocabulary where there is no tokenizer.json


def _roles(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


# classes whose token of the mask takes the space in front of it, where no file says how it is found
MASKS: dict[str, dict[str, bool]] = {
    "CamembertTokenizer": {}, "MBartTokenizer": {}, "MBart50Tokenizer": {}, "NllbTokenizer": {"normalized": True},
    "MPNetTokenizer": {},
}  # fmt: skip
# the language of a source where tokenizer_config.json names none, and its place in the text
LANGUAGES = {
    "MBartTokenizer": ("en_XX", False),
    "MBart50Tokenizer": ("en_XX", True),
    "NllbTokenizer": ("eng_Latn", True),
}
LANGUAGE = re.compile(r"[a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}")  # ro_RO of mBART, fra_Latn of NLLB
# what Whisper's files may call a language by, and its code
SPOKEN = dict(
    pair.split(":")
    for pair in """
    english:en chinese:zh german:de spanish:es russian:ru korean:ko french:fr japanese:ja portuguese:pt turkish:tr
    polish:pl catalan:ca dutch:nl arabic:ar swedish:sv italian:it indonesian:id hindi:hi finnish:fi vietnamese:vi
    hebrew:he ukrainian:uk greek:el malay:ms czech:cs romanian:ro danish:da hungarian:hu tamil:ta norwegian:no thai:th
    urdu:ur croatian:hr bulgarian:bg lithuanian:lt latin:la maori:mi malayalam:ml welsh:cy slovak:sk telugu:te
    persian:fa latvian:lv bengali:bn serbian:sr azerbaijani:az slovenian:sl kannada:kn estonian:et macedonian:mk
    breton:br basque:eu icelandic:is armenian:hy nepali:ne mongolian:mn bosnian:bs kazakh:kk albanian:sq swahili:sw
    galician:gl marathi:mr punjabi:pa sinhala:si khmer:km shona:sn yoruba:yo somali:so afrikaans:af occitan:oc
    georgian:ka belarusian:be tajik:tg sindhi:sd gujarati:gu amharic:am yiddish:yi lao:lo uzbek:uz faroese:fo
    haitian_creole:ht pashto:ps turkmen:tk nynorsk:nn maltese:mt sanskrit:sa luxembourgish:lb myanmar:my tibetan:bo
    tagalog:tl malagasy:mg assamese:as tatar:tt hawaiian:haw lingala:ln hausa:ha bashkir:ba javanese:jw sundanese:su
    cantonese:yue burmese:my valencian:ca flemish:nl haitian:ht letzeburgesch:lb pushto:ps panjabi:pa moldavian:ro
    moldovan:ro sinhalese:si castilian:es mandarin:zh
    """.split()
)
BPE_FILES = ("vocab.json", "merges.txt")
END = "<|endoftext|>"
ROBERTA = _roles(bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>")
CLASSES = {
    "LlamaTokenizer": TokenizerClass("BPE", _roles(unk="<unk>", bos="<s>", eos="</s>")),
    "GPT2Tokenizer": TokenizerClass("BPE", _roles(unk=END, bos=END, eos=END), BPE_FILES),
    "WhisperTokenizer": TokenizerClass("BPE", _roles(unk=END, bos=END, eos=END), BPE_FILES),
    "Qwen2Tokenizer": TokenizerClass("BPE", _roles(unk=END, eos=END, pad=END), BPE_FILES),
    "RobertaTokenizer": TokenizerClass("BPE", ROBERTA, BPE_FILES),
    "XLMRobertaTokenizer": TokenizerClass("Unigram", ROBERTA),
    "CamembertTokenizer": TokenizerClass("Unigram", ROBERTA),
    "MBartTokenizer": TokenizerClass("Unigram", ROBERTA),
    "MBart50Tokenizer": TokenizerClass("Unigram", {key: token for key, token in ROBERTA.items() if key != "bos_token"}),
    "NllbTokenizer": TokenizerClass("BPE", ROBERTA),
    "BertTokenizer": TokenizerClass(
        "WordPiece", _roles(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]"), ("vocab.txt",)
    ),
    "MPNetTokenizer": TokenizerClass(
        "WordPiece",
        _roles(bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="[UNK]", pad="<pad>", mask="<mask>"),
        ("vocab.txt",),
    ),
    "T5Tokenizer": TokenizerClass("Unigram", _roles(eos="</s>", unk="<unk>", pad="<pad>")),
    "DebertaV2Tokenizer": TokenizerClass(
        "Unigram", _roles(bos="[CLS]", eos="[SEP]", unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
    ),
}


def read(source: Path, theirs: Mapping[str, Any]) -> Published | None:
    """The tokenizer of a checkpoint with this configuration; None where it has no file of the tokenizer.

    Raises UsageError that names a file or a key which is not read.
    """
    settings = read_side_file(source / CONFIG, TOKENIZER_CONFIG, "_token")
    added = hf_files.optional(source / ADDED)
    names = read_side_file(source / NAMES, SPECIAL_TOKENS_MAP, "_token")
    try:
        content = json.loads(limits.read_text(source / FILE, limits.JSON_BYTES)) if (source / FILE).is_file() else None
        with native_call(str(source / FILE), silent=True):
            return _Builder(source, theirs, settings, names, added, content).published()
    except UsageError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"the tokenizer in {source} cannot be read: {error}") from error


@dataclass
class _Builder:
    source: Path
    theirs: Mapping[str, Any]
    settings: Settings
    names: Settings
    added: Settings
    content: dict[str, Any] | None
    tokens: dict[int, AddedToken] = field(default_factory=dict)
    target_template: processors.PostProcessor | None = None

    def published(self) -> Published | None:
        name = self._class_name()
        kind = CLASSES.get(name)
        if self.content is None and not (kind and kind.files and all((self.source / f).is_file() for f in kind.files)):
            return None
        if kind and self.content is not None and self.content["model"].get("type", kind.model) != kind.model:
            name, kind = GENERIC, None  # a vocabulary that this class does not have: the file says more
        self._merge_names()
        self.settings = {**(kind.defaults if kind else {}), **self.settings}
        self._read_added_tokens()
        if kind is None:
            inner = Tokenizer.from_str(json.dumps(self.content))
        else:
            steps = {
                "LlamaTokenizer": self._llama, "GPT2Tokenizer": self._gpt2, "RobertaTokenizer": self._gpt2,
                "WhisperTokenizer": self._gpt2, "Qwen2Tokenizer": self._qwen2,
                "BertTokenizer": self._bert, "T5Tokenizer": self._t5,
                "DebertaV2Tokenizer": self._deberta, "XLMRobertaTokenizer": self._xlm_roberta,
                "CamembertTokenizer": self._camembert, "MBartTokenizer": self._mbart,
                "MBart50Tokenizer": self._mbart50, "NllbTokenizer": self._nllb, "MPNetTokenizer": self._bert,
            }  # fmt: skip
            inner = steps[name]()
            if self.content is not None:
                inner.post_processor = _empty(self.content).post_processor
        if isinstance(inner.model, models.BPE):
            inner.model.dropout = None  # which would draw other tokens each time
        roles = {role: token for role in ROLES if (token := self._token(f"{role}_token")) is not None}
        if name in MASKS and isinstance(mask := roles.get("mask"), str):
            roles["mask"] = AddedToken(mask, **MASKS[name], lstrip=True, special=True)
        self._add_tokens(inner, name, roles)
        self._add_template(inner, name, roles)
        self._clean_up(inner)
        texts = {role: token if isinstance(token, str) else token.content for role, token in roles.items()}
        return Published(inner, texts, bool(self.settings.get("split_special_tokens")), self.target_template)

    def _class_name(self) -> str:
        """The class that reads the files: the one they name, or that of the model's family."""
        name = str(self.settings.get("tokenizer_class") or self.theirs.get("tokenizer_class") or "")
        class_name = ALIASES.get(name := name.removesuffix("Fast"), name)
        kind = self.theirs.get("model_type") or ""
        if kind == "qwen2":  # many of whose checkpoints name another
            return CLASS_OF_FAMILY[kind]
        steps = json.dumps([self.content.get("pre_tokenizer"), self.content.get("decoder")]) if self.content else ""
        if kind in ("mistral", "mixtral", "modernbert") or (class_name == "LlamaTokenizer" and '"ByteLevel"' in steps):
            return GENERIC
        return class_name or CLASS_OF_FAMILY.get(kind, GENERIC)

    def _merge_names(self) -> None:
        """Roles of special_tokens_map.json hold, unless tokenizer_config.json lists the added tokens itself."""
        if "additional_special_tokens" in self.settings and not self.settings.get("extra_special_tokens"):
            self.settings["extra_special_tokens"] = self.settings.pop("additional_special_tokens")
        if self.settings.get("added_tokens_decoder") is not None:
            return
        for key, value in self.names.items():
            if key == "extra_special_tokens" and isinstance(value, list):
                there = self.settings.get(key) or []
                value = [*there, *value] if isinstance(there, list) else value
            self.settings[key] = value

    def _read_added_tokens(self) -> None:
        """Added tokens by number, from the first file that lists them."""
        entries = self.settings.get("added_tokens_decoder")
        if entries is not None:
            if wrong := [number for number in entries if not str(number).isdecimal()]:
                raise UsageError(f"{self.source}: added_tokens_decoder: {wrong[0]!r} is no number of a token.")
            self.tokens = {int(number): self._added("added_tokens_decoder", token) for number, token in entries.items()}
            return
        special = {_text(self._token(f"{role}_token")) for role in ROLES}
        special |= {_text(token) for token in self._extra()}
        for text, number in self.added.items():
            if not isinstance(number, int):
                raise UsageError(f"{self.source / ADDED}: {text!r} has the number {shorten(number)}.")
            self.tokens[number] = AddedToken(text, normalized=text not in special, special=text in special)
        for token in self.content.get("added_tokens", []) if self.content else ():
            self.tokens[token["id"]] = self._added(
                "added_tokens", {key: item for key, item in token.items() if key != "id"}
            )

    def _added(self, key: str, value: Any) -> AddedToken:
        """An added token as a file writes it under a key."""
        fields = {"content", "lstrip", "rstrip", "normalized", "single_word", "special", "__type"}
        flags = {name: item for name, item in value.items() if name != "__type"} if isinstance(value, dict) else {}
        wrong = [name for name, item in flags.items() if not isinstance(item, str if name == "content" else bool)]
        if not flags.get("content") or flags.keys() - fields or wrong:
            raise UsageError(
                f"{self.source}: {key}={shorten(value)} is no added token; an object with content, lstrip, rstrip, "
                "normalized, single_word and special would be."
            )
        return AddedToken(**flags)

    def _token(self, key: str) -> str | AddedToken | None:
        """The token of a role or of another key, with the flags that its entry in the added tokens has."""
        value = self.settings.get(key)
        if isinstance(value, dict):
            value = self._added(key, {**value, "special": True})
        if value is not None and not isinstance(value, (str, AddedToken)):
            raise UsageError(f"{self.source}: {key}={shorten(value)} is no token; its text would be.")
        mine = [token for token in self.tokens.values() if token.content == _text(value)]
        return mine[-1] if mine else value

    def _extra(self) -> list[Any]:
        """Special tokens without a role."""
        tokens_of_keys: list[Any] = []
        for key in ("extra_special_tokens", "model_specific_special_tokens"):
            value = self.settings.get(key) or []
            tokens = list(value.values()) if isinstance(value, dict) else value
            if not isinstance(tokens, list) or not all(isinstance(token, (str, dict)) for token in tokens):
                names = f"{key} (or additional_special_tokens)" if key.startswith("extra") else key
                raise UsageError(
                    f"{self.source}: {names}={shorten(value)} is not supported; a list of tokens would be."
                )
            tokens_of_keys += [self._added(key, token) if isinstance(token, dict) else token for token in tokens]
        others = {key for key in self.settings if key.endswith("_token")} - {f"{role}_token" for role in ROLES}
        others -= {"add_bos_token", "add_eos_token"}  # flags
        return [*tokens_of_keys, *(token for key in sorted(others) if (token := self._token(key)) is not None)]

    def _add_tokens(self, inner: Tokenizer, name: str, roles: Mapping[str, str | AddedToken]) -> None:
        """Add what the vocabulary lacks, in transformers' order: by number, then roles, then the others."""
        extra = self._extra()
        if name == "T5Tokenizer" and not extra:
            count = self.settings.get("extra_ids")
            extra = [f"<extra_id_{number}>" for number in range(100 if count is None else count)]
        if name == "CamembertTokenizer" and not extra:
            extra = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
        vocabulary = {token.content for token in inner.get_added_tokens_decoder().values()}
        waiting: list[str | AddedToken] = [token for _, token in sorted(self.tokens.items())]
        vocabulary |= {_text(token) for token in waiting}
        waiting += [token for token in [*roles.values(), *extra] if _text(token) not in vocabulary]
        role_texts = {_text(token) for token in roles.values()}
        for token in waiting:
            if isinstance(token, str):
                token = AddedToken(token, special=True)
            elif token.content in role_texts:
                token.special = True
            inner.add_tokens([token])
        if name == "Qwen2Tokenizer":
            inner.add_tokens([AddedToken(_text(token), special=True) for token in [*roles.values(), *extra]])

    def _add_template(self, inner: Tokenizer, name: str, roles: Mapping[str, str | AddedToken]) -> None:
        """The special tokens around a text, where the class sets them and not the file."""
        number = {role: inner.token_to_id(_text(token)) or 0 for role, token in roles.items()}
        text = {role: _text(token) for role, token in roles.items()}
        framed = ("BertTokenizer", "DebertaV2Tokenizer", "RobertaTokenizer", "MPNetTokenizer")
        if name in framed and not {"cls", "sep"} <= roles.keys():
            raise UsageError(f"{self.source / CONFIG}: {name} needs a cls_token and a sep_token, and not null.")
        if name in ("BertTokenizer", "DebertaV2Tokenizer"):
            single = [text["cls"], "$A", text["sep"]]
            inner.post_processor = _template(inner, single, [*single, "$B:1", f"{text['sep']}:1"])
        elif name in ("RobertaTokenizer", "MPNetTokenizer"):
            inner.post_processor = processors.RobertaProcessing(
                (text["sep"], number["sep"]), (text["cls"], number["cls"]),
                self.settings.get("trim_offsets") is not False, bool(self.settings.get("add_prefix_space")),
            )  # fmt: skip
        elif name in ("XLMRobertaTokenizer", "CamembertTokenizer"):
            if not {"bos", "eos"} <= roles.keys():
                raise UsageError(f"{self.source / CONFIG}: {name} needs a bos_token and an eos_token, and not null.")
            single = [text["bos"], "$A", text["eos"]]
            inner.post_processor = _template(inner, single, [*single, text["eos"], "$B", text["eos"]])
        elif name in LANGUAGES:
            source, before = self.settings.get("src_lang") or LANGUAGES[name][0], LANGUAGES[name][1]
            before = before and not (name == "NllbTokenizer" and self.settings.get("legacy_behaviour"))
            templates = []
            for key, language in (("src_lang", source), ("tgt_lang", self._target_language(inner) or source)):
                if inner.token_to_id(language) is None or "eos" not in roles:
                    word = f"a token {language} for {key}" if "eos" in roles else "an eos_token"
                    raise UsageError(f"{self.source / CONFIG}: {name} needs {word}, which its files do not have.")
                single = [language, "$A", text["eos"]] if before else ["$A", text["eos"], language]
                templates.append(_template(inner, single, _with_second(single, "$B")))
            inner.post_processor, self.target_template = templates
        elif name == "WhisperTokenizer":
            times = [] if self.settings.get("predict_timestamps") else ["<|notimestamps|>"]
            single = ["<|startoftranscript|>", *self._spoken(), *times, "$A", text.get("eos", "an eos_token")]
            for lacking in (token for token in single if token != "$A" and inner.token_to_id(token) is None):
                raise UsageError(f"{self.source / CONFIG}: {name} needs {lacking}, which its files do not have.")
            inner.post_processor = _template(inner, single, _with_second(single, "$B:1"))
        elif name == "T5Tokenizer":
            inner.post_processor = processors.TemplateProcessing(
                single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", number["eos"])]
            )
        elif self.content is None:
            around = {
                role: [text[role]] if role in text and self.settings.get(f"add_{role}_token") else []
                for role in ("bos", "eos")
            }
            single = [*around["bos"], "$A", *around["eos"]]
            second = [f"{piece}:1" for piece in (*around["bos"], "$B", *around["eos"])]
            inner.post_processor = _template(inner, single, [*single, *second])

    def _target_language(self, inner: Tokenizer) -> str | None:
        """The language that the model is told to write, or else that tokenizer_config.json names."""
        config = {**self.theirs, **hf_files.optional(self.source / "generation_config.json")}
        numbers = [config.get(key) for key in ("forced_bos_token_id", "decoder_start_token_id")]
        tokens = [inner.id_to_token(number) or "" for number in numbers if isinstance(number, int) and number >= 0]
        return next(filter(LANGUAGE.fullmatch, tokens), self.settings.get("tgt_lang"))

    def _spoken(self) -> list[str]:
        """The tokens of the language and of the task that tokenizer_config.json names, if it does."""
        language, task = self.settings.get("language"), self.settings.get("task")
        code = None if language is None else spoken_code(language, str(self.source / CONFIG))
        if task not in (None, "transcribe", "translate"):
            raise UsageError(f"{self.source / CONFIG}: task={shorten(task)} is none; transcribe or translate would be.")
        return [f"<|{word}|>" for word in (code, task) if word]

    def _clean_up(self, inner: Tokenizer) -> None:
        """Take spaces before punctuation out of decoded text where the files say so, as transformers does."""
        force = self.settings.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
        if not self.settings.get("clean_up_tokenization_spaces") or (isinstance(inner.model, models.BPE) and not force):
            return
        if inner.decoder is None:
            raise UsageError(f"{self.source / CONFIG}: clean_up_tokenization_spaces needs a decoder in {FILE}.")
        steps = [decoders.Replace(pattern, pattern.strip()) for pattern in CLEANED]
        inner.decoder = decoders.Sequence([inner.decoder, decoders.Fuse(), *steps])

    def _bpe(self, **options: Any) -> Tokenizer:
        if self.content is None:
            return Tokenizer(models.BPE.from_file(*(str(self.source / name) for name in BPE_FILES), **options))
        model = self.content["model"]
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        merges = [(str(before), str(behind)) for before, behind in pairs]
        return Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, **options))

    def _llama(self) -> Tokenizer:
        inner = self._bpe(fuse_unk=True, byte_fallback=True)
        prefix = self.settings.get("add_prefix_space") is not False
        scheme = ("always" if self.settings.get("legacy") else "first") if prefix else "never"
        inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        inner.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
        return inner

    def _gpt2(self) -> Tokenizer:
        inner = self._bpe(continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
        prefix = bool(self.settings.get("add_prefix_space"))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        inner.decoder = decoders.ByteLevel()
        return inner

    def _qwen2(self) -> Tokenizer:
        inner = self._gpt2()
        inner.normalizer = normalizers.NFC()
        prefix = bool(self.settings.get("add_prefix_space"))
        split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(prefix, use_regex=False)])
        return inner

    def _bert(self) -> Tokenizer:
        unknown = _text(self.settings["unk_token"])
        if self.content is None:
            model = models.WordPiece.from_file(str(self.source / "vocab.txt"), unk_token=unknown)
        else:
            model = models.WordPiece(self.content["model"]["vocab"], unk_token=unknown)
        inner = Tokenizer(model)
        inner.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.settings.get("tokenize_chinese_chars") is not False,
            strip_accents=self.settings.get("strip_accents"),
            lowercase=self.settings.get("do_lower_case") is not False,
        )
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.WordPiece(prefix="##")
        return inner

    def _unigram(self, unknown: int) -> Tokenizer:
        assert self.content is not None
        vocabulary = [(piece, float(score)) for piece, score in self.content["model"]["vocab"]]
        return Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=False))

    def _characters(self) -> normalizers.Normalizer | None:
        """The file's table of equal characters, which is the first step of that kind."""
        steps = (self.content or {}).get("normalizer") or {}
        for step in steps.get("normalizers", [steps]):
            if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
                return normalizers.Precompiled(base64.b64decode(step["precompiled_charsmap"]))
        return None

    def _pieces(self, unknown: int, scheme: str = "always") -> Tokenizer:
        """A unigram vocabulary of words that begin with ▁, with the file's table of equal characters."""
        inner = self._unigram(unknown)
        if (characters := self._characters()) is not None:
            inner.normalizer = characters
        space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=True)
        inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
        inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme, split=True)
        return inner

    def _mbart(self) -> Tokenizer:
        inner = self._pieces(3)
        inner.normalizer = None
        return inner

    def _spaced(self, inner: Tokenizer, normal: bool) -> Tokenizer:
        """Words that begin with ▁, whose spaces count once; ``normal`` without a table of equal characters too."""
        characters = self._characters()
        if normal or characters is not None:
            once = normalizers.Replace(Regex(r" {2,}"), " ")
            inner.normalizer = normalizers.Sequence([*([characters] if characters is not None else []), once])
        inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
        inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=True)
        return inner

    def _mbart50(self) -> Tokenizer:
        assert self.content is not None
        if not any(re.fullmatch(r"[a-z]{2}_[A-Z]{2}", piece) for piece, _ in self.content["model"]["vocab"]):
            raise UsageError(f"{self.source / FILE} has no languages such as en_XX in its vocabulary.")
        return self._spaced(self._unigram(3), True)

    def _nllb(self) -> Tokenizer:
        return self._spaced(self._bpe(unk_token=_text(self.settings["unk_token"]), fuse_unk=True), False)

    def _t5(self) -> Tokenizer:
        return self._pieces(2)

    def _xlm_roberta(self) -> Tokenizer:
        return self._pieces(3, "never" if self.settings.get("add_prefix_space") is False else "always")

    def _camembert(self) -> Tokenizer:
        assert self.content is not None
        words = [piece for piece, _ in self.content["model"]["vocab"]]
        unknown = _text(self.settings["unk_token"])
        scheme = "never" if self.settings.get("add_prefix_space") is False else "always"
        return self._pieces(words.index(unknown) if unknown in words else 0, scheme)

    def _deberta(self) -> Tokenizer:
        assert self.content is not None
        pieces = [(piece, float(score)) for piece, score in self.content["model"]["vocab"]]
        unknown = (_text(self.settings["unk_token"]), 0.0)
        number = self.settings.get("unk_id")
        inner = self._unigram(pieces.index(unknown) if unknown in pieces else 1 if number is None else number)
        steps = [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(False, True)]
        lower = [normalizers.Lowercase()] if self.settings.get("do_lower_case") else []
        inner.normalizer = normalizers.Sequence([*lower, *steps])
        scheme = "first" if self.settings.get("add_prefix_space") is False else "always"
        punctuation = [pre_tokenizers.Punctuation("isolated")] if self.settings.get("split_by_punct") else []
        space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
        inner.pre_tokenizer = pre_tokenizers.Sequence([*punctuation, space])
        inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
        return inner


def spoken_code(language: Any, source: str) -> str:
    """The code of a language of speech that a file names, such as de. Raises UsageError for an unknown one."""
    name = str(language).lower().strip("<|>").replace(" ", "_")
    code = SPOKEN.get(name, name)
    if code not in SPOKEN.values():
        raise UsageError(f"{source}: language={shorten(language)} is none that zoo knows; a code such as de would be.")
    return code


def _empty(content: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer.json without its vocabulary, for the steps that hold no numbers of it."""
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({**content, "model": model, "added_tokens": []}))


def _template(inner: Tokenizer, single: list[str], pair: list[str]) -> processors.TemplateProcessing:
    """The special tokens around one text and around two; the texts are $A and $B, and :1 is a piece's type."""
    marks = [(token, inner.token_to_id(token) or 0) for token in single if token != "$A"]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks)


def _with_second(single: list[str], second: str) -> list[str]:
    """A template of two texts without a special token between them."""
    place = single.index("$A") + 1
    return [*single[:place], second, *single[place:]]


def _text(token: Any) -> str:
    """The text of a token in any form; empty for none."""
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token if isinstance(token, str) else getattr(token, "content", "")

"""The tokenizer: text to token numbers and back, a class around the library `tokenizers` and its tokenizer.json."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from zoo.data.tokenizer_errors import native_call, refuse_surrogates
from zoo.data.tokenizer_file import (
    BOS,
    CHARACTER,
    CLS,
    EOS,
    IDEOGRAPH,
    MASK,
    NAMES,
    PAD,
    SEP,
    check_tokenizer,
    published_names,
)
from zoo.errors import UsageError
from zoo.io import atomic_files, limits

log = logging.getLogger(__name__)

# Forked loader workers would each print a warning, although they never tokenize.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

__all__ = ["BOS", "CLS", "EOS", "MASK", "PAD", "SEP", "Tokenizer", "byte_of", "language_token"]
ALPHABET_SIZE = 256
# bytes of a text without spaces that BPE learns from together: the library takes quadratic time in them for each merge
LONGEST_PIECE = 1000
PART = 1 << 24  # characters of a long text that are encoded at once
ANY_TEXT = "☺"  # merges with no text behind it
BYTE = re.compile("<0x[0-9A-F]{2}>")
Style: TypeAlias = Literal["byte", "text", "pieces", "mark"]


class Tokenizer:
    """Characters, bytes or byte-level BPE, or a published tokenizer.

    Text that looks like a special token is plain text: only the data layer puts special tokens in. Decoding what was
    encoded gives the same text; a tokenizer of characters refuses those it has not seen. A published tokenizer reads
    special tokens in a text as special tokens, as the library transformers does, unless ``splits_specials``.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, names: Mapping[str, str] | None = None, splits_specials: bool = False
    ) -> None:
        """``names`` are those of a published tokenizer: the tokens that pad, begin, end and hide."""
        self.inner, self.published, self.names = inner, names is not None, dict(names or {})
        self.splits_specials = splits_specials or not self.published
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.tokens = [""] * (max(vocabulary.values(), default=-1) + 1)
        for token, number in vocabulary.items():
            self.tokens[number] = token
        added = inner.get_added_tokens_decoder().items()
        self.specials = {token.content: number for number, token in added if token.special}
        self.pad, self.bos, self.eos = (self.special(name) for name in (PAD, BOS, EOS))
        self.separator = self.special(SEP) if self.published and self.eos is None else self.eos
        self.scheme = _scheme(inner)
        self._table = self._lookup() if self.scheme == "chars" else None
        self.source = ""  # the file it was read from
        self.foreign = self.published and '"Regex"' in inner.to_str()  # with patterns that are none of ours

    @property
    def splits_specials(self) -> bool:
        """Whether a special token that a text spells is split like other text."""
        return bool(self.inner.encode_special_tokens)

    @splits_specials.setter
    def splits_specials(self, value: bool) -> None:
        """Split them from now on, or read them as special tokens."""
        self.inner.encode_special_tokens = value

    @classmethod
    def chars(cls, texts: Iterable[str], specials: Sequence[str] = ()) -> Tokenizer:
        """One token per character of `texts`, sorted, after the special tokens."""
        characters = sorted(set().union(*map(set, texts)))
        refuse_surrogates(characters)
        vocabulary = {token: number for number, token in enumerate([*specials, *characters])}
        inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # not a token: unknown raises
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(CHARACTER), "isolated")
        inner.decoder = decoders.Fuse()
        return cls(_with_specials(inner, specials))

    @classmethod
    def bytes(cls, specials: Sequence[str] = ()) -> Tokenizer:
        """Token n is the byte n of UTF-8; the special tokens follow."""
        vocabulary = {token: byte for byte, token in enumerate(_byte_tokens())}
        inner = _byte_level(models.BPE(vocabulary, []), [])
        return cls(_with_specials(inner, specials))

    @classmethod
    def bpe(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        specials: Sequence[str] = (EOS,),
        split_digits: bool = False,
        split_ideographs: bool = False,
    ) -> Tokenizer:
        """Byte-level BPE learned from `texts`: the special tokens, 256 bytes, then merges.

        `split_digits` makes every digit a token, `split_ideographs` keeps Chinese and Japanese characters apart. The
        vocabulary is smaller than `vocab_size` when the texts have no more pairs to merge.
        """
        least = ALPHABET_SIZE + len(specials)
        if vocab_size < least:
            raise UsageError(f"vocab_size is {vocab_size}: byte-level BPE needs at least {least}, one for each byte")
        split: list[pre_tokenizers.PreTokenizer] = []
        if split_ideographs:
            split.append(pre_tokenizers.Split(Regex(IDEOGRAPH), "isolated"))
        if split_digits:
            split.append(pre_tokenizers.Digits(individual_digits=True))
        inner = _byte_level(models.BPE(), split)
        whole, pieces = inner.pre_tokenizer, pre_tokenizers.FixedLength(length=LONGEST_PIECE)
        inner.pre_tokenizer = pre_tokenizers.Sequence([whole, pieces])
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(specials),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        with native_call("", texts if isinstance(texts, Sequence) else ()):
            inner.train_from_iterator(texts, trainer)
        inner.pre_tokenizer = whole
        if inner.get_vocab_size() < vocab_size:
            log.warning("vocab_size is %d, and the text gives %d tokens", vocab_size, inner.get_vocab_size())
        return cls(inner)

    def beginning(self) -> list[int]:
        """The token that a document begins with: <bos> of a published tokenizer, or <eos>; none without either."""
        start = self.eos if self.bos is None or not self.published else self.bos
        return [] if start is None else [start]

    def end_of_document(self) -> int:
        """The number of <eos>, which separates documents; of BERT's <sep>. Raises UsageError where there is none."""
        if self.separator is None:
            raise UsageError(f"the tokenizer {self.source or ''} has no token {EOS}, which separates documents.")
        return self.separator

    def extended(self, specials: Sequence[str]) -> Tokenizer:
        """The same tokenizer with further special tokens behind all others, whose numbers stay."""
        inner = tokenizers.Tokenizer.from_str(self.to_json())
        _with_specials(inner, [name for name in specials if self.special(name) is None])
        return type(self)(inner, self.names if self.published else None, self.splits_specials)

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """Read a tokenizer.json. Raises UsageError unless its numbers are 0 to V-1, each once, and its parts agree."""
        path = Path(path)
        try:
            text = limits.read_text(path, limits.JSON_BYTES)
            names, splits_specials = published_names(path)
            if names is None:
                check_tokenizer(path, text)
            with native_call(str(path), silent=True):
                inner = tokenizers.Tokenizer.from_str(text)
                inner.no_padding()
                inner.no_truncation()
                if isinstance(inner.model, models.BPE):
                    inner.model.dropout = None  # which would draw other tokens each time
                _flag_specials(inner, (names or {}).values())
                result = cls(inner, names, splits_specials)
            result.source = str(path)
            return result
        except UsageError:
            raise
        except FileNotFoundError as error:
            raise UsageError(f"{path} is not on disk: a tokenizer.json was expected there") from error
        except RecursionError as error:
            raise UsageError(f"{path} is nested too deeply to be a tokenizer") from error
        except Exception as error:  # the library raises bare Exception
            raise UsageError(f"{path} is not a tokenizer of the library 'tokenizers': {error}") from error

    @classmethod
    def of_run(cls, path: Path | str) -> Tokenizer:
        """The tokenizer of a run's folder, or of a tokenizer.json. Raises UsageError as `load` does."""
        here = Path(path).expanduser()
        return cls.load(here / "tokenizer.json" if here.is_dir() else here)

    def save(self, path: Path | str) -> None:
        """Write a tokenizer.json that any user of the library can load, and beside it how a published tokenizer calls
        its special tokens.
        """
        path = Path(path)
        atomic_files.write_bytes(path, self.to_json().encode())
        if self.published:
            content: dict[str, object] = {f"{ours.strip('<>')}_token": theirs for ours, theirs in self.names.items()}
            content |= {"split_special_tokens": True} if self.splits_specials else {}
            atomic_files.write_json(path.with_name(path.name.replace("tokenizer.json", NAMES)), content)

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return self.inner.to_str()

    def identity(self) -> str:
        """What the tokens of a text depend on: the content of tokenizer.json, and what stands beside it."""
        return self.to_json() + " split_special_tokens" * (self.published and self.splits_specials)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.tokens)

    def special(self, name: str) -> int | None:
        """The number of a special token by zoo's name, such as <cls>; None if the tokenizer lacks it."""
        return self.specials.get(self.names.get(name, name))

    def languages(self) -> dict[str, int]:
        """The numbers of its language tokens, by locale."""
        matches = {re.fullmatch(r"<2(\w+)>", token): number for token, number in self.specials.items()}
        return {match[1]: number for match, number in matches.items() if match}

    @functools.cached_property
    def template(self) -> tuple[list[int], list[int]]:
        """The special tokens that a published tokenizer puts before and behind a text; none for zoo's own."""
        if not self.published or self.inner.post_processor is None:
            return [], []
        place = len(self.tokens)
        probe = tokenizers.Tokenizer(models.WordLevel({"x": place}, unk_token="x"))  # a text of one token
        ids = self.inner.post_processor.process(probe.encode("x"), None, True).ids
        return ids[: ids.index(place)], ids[ids.index(place) + 1 :]

    def framed(self, ids: Sequence[int]) -> list[int]:
        """These tokens in the special tokens of the template."""
        before, behind = self.template
        return [*before, *ids, *behind]

    def marked(self, ids: Sequence[int]) -> list[int]:
        """These tokens in the template of a published tokenizer; without one behind <cls>, and before <sep> where a
        published tokenizer has it.

        Raises KeyError where there is no <cls>.
        """
        if self.inner.post_processor is not None:
            return self.framed(ids)
        cls_id, sep_id = self.special(CLS), self.special(SEP) if SEP in self.names else None
        if cls_id is None:
            raise KeyError(CLS)
        return [cls_id, *ids] if sep_id is None else [cls_id, *ids, sep_id]

    @property
    def marks_before(self) -> int:
        """How many tokens ``marked`` puts before a text."""
        return 1 if self.inner.post_processor is None else len(self.template[0])

    def encode(self, text: str) -> list[int]:
        """Raises UsageError that names the first character a tokenizer of characters does not know."""
        return self.encode_array(text).tolist()

    def encode_parts(self, text: str, kind: type[np.uint16 | np.uint32]) -> Iterator[np.ndarray]:
        """The same as arrays (N,) of a type; a long text, where characters are encoded alone, in parts of PART."""
        size = PART if self._is_letterwise else max(1, len(text))
        for begin in range(0, len(text), size):
            yield self.encode_array(text[begin : begin + size], begin).astype(kind)

    def encode_array(self, text: str, begin: int = 0) -> np.ndarray:
        """The same as one int array; for characters and bytes a hundred times, else twice as fast as with offsets.

        ``begin`` is where the text begins in a longer one, in characters.
        """
        if self._table is not None and self._is_letterwise:
            return self._look_up(self._table, text, begin)
        with native_call(self.source, text, self.foreign):
            if self._is_letterwise:
                return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
            return np.array(self.inner.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int64)

    @property
    def _is_letterwise(self) -> bool:
        """Whether each character or byte of a text is a token, whatever stands beside it."""
        return self.scheme != "bpe" and self.splits_specials

    def _look_up(self, table: np.ndarray, text: str, begin: int) -> np.ndarray:
        """The numbers of characters. Raises UsageError that names the first one without a number."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        numbers = table[np.minimum(codes, len(table) - 1)]
        if (numbers < 0).any():
            place = int(np.argmax(numbers < 0))
            raise UsageError(
                f"character {text[place]!r} (U+{ord(text[place]):04X}) at index {begin + place} is not in the "
                f"vocabulary of {self.vocab_size} characters.\nUse tokenizer: bytes or bpe, which know every text."
            )
        return np.asarray(numbers)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token numbers of several texts. Raises UsageError as `encode` does."""
        if self.scheme != "bpe":
            return [self.encode(text) for text in texts]
        with native_call(self.source, texts, self.foreign):
            return [encoding.ids for encoding in self.inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    @functools.cached_property
    def puts_space_before(self) -> bool:
        """Whether a published tokenizer reads a space before the first word of a text, as LLaMA's does."""
        first = self.tokens[self.encode("x")[0]] if self.published and self.style != "pieces" else ""
        return first.startswith(("▁", "Ġ"))

    def encode_rest(self, text: str, context: str = "") -> list[int]:
        """The tokens of a text that continues another one: no space is put before it.

        Where a token would span both, or nothing is known of what stands before, they are those of the text alone.
        """
        for before in filter(None, (context, ANY_TEXT if self.puts_space_before else "")):
            ids, whole = self.encode(before), self.encode(before + text)
            if whole[: len(ids)] == ids:
                return whole[len(ids) :]
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these tokens; special tokens are left out."""
        with native_call(self.source, (), self.foreign):
            return self.inner.decode([int(number) for number in ids], skip_special_tokens=True)

    def continuation(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """What these tokens add to the text of a prompt: the first of them may begin with a space only behind it."""
        return self.decode([*prompt, *ids])[len(self.decode(prompt)) :]

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens, and for each the characters [start, end) it stands for, at least in part.

        Raises UsageError as `encode` does.
        """
        if self._table is not None and self._is_letterwise:
            return self.encode(text), [(place, place + 1) for place in range(len(text))]
        with native_call(self.source, text, self.foreign):
            encoding = self.inner.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets

    def byte_lengths(self) -> np.ndarray:
        """(V,) int64: the bytes of UTF-8 that each token stands for; 0 for special tokens."""
        sizes = [_byte_count(token, self.style) for token in self.tokens]
        for number, token in self.inner.get_added_tokens_decoder().items():
            sizes[number] = 0 if token.special else _byte_count(token.content, "text")
        return np.array(sizes, dtype=np.int64)

    @functools.cached_property
    def style(self) -> Style:
        """How tokens that were not added are spelled: a letter for each "byte", as "text", in "pieces" of words of
        which ## begins all but the first, or as text with a "mark" ▁ for a space and <0x0A> for a byte.
        """
        if isinstance(self.inner.model, models.WordLevel):
            return "text"
        if self.scheme == "bytes" or '"ByteLevel"' in json.dumps(json.loads(self.inner.to_str())["decoder"]):
            return "byte"
        return "pieces" if isinstance(self.inner.model, models.WordPiece) else "mark"

    def _lookup(self) -> np.ndarray:
        numbers = {ord(token): n for n, token in enumerate(self.tokens) if token not in self.specials}
        table = np.full(max(numbers, default=0) + 2, -1, dtype=np.int64)  # the last place stands for all above
        table[list(numbers)] = list(numbers.values())
        return table


def language_token(locale: str) -> str:
    """The special token that asks a translation model of several languages for this one (Johnson et al., 2017)."""
    return f"<2{locale}>"


def _byte_level(model: models.Model, split: list[pre_tokenizers.PreTokenizer]) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    inner.decoder = decoders.ByteLevel()
    return inner


@functools.cache
def _bytes_of() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(_byte_tokens())}


def byte_of(letter: str) -> int:
    """The byte that byte-level BPE writes as this letter."""
    return _bytes_of()[letter]


def _byte_tokens() -> list[str]:
    """The letter that byte-level BPE writes for each byte, in the order of bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(ALPHABET_SIZE) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [letters[byte] for byte in range(ALPHABET_SIZE)]


def _byte_count(token: str, style: Style) -> int:
    """Bytes of UTF-8 that a token of this style stands for."""
    if style == "byte":
        return len(token)
    if style == "pieces":
        return len(token.removeprefix("##").encode())
    if style == "mark":
        return 1 if BYTE.fullmatch(token) else len(token.replace("▁", " ").encode())
    return len(token.encode())


def _flag_specials(inner: tokenizers.Tokenizer, names: Iterable[str]) -> None:
    """Make tokens special which tokenizer.json has and does not call so; they match in a text as it says."""
    added = inner.get_added_tokens_decoder()
    for name in names:
        number = inner.token_to_id(name)
        if number is None:
            continue
        token = added.get(number, AddedToken(name, normalized=False))
        if not token.special:
            flags = {flag: getattr(token, flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")}
            inner.add_special_tokens([AddedToken(name, special=True, **flags)])


def _with_specials(inner: tokenizers.Tokenizer, specials: Sequence[str]) -> tokenizers.Tokenizer:
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    return inner


def _scheme(inner: tokenizers.Tokenizer) -> str:
    """Whether each character, or each byte, is a token, as zoo's own tokenizers have it; "bpe" for all others."""
    content = json.loads(inner.to_str())
    model, split = content["model"], content["pre_tokenizer"] or {}
    if content["normalizer"] is not None:
        return "bpe"
    if model["type"] == "WordLevel" and split.get("pattern") == {"Regex": CHARACTER}:
        added = {token["content"] for token in content["added_tokens"]}
        has_unknown = model["unk_token"] in model["vocab"]
        letters = all(len(token) == 1 for token in model["vocab"].keys() - added)
        return "chars" if letters and not has_unknown else "bpe"
    if model["type"] == "BPE" and not model["merges"] and len(model["vocab"]) == ALPHABET_SIZE:
        in_order = all(model["vocab"].get(token) == byte for byte, token in enumerate(_byte_tokens()))
        prefixed = '"add_prefix_space": true' in json.dumps(split)
        return "bytes" if in_order and not prefixed else "bpe"
    return "bpe"

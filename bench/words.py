"""Parallel files in lower-case words, and tokenizers of the words that stand in them at least twice."""

import gzip
import re
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from zoo.data.pair_data import FILES, SPECIALS
from zoo.data.tokenizer_file import NAMES
from zoo.io import atomic_files

LEAST = 2  # times that a word of the vocabulary stands in the training text
UNKNOWN = "<unk>"  # every other word, also where it is written
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
SPLITS = ("train", "val")


def write_words(source: Path, folder: Path, languages: tuple[str, str]) -> None:
    """Write the splits of the folder ``source`` word by word, and a tokenizer for each language, source then target."""
    folder.mkdir(parents=True, exist_ok=True)
    for language, name in zip(languages, FILES, strict=True):
        for split in SPLITS:
            text = gzip.decompress((source / f"{split}.{language}.gz").read_bytes()).decode()
            lines = [" ".join(WORD.findall(line)) for line in text.lower().splitlines()]
            atomic_files.write_text(folder / f"{split}.{language}", "\n".join(lines) + "\n")
        counts = Counter((folder / f"train.{language}").read_text(encoding="utf-8").split())
        atomic_files.write_text(folder / name, word_tokenizer(counts).to_str())
    names = {f"{token.strip('<>')}_token": token for token in SPECIALS}
    atomic_files.write_json(folder / NAMES, names)


def word_tokenizer(counts: Counter[str]) -> Tokenizer:
    """A tokenizer of words between spaces, which ends a text with <eos>."""
    words = sorted(word for word, count in counts.items() if count >= LEAST)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*SPECIALS, UNKNOWN, *words])}, UNKNOWN))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    end = SPECIALS[-1]
    tokenizer.post_processor = processors.TemplateProcessing(f"$A {end}", None, [(end, SPECIALS.index(end))])
    return tokenizer

"""`zoo search`: find parts by words, among those installed and those of index files. Needs no torch and no network.

An index file is JSON: ``{"format": "zoo-index", "version": 1, "parts": [{"kind": "norm", "name": "DyT", …}, …]}``, with
the FIELDS of each part as texts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.cli import tables
from zoo.cli.commands import LOCAL_INDEX
from zoo.config.option_parser import ParsedOptions
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.plugins import discovery
from zoo.plugins.description import cache_lookups, describe
from zoo.system.garbage_collection import pause_collection

FORMAT, VERSION = "zoo-index", 1
FIELDS = ("kind", "name", "distribution", "version", "path", "summary", "paper")
MOST_BYTES, MOST_CHARACTERS = 16 * 2**20, 2000  # of an index file, and of one of its texts
# how much a word counts by where it occurs, and how much less one that is not written in full or alike
WEIGHTS = {"name": 8.0, "kind": 4.0, "paper": 3.0, "distribution": 3.0, "summary": 2.0}
BEGINNING, INSIDE, SIMILAR = 0.8, 0.6, 0.5
SHORTEST_INSIDE, SHORTEST_SIMILAR, CUTOFF = 3, 4, 0.75

Entry = dict[str, str]


def run(options: ParsedOptions) -> int:
    """`zoo search WORDS`."""
    target = options.get("write_index")
    words = [word for text in options.words for word in split(text)]
    if target is not None and options.words:
        raise UsageError("'--write-index' takes no words: it writes all parts. See: zoo search --help")
    if target is None and not words:
        raise UsageError("zoo search needs WORDS: names, kinds, authors or words of a title. See: zoo search --help")
    files = [Path(name) for name in options.get("index")]
    if not files and Path(LOCAL_INDEX).is_file():
        files = [Path(LOCAL_INDEX)]
    installed = installed_entries()
    entries = {entry_key(entry): entry for file in files for entry in read_index(file)}
    entries |= {entry_key(entry): entry for entry in installed}
    if target is not None:
        return write_index(Path(target), list(entries.values()))
    matches = best_matches(words, entries.values())
    if not matches:
        hint = registry.suggest("".join(words), [entry["name"] for entry in entries.values()])
        raise UsageError(f"no part matches {' '.join(options.words)!r}.{hint} See all: zoo list")
    local = {entry_key(entry) for entry in installed}
    if options.get("json"):
        tables.as_json([{**entry, "installed": entry_key(entry) in local} for entry in matches])
        return 0
    rows = [[entry["kind"], entry["name"], _brief(entry), _origin(entry, local)] for entry in matches]
    tables.table(["kind", "name", "what it is", "from"], rows)
    return 0


def installed_entries() -> list[Entry]:
    """The parts that can be selected by name, as an index has them."""
    with pause_collection(), cache_lookups():  # syntax trees live until the end
        entries = []
        for part in (part for kind in registry.KINDS for part in registry.parts(kind)):
            about = describe(part)
            values = (part.kind, part.name, part.distribution, part.version, part.path, about.summary, about.paper)
            entries.append({field: text[:MOST_CHARACTERS] for field, text in zip(FIELDS, values, strict=True)})
    return entries


def entry_key(entry: Entry) -> tuple[str, str, str]:
    """What tells a part from others, whatever its version."""
    return entry["kind"], entry["name"], discovery.normalize_name(entry["distribution"])


def read_index(file: Path) -> list[Entry]:
    """The parts of an index file. Raises UsageError that says what is wrong with it."""
    try:
        content: Any = limits.read_json(file, MOST_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("parts"), list):
        raise UsageError(f"{file} is not an index of parts. Make one: zoo search --write-index FILE")
    if content.get("version") != VERSION:
        raise UsageError(
            f"{file} has version {content.get('version')!r:.20} of the format, this zoo reads {VERSION}. "
            "Run: pip install -U zoo-transformers"
        )
    return [_entry(one, number, file) for number, one in enumerate(content["parts"], 1)]


def _entry(value: Any, number: int, file: Path) -> Entry:
    """A part of an index, with every field. Raises UsageError for one that has no kind, name or distribution."""
    entry = {field: value.get(field, "") for field in FIELDS} if isinstance(value, dict) else {}
    wrong = [field for field, text in entry.items() if not isinstance(text, str) or len(text) > MOST_CHARACTERS]
    missing = [field for field in FIELDS[:3] if not entry.get(field)]
    if wrong or missing:
        fault = f"{wrong[0]} is not a text of at most {MOST_CHARACTERS} characters" if wrong else f"no {missing[0]}"
        raise UsageError(f"{file}: part {number} has a fault: {fault}.")
    return entry


def write_index(target: Path, entries: list[Entry]) -> int:
    """Write the parts of plugins into an index. Raises UsageError for a file that is none, or cannot be written."""
    if target.exists():
        read_index(target)  # never overwrite anything else
    plugins = sorted((one for one in entries if one["distribution"] != registry.BUILTIN), key=entry_key)
    try:
        atomic_files.write_json(target, {"format": FORMAT, "version": VERSION, "parts": plugins}, end="\n")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    print(f"{len(plugins)} parts of plugins → {target}")
    return 0


def split(text: str) -> list[str]:
    """The words of a text in lower case; ``RMSNorm`` gives ``rms`` and ``norm``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return re.findall(r"[^\W_]+", parted.lower())


def best_matches(words: Iterable[str], entries: Iterable[Entry]) -> list[Entry]:
    """The parts that match every word, the best first."""
    every = list(entries)
    tokens = [{field: _tokens(entry[field], field) for field in WEIGHTS} for entry in every]
    vocabulary = {token for fields in tokens for one in fields.values() for token in one}
    scores = [0.0] * len(every)
    for word in dict.fromkeys(words):
        quality = {token: _quality(word, token) for token in vocabulary}
        if len(word) >= SHORTEST_SIMILAR:
            for token in difflib.get_close_matches(word, vocabulary, 20, CUTOFF):
                quality[token] = max(quality[token], SIMILAR * difflib.SequenceMatcher(None, token, word).ratio())
        for number, fields in enumerate(tokens):
            best = max(
                WEIGHTS[field] * max((quality[token] for token in one), default=0.0) for field, one in fields.items()
            )
            scores[number] = scores[number] + best if best and scores[number] >= 0 else -1.0
    ranked = sorted(zip(scores, every, strict=True), key=lambda pair: (-pair[0], pair[1]["name"].lower()))
    return [entry for score, entry in ranked if score > 0]


def _tokens(text: str, field: str) -> set[str]:
    """The words of a field; names also as a whole, since people write rmsnorm."""
    whole = {"".join(split(text))} if field in ("name", "distribution") else set()
    return {*split(text), *whole} - {""}


def _quality(word: str, token: str) -> float:
    if word == token:
        return 1.0
    if token.startswith(word):
        return BEGINNING
    return INSIDE if len(word) >= SHORTEST_INSIDE and word in token else 0.0


def _brief(entry: Entry) -> str:
    text = entry["summary"] or entry["paper"]
    return text if len(text) <= 90 else text[:89] + "…"


def _origin(entry: Entry, local: set[tuple[str, str, str]]) -> str:
    origin = f"{entry['distribution']} {entry['version']}".strip()
    return origin if entry_key(entry) in local else f"{origin} (not installed)"

"""Token files give back the documents of text files, also after kills, and refuse what is torn or of another kind."""

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from zoo_scale.document_paths import held_out
from zoo_scale.prepare import tokenize
from zoo_scale.token_data import TokenFile
from zoo_scale.token_file import HEADER, SPLITS, TOKENIZER, array_path, open_tokens, token_dtype

from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError
from zoo.finetuning.finetune import other_tokenizer

DOCUMENTS = [f"document {i}\n" for i in range(30)]
FORMS = {
    "text": ({f"{i}.txt": text.encode() for i, text in enumerate(DOCUMENTS)}, ""),
    "gzip": ({f"{i}.txt.gz": gzip.compress(text.encode()) for i, text in enumerate(DOCUMENTS)}, ""),
    "records": ({"a.jsonl": "\n".join(json.dumps({"text": text}) for text in DOCUMENTS).encode()}, ""),
    "table": ({"a.csv": ("n,body\n" + "".join(f'1,"{text}"\n' for text in DOCUMENTS)).encode()}, "#body"),
}


@pytest.fixture
def tokenizer(tmp_path):
    Tokenizer.bytes((EOS,)).save(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def write_texts(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with texts, their tokenizer and their token file."""
    home = tmp_path_factory.mktemp("prepared")
    Tokenizer.bytes((EOS,)).save(home / "tokenizer.json")
    tokenize(home / "out", [write_texts(home / "texts", FORMS["text"][0])], home / "tokenizer.json", 0.3)
    return home


@pytest.fixture
def tokens(tmp_path, prepared):
    """A copy of the token file, whose header names the texts of the folder that it was made in."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "out" / HEADER
    path.write_text(path.read_text().replace(str(prepared), str(tmp_path)))
    return tmp_path / "out"


def documents_of(array, tokenizer):
    return tokenizer.inner.decode(array[np.arange(len(array))].tolist(), skip_special_tokens=False).split(EOS)[:-1]


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("form", "processes"), [*((form, 1) for form in FORMS), ("text", 2)])
def test_documents_come_back(tmp_path, tokenizer, form, processes):
    files, column = FORMS[form]
    texts = write_texts(tmp_path / "texts", files)
    tokenize(tmp_path / "out", [texts + column], tokenizer, 0.3, processes)
    opened = open_tokens(tmp_path / "out", Tokenizer.load(tokenizer))
    for split in SPLITS:
        expected = [text for text in DOCUMENTS if held_out(text, 0.3) == (split == "val")]
        assert expected
        assert sorted(documents_of(opened.splits[split], opened.tokenizer)) == sorted(expected)


@pytest.mark.parametrize("vocabulary", [10, 2**16, 2**16 + 1])
def test_ids_fit_their_type(vocabulary):
    assert np.iinfo(token_dtype(vocabulary)).max >= vocabulary - 1


@pytest.mark.parametrize("removed", [None, 1, 2, 100, 10**9])
@pytest.mark.parametrize("name", [HEADER, TOKENIZER, "00000.train.npy", "00003.train.npy", "00003.val.npy"])
def test_a_torn_file_is_refused_by_name(tokens, name, removed):
    path = tokens / name
    with_tokens = next(array_path(tokens, n, "val") for n in range(30) if len(np.load(array_path(tokens, n, "val"))))
    path = with_tokens if name.endswith("val.npy") else path
    if name.endswith("train.npy") and not len(np.load(path)):
        path = next(array_path(tokens, n, "train") for n in range(30) if len(np.load(array_path(tokens, n, "train"))))
    if removed is None:
        path.unlink()
    else:
        os.truncate(path, max(0, path.stat().st_size - removed))
    with pytest.raises(UsageError, match=path.name):
        open_tokens(tokens)


@pytest.mark.parametrize("split", SPLITS)
def test_a_token_that_changed_is_refused_by_name(tokens, split):
    path = next(p for n in range(30) if len(np.load(p := array_path(tokens, n, split))))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=path.name):
        open_tokens(tokens)


def test_an_incomplete_token_file_is_refused(tokens):
    header = json.loads((tokens / HEADER).read_text())
    (tokens / HEADER).write_text(json.dumps({**header, "tokens": None}))
    with pytest.raises(UsageError, match="incomplete"):
        open_tokens(tokens)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"version": 2}, "version is 2"), ({"vocabulary": 11}, "vocabulary is 11"), ({"tokenizer": "x"}, "tokenizer is x"),
     ({"format": "x"}, "not the header"), ({"tokens": {"train": [1]}}, "not the header"),
     ({"files": 1}, "not the header")],
)  # fmt: skip
def test_a_header_of_another_kind_is_refused(tokens, change, words):
    header = json.loads((tokens / HEADER).read_text())
    (tokens / HEADER).write_text(json.dumps(header | change))
    with pytest.raises(UsageError, match=words):
        open_tokens(tokens)


def test_another_tokenizer_is_refused(tokens):
    with pytest.raises(UsageError, match="vocabulary is 257"):
        open_tokens(tokens, Tokenizer.bytes((EOS, "<more>")))
    with pytest.raises(UsageError, match="tokenizer is "):
        open_tokens(tokens, Tokenizer.bytes(("<end>",)))


@pytest.mark.parametrize(
    ("change", "word"), [("val", "val"), ("text", "files"), ("file", "files"), ("tokenizer", "vocabulary")]
)
def test_preparing_other_texts_into_the_folder_is_refused(tokens, tmp_path, tokenizer, change, word):
    before = content_of(tokens)
    if change == "text":
        (tmp_path / "texts" / "0.txt").write_text("other")
    if change == "file":
        (tmp_path / "texts" / "new.txt").write_text("other")
    if change == "tokenizer":
        Tokenizer.bytes((EOS, "<more>")).save(tokenizer)
    with pytest.raises(UsageError, match=f"another {word}"):
        tokenize(tokens, [str(tmp_path / "texts")], tokenizer, 0.2 if change == "val" else 0.3)
    assert content_of(tokens) == before


def test_a_folder_of_other_content_is_not_written_to(tmp_path, tokenizer):
    texts = write_texts(tmp_path / "texts", FORMS["text"][0])
    with pytest.raises(UsageError, match="no token file"):
        tokenize(tmp_path / "texts", [texts], tokenizer, 0.3)
    assert sorted(os.listdir(texts)) == sorted(FORMS["text"][0])


@pytest.mark.parametrize("place", ["tokens", "deep/tokens", "../texts/tokens"])
def test_a_token_file_within_its_texts_is_none_of_them(tmp_path, tokenizer, place):
    texts = write_texts(tmp_path / "texts", FORMS["text"][0])
    counts = [tokenize(tmp_path / "texts" / place, [texts], tokenizer, 0.3) for _ in range(2)]
    assert counts[0] == counts[1]


def test_the_advice_for_a_missing_text_is_what_prepare_reads(tmp_path, tokenizer):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": null, "body": "{text[:-1]}"}}\n' for text in DOCUMENTS))
    with pytest.raises(UsageError, match=r"behind the path: rows\.jsonl#NAME"):
        tokenize(tmp_path / "out", [str(path)], tokenizer, 0.3)
    assert tokenize(tmp_path / "named", [f"{path}#body"], tokenizer, 0.3)["train"]


def test_a_shard_that_is_no_array_is_torn_and_nothing_is_advised_to_be_unpickled(tokens):
    array_path(tokens, 0, "train").write_text("a text\n")
    with pytest.raises(UsageError, match=r"00000\.train\.npy: the token file is torn: it is no array"):
        open_tokens(tokens)


def test_tokens_of_another_tokenizer_are_to_be_prepared_anew(tokens):
    advice = other_tokenizer(TokenFile(str(tokens)), Path("runs/mine"), "one differs")
    assert advice.endswith("Make them anew: zoo prepare FOLDER PATH --tokenizer runs/mine")


@pytest.mark.parametrize("shards", [range(0), range(7), range(3, 29)])
def test_a_part_of_the_shards_is_gone_on_with(tokens, tmp_path, tokenizer, shards):
    before = content_of(tokens)
    header = json.loads((tokens / HEADER).read_text())
    (tokens / HEADER).write_text(json.dumps({**header, "tokens": None}))
    for shard in set(range(30)) - set(shards):
        array_path(tokens, shard, "train").unlink()
    (tokens / f".00000.train.npy.{os.getpid()}0000000000.partial").touch()
    tokenize(tokens, [str(tmp_path / "texts")], tokenizer, 0.3)
    assert {name: content_of(tokens)[name] for name in before} == before


@pytest.mark.campaign
def test_five_kills_change_no_byte(tmp_path, tokenizer):
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(5000)]
    texts = [" ".join(draw.choices(words, k=20_000)) for _ in range(60)]
    Tokenizer.bpe(texts[:3], 2000).save(tokenizer)
    folder = write_texts(tmp_path / "texts", {f"{i}.txt": text.encode() for i, text in enumerate(texts)})
    command = [
        sys.executable,
        "-m",
        "zoo",
        "prepare",
        "--tokenizer",
        str(tokenizer),
        "--processes",
        "2",
        "--val",
        "0.1",
    ]
    subprocess.run([*command, str(tmp_path / "whole"), folder], check=True)
    kills, shards = 0, []
    while kills < 5:
        process = subprocess.Popen([*command, str(tmp_path / "killed"), folder])
        before = len(list((tmp_path / "killed").glob("[0-9]*.train.npy")))
        target = before + draw.randint(1, 8)
        while len(list((tmp_path / "killed").glob("[0-9]*.train.npy"))) < target and process.poll() is None:
            time.sleep(0.002)
        assert process.poll() is None, "it ended before it was killed"
        process.kill()
        process.wait()
        kills += 1
        shards.append(len(list((tmp_path / "killed").glob("[0-9]*.train.npy"))))
    subprocess.run([*command, str(tmp_path / "killed"), folder], check=True)
    print(f"shards at each kill: {shards} of 60")
    assert content_of(tmp_path / "killed") == content_of(tmp_path / "whole")


def test_a_process_that_tokenizes_imports_no_torch():
    script = "import sys, zoo_scale.prepare; sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=120).returncode == 0

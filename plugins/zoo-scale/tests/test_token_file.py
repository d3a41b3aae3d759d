"""Token files give back what was written, open without reading tokens, and refuse what is torn or of another kind."""

import os
import time

import numpy as np
import pytest
from zoo_scale.token_file import HEADER, open_shards, token_dtype, write_header, write_shard

from zoo.errors import UsageError

DOCUMENTS = [[1, 2, 3], [], [4]]


def make(folder, vocabulary=10):
    write_shard(folder, 0, DOCUMENTS, vocabulary)
    write_shard(folder, 1, [], vocabulary)
    write_header(folder, 2, vocabulary, "abc")
    return folder


@pytest.mark.parametrize("vocabulary", [10, 2**16, 2**16 + 1])
def test_documents_come_back(tmp_path, vocabulary):
    full, empty = open_shards(make(tmp_path, vocabulary), vocabulary, "abc")
    assert full.tokens.dtype == token_dtype(vocabulary)
    assert [part.tolist() for part in np.split(full.tokens, full.ends[:-1])] == DOCUMENTS
    assert len(empty.tokens) == len(empty.ends) == 0


@pytest.mark.parametrize("name", ["00000.tokens", "00000.ends", HEADER])
@pytest.mark.parametrize("cut", [None, 1, 2, 4])
def test_a_torn_file_is_refused_by_name(tmp_path, name, cut):
    path = make(tmp_path) / name
    if cut is None:
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(UsageError, match=name):
        open_shards(tmp_path, 10, "abc")


@pytest.mark.parametrize(("change", "word"), [({"vocabulary": 11}, "vocabulary"), ({"tokenizer": "x"}, "tokenizer")])
def test_another_tokenizer_is_refused(tmp_path, change, word):
    with pytest.raises(UsageError, match=word):
        open_shards(make(tmp_path), **({"vocabulary": 10, "tokenizer": "abc"} | change))


def test_another_version_is_refused(tmp_path):
    header = make(tmp_path) / HEADER
    header.write_text(header.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(UsageError, match="version is 2"):
        open_shards(tmp_path, 10, "abc")


@pytest.mark.parametrize("token", [-1, 10])
def test_an_id_outside_of_the_vocabulary_is_refused(tmp_path, token):
    with pytest.raises(UsageError, match=f"token id {token} "):
        write_shard(tmp_path, 0, [[token]], 10)


def test_a_sparse_file_of_20_gb_opens_within_a_second(tmp_path):
    size = 20 * 10**9
    (tmp_path / "00000.tokens").touch()
    os.truncate(tmp_path / "00000.tokens", size)
    (tmp_path / "00000.ends").write_bytes(np.array([size // 2], "<i8").tobytes())
    write_header(tmp_path, 1, 10, "abc")
    start = time.perf_counter()
    (shard,) = open_shards(tmp_path, 10, "abc")
    assert shard.tokens[-1] == 0
    assert time.perf_counter() - start < 1
    print(f"opened in {time.perf_counter() - start:.4f} s")

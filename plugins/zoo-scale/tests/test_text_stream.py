"""Rows of a stream of text: every token of every document once, none of what validates, and little memory."""

import json
import pickle
import tracemalloc
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from zoo_scale import document_files
from zoo_scale.document_paths import held_out, stream_files
from zoo_scale.text_stream import StreamOptions, TextStream

import zoo
from zoo import recipe_files
from zoo.data.streams import StreamLoader
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError

DOCUMENTS = [f"document {n}: " + " ".join(str(n * k % 97) for k in range(n % 60)) for n in range(400)]
SMALL = StreamOptions(separator="\n\n", window=8, shards=4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(document_files, "SPAN", 4000)
    (tmp_path / "text").mkdir()
    for part in range(4):
        (tmp_path / "text" / f"{part}.txt").write_text("\n\n".join(DOCUMENTS[part::4]))
    return tmp_path / "text"


def stream(folder, options=SMALL, **more):
    return TextStream(str(folder), **{"tokenizer": "bytes", "max_length": 16, "seed": 3, "options": options} | more)


def targets(batches):
    return Counter(int(n) for batch in batches for n in batch["targets"].flatten() if n >= 0)


def expected(documents, eos=256):
    return Counter(n for text in documents for n in [*text.encode(), eos])


def test_rows_that_were_sent_to_a_process_are_cut_as_before_and_cached_by_what_cuts_them(folder, tmp_path):
    (folder / "4.txt").write_text("\n\n".join(f"one </s> two {number}" for number in range(30)))
    inner, prints = Tokenizer.bpe(["one two"], 262, ["</s>", "<pad>"]).inner, set()
    for end, splits in (("</s>", False), ("</s>", True), ("<pad>", False)):
        place = tmp_path / f"{end[1:-1].strip('/')}-{splits}"
        place.mkdir()
        Tokenizer(inner, {"<eos>": end, "<pad>": "<pad>"}, splits).save(place / "tokenizer.json")
        data = stream(folder, tokenizer=str(place))
        data.ready()
        rows = data.streams["train"]
        assert rows.tokenizer.specials[end] == data.tokenizer.end_of_document()
        sent = pickle.loads(pickle.dumps(rows))
        text = "one </s> two"
        assert sent.tokenizer.encode(text) == rows.tokenizer.encode(text)
        assert sent.tokenizer.encode(text) == Tokenizer(inner, {}, splits).encode(text)
        prints.add(data.fingerprint())
    assert len(prints) == 2


def test_an_epoch_predicts_every_token_of_training_once(folder):
    trained = [text for text in DOCUMENTS if not held_out(text, 0.05)]
    assert 5 < len(DOCUMENTS) - len(trained) < 50
    data = stream(folder)
    loader = data.train_dataloader()
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        batches = list(loader)
        assert targets(batches) == expected(trained)
        assert sum(int(batch["bytes"].sum()) for batch in batches) == sum(len(text.encode()) for text in trained)
    other = stream(folder, StreamOptions("\n\n", window=3, shards=2), max_length=37, batch_size=5)
    assert targets(other.train_dataloader()) == expected(trained)


def test_two_processes_with_two_workers_see_every_sample_once(folder):
    def rows(batches):
        return Counter(tuple(row.tolist()) for batch in batches for row in batch["targets"] if int(row[0]) >= 0)

    data = stream(folder)
    alone = rows(data.train_dataloader())
    split = data.streams["train"]
    parts = [StreamLoader(split, 4, rank, 2, workers=2) for rank in range(2)]
    assert rows(batch for part in parts for batch in part) == alone


def test_what_validates_is_never_trained_with(folder):
    data = stream(folder)
    data.ready()
    tokens = data.datasets["val"].tokens
    texts = [bytes(part[1:].tolist()).decode() for part in np.split(tokens, np.flatnonzero(tokens == 256))[1:-1]]
    assert sorted(texts) == sorted(text for text in DOCUMENTS if held_out(text, 0.05))


def test_validation_from_files_of_its_own(folder):
    data = stream(folder / "[0-2].txt", val_path=str(folder / "3.txt"))
    trained = [text for part in range(3) for text in DOCUMENTS[part::4]]
    assert targets(data.train_dataloader()) == expected(trained)
    assert targets(data.val_dataloader()) == expected(DOCUMENTS[3::4])


def test_a_file_on_both_sides_is_refused(folder):
    (folder.parent / "copy.txt").write_bytes((folder / "2.txt").read_bytes())
    with pytest.raises(UsageError, match=r"copy\.txt of val_path has the content of .*2\.txt, which is trained with"):
        stream(folder, val_path=str(folder.parent / "copy.txt")).ready()


def test_validation_has_a_limit_that_is_said(folder, caplog):
    data = stream(folder, StreamOptions("\n\n", window=8, shards=4, val_bytes=200))
    data.ready()
    assert "the first 200 bytes" in caplog.text
    assert 200 < len(data.datasets["val"].tokens) < 800
    assert targets(data.train_dataloader()) == expected(text for text in DOCUMENTS if not held_out(text, 0.05))


@pytest.mark.parametrize("consumed", [0, 1, 3, 30, 77])
def test_it_resumes_within_and_between_windows(folder, consumed):
    def digests(batches):
        return [batch["inputs"].numpy().tobytes() for batch in batches]

    whole = digests(stream(folder).train_dataloader())
    loader = stream(folder).train_dataloader()
    list(islice(loader, consumed))
    again = stream(folder, num_workers=consumed % 3).train_dataloader()
    again.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
    assert digests(again) == whole[consumed:]


def test_rows_are_shuffled_and_another_seed_shuffles_otherwise(folder):
    first, again, other = (next(iter(stream(folder, seed=seed).train_dataloader())) for seed in (3, 3, 4))
    assert first["inputs"].equal(again["inputs"])
    assert not first["inputs"].equal(other["inputs"])


def test_a_tokenizer_of_a_file(folder, tmp_path):
    Tokenizer.bpe(DOCUMENTS, 300).save(tmp_path / "tokenizer.json")
    data = stream(folder, tokenizer=str(tmp_path / "tokenizer.json"))
    assert data.sizes() == {"vocab_size": 300}
    assert next(iter(data.train_dataloader()))["inputs"].max() >= 257
    Tokenizer.chars(DOCUMENTS).save(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match="has no token <eos>"):
        stream(folder, tokenizer=str(tmp_path / "tokenizer.json")).ready()


def test_the_tokenizer_learns_from_training_alone(folder):
    data = stream(folder, tokenizer="bpe", vocab_size=300)
    learned = Tokenizer.bpe([text for text in DOCUMENTS if not held_out(text, 0.05)], 300)
    data.ready()
    assert set(data.tokenizer.tokens) == set(learned.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "chars"}, "a stream never sees all characters at once"),
        ({"val_fraction": 1.0}, "val_fraction is 1.0"),
        ({"options": StreamOptions(shards=0)}, r"options\.shards must be at least 1"),
        ({"options": StreamOptions()}, "no document validates"),
        ({"val_fraction": 0.9999999, "options": SMALL}, "the training stream has no sample"),
    ],
)
def test_wrong_options_are_refused(folder, options, message):
    (folder.parent / "one.txt").write_text("a document")
    with pytest.raises(UsageError, match=message):
        list(stream(folder.parent / "one.txt", **{"options": SMALL} | options).train_dataloader())


def test_fewer_parts_than_processes_are_refused(folder):
    rows = stream(folder / "0.txt", val_path=str(folder / "1.txt"))
    rows.ready()
    train = rows.streams["train"]
    train.units = train.units[:3]
    with pytest.raises(UsageError, match=r"divided into 3 parts, fewer than 4 processes: 0\.txt"):
        StreamLoader(train, 2, 0, 4)
    with pytest.raises(UsageError, match=r"set data\.options\.shards to a multiple of 3"):
        StreamLoader(train, 2, 0, 3)


def test_a_file_that_changes_between_two_reads_is_named(folder):
    loader = stream(folder).train_dataloader()
    next(iter(loader))
    (folder / "3.txt").write_text("another text")
    loader.set_epoch(1)
    with pytest.raises(UsageError, match=r"3\.txt changed while a run reads it"):
        list(loader)


def test_memory_does_not_grow_with_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "val.txt").write_text("what validates")
    text = "".join(f"{n * n % 9973} words of a line\n" for n in range(4000))
    peaks = []
    for times in (60, 200):
        file = tmp_path / f"{times}.txt"
        file.write_text(text * times)
        tracemalloc.start()
        data = TextStream(str(file), "bytes", val_path=str(tmp_path / "val.txt"), options=StreamOptions(shards=2))
        list(islice(data.train_dataloader(), 300))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < (tmp_path / "200.txt").stat().st_size


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    for paths in ([f"{tmp_path}/a.txt", f"{tmp_path}/a.txt"], [str(tmp_path / "a.txt"), f"{tmp_path}/*.txt"]):
        with pytest.raises(UsageError, match="is named twice"):
            stream_files(paths)


def test_the_recipe_says_what_it_costs_and_trains_on_a_column_of_a_table(tmp_path, monkeypatch):
    header = "\n".join(recipe_files.packaged_recipe("lm-stream").header)
    assert all(f"{word}: " in header for word in ("size", "time", "expected", "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS))
    trainer = {"max_steps": 2, "val_check_interval": 2, "accelerator": "cpu", "precision": "32-true"}
    data = {"path": "rows.jsonl#body", "tokenizer": "bytes", "max_length": 16, "options.shards": 1}
    options = {f"trainer.{name}": value for name, value in trainer.items()}
    options |= {f"data.{name}": value for name, value in data.items()} | {"model.dim": 16, "model.depth": 1}
    assert 0 < zoo.fit("lm-stream", options).figures["val/loss"] < 10

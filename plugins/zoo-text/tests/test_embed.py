"""`zoo embed` and `zoo.load(RUN).embed`: the same vectors in any batch, and an answer to whatever stands on a line."""

import json

import numpy as np
import pytest
from zoo_text.data.textpairs import TextPair, TextPairFiles, connected, read_pairs

import zoo
from zoo.cli import main
from zoo.errors import UsageError

TEXTS = ["the quick brown fox", "", " ", "a", "x " * 60, "<cls> the\tdog", "naïve 狐", "a"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on random pairs with prompts and Matryoshka sizes."""
    folder = tmp_path_factory.mktemp("pairs")
    TextPairFiles.sample_files(folder, 1)
    options = {
        "model": "TextEmbedding", "model.dim": 32, "model.depth": 1, "model.heads": 2, "model.matryoshka": "[8]",
        "model.lr": 3e-3,
        "data": "TextPairFiles", "data.path": folder, "data.vocab_size": 300, "data.max_length": 16,
        "data.batch_size": 8, "data.query_prompt": "find: ", "trainer.max_steps": 4, "trainer.val_check_interval": 4,
        "trainer.check_val_every_n_epoch": "null", "trainer.accelerator": "cpu", "trainer.logger": "false",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        assert main(["fit", "--seed", "1", *words]) == 0
    return next((folder / "runs").glob("*/*/s1"))


def test_the_batch_size_changes_no_vector_and_length_is_one(run, caplog):
    model = zoo.load(run)
    vectors = model.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for size in (1, 2, 3, 100):
        np.testing.assert_allclose(model.embed(TEXTS, batch_size=size), vectors, atol=1e-6)
    np.testing.assert_allclose(model.embed(TEXTS[::-1])[::-1], vectors, atol=1e-6)
    assert "more than the 15 that the model reads" in caplog.text
    np.testing.assert_array_equal(vectors[3], vectors[7])
    assert model.embed([]).shape == (0, 32)


def test_prompts_and_sizes(run):
    model = zoo.load(run)
    np.testing.assert_allclose(model.embed("a fox", prompt="query"), model.embed("find: a fox"), atol=1e-6)
    np.testing.assert_allclose(model.embed("a fox", prompt="document"), model.embed("a fox"), atol=1e-6)
    short = model.embed("a fox", size=8)
    whole = model.embed("a fox")[:, :8]
    np.testing.assert_allclose(short, whole / np.linalg.norm(whole), atol=1e-6)
    for wrong, message in (
        ({"prompt": "nothing"}, "no prompt 'nothing'. There are: query, document"),
        ({"size": 33}, "from 1 to 32, the width"),
        ({"batch_size": 0}, "at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            model.embed("a", **wrong)


def test_every_way_out_gives_the_same_vectors(run, tmp_path, capsys):
    texts = [text for text in TEXTS if "\t" not in text]
    right = zoo.load(run).embed(texts)
    file, out = tmp_path / "texts.txt", tmp_path / "vectors.npy"
    file.write_text("\n".join(texts) + "\n", "utf-8")
    assert main(["embed", str(run), str(file), "--out", str(out), "--batch-size", "3"]) == 0
    assert "7 vectors of 32 numbers" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(out), right, atol=1e-6)
    assert main(["embed", str(run), str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    np.testing.assert_allclose([[float(number) for number in line.split()] for line in lines], right, atol=1e-6)
    assert main(["embed", str(run), "--text", "a", "--text", "", "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == ["a", ""]
    np.testing.assert_allclose(answers[0]["vector"], right[3], atol=1e-6)
    assert main(["export", str(run), str(tmp_path / "export")]) == 0
    np.testing.assert_array_equal(zoo.load(tmp_path / "export").embed(texts), right)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FILE", "--text", "a"], "exclude each other"),
        (["FILE", "--out", "vectors.txt"], "ends in .npy"),
        (["FILE", "--out", "no/folder/vectors.npy"], "there is no folder"),
        (["FILE", "--out", "there.npy"], "--force"),
        (["FILE", "--out", "new.npy", "--json"], "exclude each other"),
        (["missing.txt"], "missing.txt is not on disk"),
        (["FILE", "--prompt", "question"], "There are: query, document"),
        (["latin.txt"], "latin.txt:1: byte 0xe9 is not UTF-8"),
    ],
)
def test_what_cannot_be_is_refused(run, words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a\n")
    (tmp_path / "there.npy").write_bytes(b"mine")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    assert main(["embed", str(run), *("texts.txt" if word == "FILE" else word for word in words)]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "there.npy").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.tsv", "a\tb\nc\n", ":2 must hold a query, a tab and a passage"),
        ("train.tsv", "a\tb\tc\td\n", ":1 must hold"),
        ("train.tsv", "a\t \n", ":1 must hold"),
        ("train.tsv", "a\tb\tb\n", ":1: the negative is the passage itself"),
        ("train.tsv", "a\tb\tc\nd\te\n", ":2 has no negative"),
        ("train.tsv", "", "is empty"),
        ("train.tsv", "query\tpassage\n", "is empty"),
        ("train.jsonl", '{"query": "a"}\n', ":1 must be an object with texts named query, passage"),
        ("train.jsonl", '{"query": "a", "passage": 3}\n', ":1 must be an object"),
        ("train.jsonl", '{"query": "a", "anchor": "b", "passage": "c"}\n', "two texts for query"),
        ("train.jsonl", "[1]\n", ":1 must be an object"),
        ("train.jsonl", "{\n", ":1 is no JSON"),
        ("train.jsonl", '{"query": "a", "passage": "b", "label": 0}\n', ":1 has label: 0, which is not read"),
        ("train.jsonl", '{"query": "a", "passage": "b", "score": 0.25}\n', ":1 has score: 0.25, which"),
        ("train.jsonl", '{"query": "a", "passage": "b", "negatives": ["c", "d"]}\n', ":1 has negatives: ['c', 'd']"),
        ("train.jsonl", '{"query": "a", "passage": "b", "negative_2": "c"}\n', ":1 has negative_2: 'c'"),
        ("train.tsv", "query\tpassage\tlabel\na\tb\t0\n", ":1 has 'label', which is not read"),
    ],
)
def test_a_line_that_is_no_pair_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        read_pairs(tmp_path / name)
    assert message in str(caught.value)


def test_what_else_a_line_says_is_named(tmp_path, caplog):
    (tmp_path / "t.jsonl").write_text('{"query": "a", "passage": "b", "label": 1, "id": 7, "negatives": []}\n')
    assert read_pairs(tmp_path / "t.jsonl") == [TextPair("a", "b")]
    assert "not read are id, label, negatives" in caplog.text


def test_both_formats_give_the_same_pairs(tmp_path):
    pairs = [TextPair("a", "b", "c"), TextPair("é", "f", "g")]
    (tmp_path / "t.tsv").write_text("anchor\tpositive\tnegative\n" + "".join("\t".join(one) + "\n" for one in pairs))
    names = ("anchor", "positive", "negative")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(dict(zip(names, one, strict=True))) + "\n" for one in pairs))
    assert read_pairs(tmp_path / "t.tsv") == read_pairs(tmp_path / "t.jsonl") == pairs


@pytest.mark.parametrize("seed", range(5))
def test_no_text_is_on_both_sides_of_a_split(seed, tmp_path):
    draw = np.random.default_rng(seed)
    lines = [f"q{draw.integers(40)}\tp{draw.integers(40)}" for _ in range(30)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    data = TextPairFiles(str(tmp_path), vocab_size=300, val_fraction=0.3)
    splits = data.pairs()
    assert sum(map(len, splits.values())) == 30
    for column in (0, 1):
        assert not {pair[column] for pair in splits["train"]} & {pair[column] for pair in splits["val"]}


def test_what_has_a_text_in_common_is_connected():
    groups = connected([("a", "b"), ("c", "d"), ("b", "e"), ("f", None), ("e", "c"), ("g", None)])
    assert len({groups[number] for number in (0, 1, 2, 4)}) == 1
    assert len(set(groups)) == 3

"""Whatever is read from outside is taken or refused in a sentence: no other exception, and no hang.

`pytest tests/campaigns/fuzz --hypothesis-profile=nightly` runs sixteen times as many cases, and others each time.
"""

import gzip
import io
import pickle
import time
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.config import fit_options, yaml_source
from zoo.data.parallel_files import PairOptions, _read
from zoo.data.source_files import read_lines
from zoo.data.tokenizer import Tokenizer
from zoo.errors import ZooError
from zoo.inference.safe_pickle import screen_pickle
from zoo.inference.weight_files import read_tensors
from zoo.io import limits, plain_yaml
from zoo.models.generation import GenerationConfig

SECONDS = 5.0


def cases(count):
    """This many examples in a profile of 100, as many times more or fewer in others."""
    return settings(max_examples=count * settings.default.max_examples // 100)


class Answers:
    """Nothing but a ZooError of at most four lines may leave the block, in a few seconds."""

    def __enter__(self):
        self.start = time.process_time()

    def __exit__(self, kind, error, trace):
        assert time.process_time() - self.start < SECONDS
        if isinstance(error, ZooError):
            assert 1 <= len(str(error).splitlines()) <= 4, str(error)
            return True
        return False


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["os.system", "RMSNorm", "a.b", ".", "[", "&a", "*a", "1e-3", "~", "${x}", "../x", "\x00", "é"]),
)
keys = st.one_of(
    st.sampled_from(
        "model data trainer class_path init_args dict_kwargs norm optimizer lr dim heads path callbacks logger "
        "max_steps devices seed_everything ckpt_path strategy".split()
    ),
    st.text(max_size=8),
)
trees = st.recursive(scalars, lambda t: st.lists(t, max_size=4) | st.dictionaries(keys, t, max_size=5), max_leaves=20)
SOUND = yaml_source.parse_yaml("model: {class_path: CausalLM, init_args: {dim: 16, depth: 1, heads: 2}}", "s.yaml")


def resolved(text: str) -> None:
    from zoo.config.run_config import Draft, make_plan, schema

    node = yaml_source.parse_yaml(text, "r.yaml")
    make_plan(fit_options.parse("fit", []), Draft([SOUND, node], None, 0), schema())


@cases(60)
@given(st.dictionaries(st.sampled_from(["model", "data", "trainer", "seed_everything", "x"]), trees, max_size=4))
def test_recipes_of_any_tree(tree):
    import yaml

    with Answers():
        resolved(yaml.safe_dump(tree, allow_unicode=True))


RECIPE = """\
model:
  class_path: CausalLM
  init_args: {lr: 3e-4, norm: {class_path: LayerNorm, init_args: {eps: 1e-3}}, optimizer: {class_path: AdamW}}
data: &d
  class_path: TextFiles
  init_args: {path: [a.txt, "b.txt"], max_length: 16}
trainer: {max_steps: 5, callbacks: [{class_path: Timer, init_args: {duration: "00:00:10:00"}}]}
"""
edits = st.lists(
    st.tuples(
        st.integers(0, len(RECIPE) - 1), st.integers(0, 12), st.text("{}[]:,-#&*!|>'\"%@` \t\n\\x0.é\x00<", max_size=4)
    ),
    min_size=1,
    max_size=5,
)


@cases(100)
@given(edits)
def test_recipes_with_damage(changes):
    text = RECIPE
    for place, length, more in changes:
        text = text[:place] + more + text[place + length :]
    with Answers():
        resolved(text)


@cases(150)
@given(st.text(max_size=400) | st.text("{}[]:,-&*!<|> \nab1'\"", max_size=400))
def test_yaml_and_json_of_any_text(text):
    with Answers():
        yaml_source.parse_yaml(text, "r.yaml")
    with Answers():
        plain_yaml.parse(text, "r.yaml")
    with Answers():
        limits.parse_json(text, "r.json")


@cases(60)
@given(st.lists(st.text(max_size=30), max_size=6))
def test_command_lines(words):
    with Answers():
        fit_options.parse("fit", words)
    with Answers():
        yaml_source.option_layer(fit_options.parse("fit", [f"--model.{word}" for word in words]).settings)


lines = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6)


@cases(150)
@given(st.data())
def test_pairs_of_any_bytes(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "pairs"
    folder.mkdir(exist_ok=True)
    names = data.draw(st.sampled_from([["t.en", "t.de"], ["t.tsv"], ["t.en.gz", "t.de.gz"], ["t.tsv.gz"]]))
    for name in names:
        content = data.draw(
            st.binary(max_size=60)
            | lines.map(lambda some: "\n".join(some).encode())
            | lines.map(lambda some: "\r\n".join(f"{a}\t{a}" for a in some).encode("utf-8-sig"))
            | lines.map(lambda some: "\n".join(some).encode("utf-16"))
        )
        if name.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
            content = content[: len(content) - data.draw(st.integers(0, 12))] + data.draw(st.binary(max_size=4))
        (folder / name).write_bytes(content)
    files = [folder / name for name in names]
    for bad in ("error", "skip"):
        with Answers():
            pairs = _read(files, PairOptions(bad=bad))
            assert pairs
            assert all(pair.source.strip() and pair.target.strip() for pair in pairs)
    with Answers():
        read_lines(files[0], "")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The bytes of a sound checkpoint."""
    buffer = io.BytesIO()
    state = {"net.a": torch.zeros(3, 4), "net.b": torch.ones(2)}
    torch.save({"state_dict": state, "epoch": 1, "loops": {"x": [1, (2.0, None)]}, "zoo_parts": []}, buffer)
    return buffer.getvalue()


def examined(path):
    with Answers():
        screen_pickle(path)
    with Answers():
        read_tensors(path)


@cases(150)
@given(st.data())
def test_checkpoints_with_damage(tmp_path_factory, checkpoint, data):
    content = bytearray(checkpoint)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path_factory.getbasetemp() / "damaged.ckpt"
    path.write_bytes(bytes(content))
    examined(path)


OPCODES = [
    value for name, value in vars(pickle).items() if name.isupper() and isinstance(value, bytes) and len(value) == 1
]
codes = st.sampled_from(OPCODES)
pieces = st.one_of(
    codes,
    st.binary(max_size=5),
    st.sampled_from(
        [b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n",
         b"cos\nsystem\n",          b"X\x07\x00\x00\x00storage", b"X\x01\x00\x00\x000", b"X\x03\x00\x00\x00cpu", 
         b"K\x03", b"(", b"t", b"Q", b"R", b"}",
         b"]",          b"X\x0a\x00\x00\x00state_dict", b"s", b"b"]
    ),
)  # fmt: skip


@cases(150)
@given(st.lists(pieces, max_size=40))
def test_checkpoints_of_any_pickle(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "pickle.ckpt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + b"".join(parts) + b".")
        file.writestr("archive/data/0", b"\0" * 12)
        file.writestr("archive/version", b"3\n")
        file.writestr("archive/byteorder", b"little")
    examined(path)


@cases(80)
@given(st.binary(max_size=200), st.integers(0, 2**64 - 1) | st.integers(0, 220))
def test_safetensors_of_any_bytes(tmp_path_factory, content, size):
    path = tmp_path_factory.getbasetemp() / "x.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + content)
    with Answers():
        read_tensors(path)


TOKENIZER = Tokenizer.bpe(["a text of some words"], 280).to_json()


@cases(100)
@given(st.lists(st.tuples(st.integers(0, len(TOKENIZER) - 1), st.integers(0, 8), st.text(max_size=5)), max_size=4))
def test_tokenizers_with_damage(tmp_path_factory, changes):
    text = TOKENIZER
    for place, length, more in changes:
        text = text[:place] + more + text[place + length :]
    path = tmp_path_factory.getbasetemp() / "tokenizer.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with Answers():
        result = Tokenizer.load(path)
        assert result.decode(result.encode("some words")) == "some words"


TOKENIZERS = [Tokenizer.chars(["abc déf\n"]), Tokenizer.bytes(), Tokenizer.bpe(["a text of some words"], 280)]


@cases(150)
@given(st.text() | st.text("abc déf\n"), st.sampled_from(TOKENIZERS))
def test_prompts_of_any_text(text, tokenizer):
    with Answers():
        assert tokenizer.decode(tokenizer.encode(text)) == text


wholes = st.integers(-3, 10**9)
OPTIONS = {
    **dict.fromkeys(["max_length", "beams", "n_best"], wholes),
    **dict.fromkeys(["top_k", "seed"], st.none() | wholes),
    **dict.fromkeys(["temperature", "length_penalty"], st.floats()),
    "top_p": st.none() | st.floats(),
}


@cases(80)
@given(st.fixed_dictionaries({}, optional=OPTIONS))
def test_searches_of_any_numbers(options):
    with Answers():
        result = GenerationConfig(**options)
        assert result.max_length >= result.n_best >= 1 or result.beams >= result.n_best


def test_aliases_may_not_nest_deeper_than_lists():
    text = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, plain_yaml.DEPTH + 5))
    with pytest.raises(plain_yaml.TooMuchError, match=f"expands to more than .* {plain_yaml.DEPTH} levels"):
        plain_yaml.parse(text, "r.yaml")

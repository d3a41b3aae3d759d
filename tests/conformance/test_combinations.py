"""docs/matrix.md is what `zoo matrix` finds, and the command tells apart what trains, is refused, and breaks."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from zoo import registry
from zoo.cli import main
from zoo.conformance import combinations, matrix_command
from zoo.conformance.combinations import COMPUTING, MIXING, CombinationOutcome, attempt, cells, layer_cells, tasks
from zoo.errors import UsageError
from zoo.parts.ffn import FFN
from zoo.tasks.lm import CausalLM

PAGE = Path(__file__).parents[2] / "docs" / "matrix.md"


@pytest.fixture
def alone(monkeypatch):
    """zoo's own parts, whatever plugins are installed here."""
    monkeypatch.setenv(registry.DISABLE_VARIABLE, "all")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the page was written without a GPU")
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.campaign)])
def test_the_page_of_our_own_parts_is_what_happens(alone, monkeypatch, every):
    """All combinations are built, which is where they are refused; one in so many trains, and in a campaign all."""
    numbers, train = itertools.count(), combinations.fault
    monkeypatch.setattr(combinations, "fault", lambda task: "" if next(numbers) % every else train(task))
    page = PAGE.read_text(encoding="utf-8")
    computed = matrix_command.matrix_page(cells(MIXING), cells(COMPUTING), layer_cells(), Path("docs/matrix.md"))
    command = re.match(r"<!-- written by: (.*) -->\n", page)[1]
    assert computed == page, f"a combination has changed. Look at the difference, and if it is meant: {command}"
    assert "BROKEN" not in page


def test_the_page_covers_every_part_and_task(alone):
    text = PAGE.read_text(encoding="utf-8")
    for kind in (*MIXING, *COMPUTING):
        for part in registry.parts(kind):
            assert re.search(rf"[|,] {part.name}(,| \|)", text), part
    assert list(tasks()) == ["CausalLM", "Classification", "Translation"]  # the recurrent one takes no parts


class Broken(FFN):
    """A feed-forward that is wrong in one way."""

    def __init__(self, dim, hidden, way):
        super().__init__(dim, hidden)
        if way == "refuses":
            raise UsageError("ffn Broken needs a Monday.")
        if way == "raises":
            raise RuntimeError("no such device")
        self.way = way
        self.weight = nn.Parameter(torch.ones(dim))
        self.spare = nn.Parameter(torch.ones(3)) if way == "unused" else None

    def forward(self, x):
        if self.way == "late":
            raise UsageError("ffn Broken needs a Monday.")
        if self.way == "leaves":
            raise SystemExit(3)
        if self.way == "infinite":
            return x * self.weight / 0.0
        if self.way == "wild":  # a finite loss, and a gradient that is not: the root of zero
            return x * self.weight + (self.weight - 1).abs().sqrt().sum()
        return x * (self.weight.detach() + 0 * self.weight if self.way == "still" else self.weight)


FAULTS = {
    "fine": "trains",
    "refuses": "refused: ffn Broken needs a Monday.",
    "raises": r"BROKEN: raised RuntimeError: no such device at test_combinations.py:\d+, while it is built",
    "late": r"BROKEN: raised UsageError: ffn Broken needs a Monday. at test_combinations.py:\d+, in training",
    "leaves": r"BROKEN: raised SystemExit: 3 at test_combinations.py:\d+, in training",
    "infinite": "BROKEN: the loss is nan",
    "wild": r"BROKEN: the gradient is not finite in net.stack.blocks.0.ffn.part.weight.*",
    "unused": r"BROKEN: no gradient reaches net.stack.blocks.0.ffn.part.spare",
    "still": r"BROKEN: 32 steps do not move net.stack.blocks.0.ffn.part.weight",
}


@pytest.mark.parametrize("way", FAULTS)
def test_verdicts(way):
    verdict = attempt(CausalLM, {"ffn": lambda dim, hidden: Broken(dim, hidden, way)})
    assert re.fullmatch(FAULTS[way], str(verdict)), str(verdict)


def test_a_verdict_leaves_the_random_state_alone_and_repeats():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert attempt(CausalLM, {}) == attempt(CausalLM, {}) == CombinationOutcome("trains")
    assert torch.equal(torch.rand(3), expected)


def part(kind, name, target):
    return registry.Part(kind, name, target, "my-ffn", "0.1.0")


@pytest.fixture
def plugins(monkeypatch, tmp_path):
    """Two norms, three feed-forwards of a plugin, of which one breaks and one cannot be imported, and one block."""
    (tmp_path / "my_ffn.py").write_text(
        "import torch\nfrom torch import nn\nfrom zoo.parts.ffn import FFN\nprint('hello')\n"
        "class Good(FFN):\n    '''Good.'''\n    def __init__(self, dim: int, hidden: int):\n"
        "        super().__init__(dim, hidden)\n        self.one = nn.Linear(dim, dim)\n"
        "    def forward(self, x):\n        print('noise')\n        return self.one(x)\n"
        "class Bad(Good):\n    '''Bad.'''\n    def forward(self, x):\n        return self.one(x.detach()).detach()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    parts_of = registry.parts
    more = [part("ffn", "Good", "my_ffn:Good"), part("ffn", "Bad", "my_ffn:Bad"), part("ffn", "Gone", "my_gone:Gone")]

    def few(kind):
        own = [one for one in parts_of(kind) if one.name in ("Naive", "RoPE", "MultiHead", "LayerNorm", "PreNorm")]
        tasks = [one for one in parts_of(kind) if one.builtin]
        return tuple(more if kind == "ffn" else tasks if kind == "task" else own)

    monkeypatch.setattr(registry, "parts", few)


def test_a_broken_combination_is_shown_and_fails_the_command(plugins, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv(registry.DISABLE_VARIABLE, raising=False)
    code = main(["matrix"])
    out, err = capsys.readouterr()
    assert code == 1
    assert out.startswith("<!-- written by: zoo matrix -->\n")
    assert "hello" not in out
    assert "noise" not in out
    assert "Plugins: my-ffn 0.1.0." in out
    assert "| LayerNorm | Good | ✓ |" in out
    rows = re.findall(r"\| LayerNorm \| (\w+) \| (.*) \|", out)
    assert dict(rows).keys() == {"Good", "Bad", "Gone"}
    assert "**BROKEN 1**" in dict(rows)["Bad"]
    assert re.search(r"^1\. \*\*BROKEN\*\*: no gradient reaches net\.stack\.blocks\.0\.ffn\.part\.one", out, re.M)
    assert re.search(
        r"^\d\. \*\*BROKEN\*\*: ffn 'Gone' of my-ffn 0\.1\.0 cannot be imported: ModuleNotFound", out, re.M
    )
    assert "CausalLM with norm LayerNorm, ffn Good" not in err
    assert "CausalLM with norm LayerNorm, ffn Bad, block PreNorm: BROKEN: no gradient reaches" in err
    assert "12 of 39 combinations are broken" in err
    assert "| ffn | Good | ✓ |" in out
    assert re.search(r"\| ffn \| Bad \| \*\*BROKEN \d", out)
    assert main(["matrix", "--write", str(tmp_path / "m.md")]) == 1
    text = (tmp_path / "m.md").read_text(encoding="utf-8")
    assert text.partition("\n")[2] == out.partition("\n")[2]
    assert text.startswith(f"<!-- written by: zoo matrix --write {tmp_path / 'm.md'} -->")
    assert capsys.readouterr().out == f"39 combinations → {tmp_path / 'm.md'}\n"


def test_what_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.conformance.combinations.cells", lambda kinds: pytest.fail("it was computed"))
    (tmp_path / "notes.md").write_text("mine")
    for words, sentence in {
        ("--wirte", "x"): "zoo matrix has no option '--wirte'. Did you mean '--write'?",
        ("--write",): "'--write' needs a value",
        ("norm",): "'norm' is one word too many",
        ("--write", str(tmp_path / "notes.md")): "was not written by zoo matrix",
        ("--write", str(tmp_path)): "name a file in a folder that exists",
        ("--write", str(tmp_path / "no" / "x.md")): "name a file in a folder that exists",
    }.items():
        assert main(["matrix", *words]) == 2
        assert sentence in capsys.readouterr().err
    assert (tmp_path / "notes.md").read_text() == "mine"

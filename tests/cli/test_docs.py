"""`zoo docs`: a page for each installed part, whose links, options and commands are right."""

import json
import re
import shlex
from pathlib import Path

import pytest
from cli_parts import package

from zoo import registry
from zoo.cli import find_command
from zoo.config import fit_options, run_config
from zoo.conformance import check_command, docs_command

BODY = '''\
from zoo.parts.norm import Norm


class Gentle(Norm):
    """A norm | with a bar: x / (1 + |x|) (Meyer, 2025).

    # no heading, and [no link](nowhere.md)

    Paper: Forgiving Activations, Meyer, 2025.
    """

    invariant = frozenset({"shift"})

    def __init__(self, dim: int, eps: float = 1e-5, mode: str = "a|b"):
        """
        Args:
            mode: one of a | b.
        """

    def forward(self, x):
        """x (..., dim) to the same shape."""
'''


@pytest.fixture
def gentle(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package(site(), "zoo-gentle", "[zoo.norm]\nGentle = zoo_gentle:Gentle\nRMSNorm = zoo_gentle:RMSNorm\n", BODY)
    site()


def links(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    return [path.parent / target for target in re.findall(r"(?<!\\)\]\(([^)]+)\)", text)]


def test_every_part_has_a_page_and_every_link_leads_somewhere(gentle, zoo, tmp_path):
    code, out, err = zoo("docs", "pages")
    parts = [part for kind in registry.KINDS for part in registry.parts(kind)]
    assert (code, out, err) == (0, f"{len(parts)} pages → pages/index.md\n", "")
    pages = sorted(Path("pages").rglob("*.md"))
    assert len(pages) == len(parts) + 1
    reached = {target.resolve() for page in pages for target in links(page)}
    assert reached == {page.resolve() for page in pages}  # and the index names each
    for part in parts:
        text = Path("pages", part.kind, f"{part.name.lower()}.md").read_text()
        assert f"{part.kind} of {part.origin}, [all parts](../index.md)." in text
        assert f"`{part.path}`" in text
        table = re.search(r"## Options\n\n(.*?)\n\n", text + "\n\n", re.S)
        options = json.loads(zoo("show", part.kind, part.name, "--json")[1])["options"] if part.kind == "norm" else []
        for option in options:
            assert f"| `--model.norm.{option['name']}` |" in table[1]
        for heading in re.findall(r"^\|.*\|$", text, re.M):
            assert "\n" not in heading
    first = zoo("docs", "pages")
    assert first[0] == 0  # again, over its own pages


def test_commands_of_the_pages_are_valid(gentle, zoo):
    zoo("docs", "pages")
    text = "\n".join(page.read_text() for page in Path("pages").rglob("*.md"))
    lines = {line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.splitlines()}
    assert len(lines) > 100
    for line in lines:
        program, command, *words = shlex.split(line)
        assert program == "zoo"
        if command == "show":
            assert zoo(command, *words)[0] == 0
        elif command == "compare":
            find_command.parse(find_command.find_command(command), words)
        elif "Gentle" not in words:  # its body is too short to be built
            run_config.read_draft(fit_options.parse("fit", words))


def test_a_page_of_a_plugin(gentle, zoo):
    assert zoo("docs", "pages", "--package", "Zoo_Gentle")[1] == "1 pages → pages/index.md\n"
    text = Path("pages/norm/gentle.md").read_text()
    assert "A norm of zoo-gentle 0.1.0, [all parts](../index.md)." in text
    assert "A norm | with a bar: x / (1 + |x|) (Meyer, 2025)." in text
    assert "\\# no heading" in text
    assert "Paper: Forgiving Activations, Meyer, 2025." in text
    assert "Gentle(dim: int, eps: float = 1e-05, mode: str = 'a|b')" in text
    assert "| `--model.norm.mode` | `str` | `'a\\|b'` | one of a \\| b. |" in text
    assert "- `forward(self, x)`: x (..., dim) to the same shape." in text
    assert "| `invariant` | `frozenset({'shift'})` |" in text
    assert "Not run for this page: `zoo check norm Gentle`." in text
    assert "zoo fit lm-tiny --model.norm Gentle" in text
    assert "| [Gentle](norm/gentle.md) | A norm \\| with a bar" in Path("pages/index.md").read_text()


def test_what_is_refused(gentle, zoo, tmp_path):
    Path("own").mkdir()
    Path("own/index.md").write_text("# mine\n")
    code, out, err = zoo("docs", "own")
    assert (code, out) == (2, "")
    assert "own/index.md exists and was not written by zoo docs" in err
    assert [path.name for path in Path("own").rglob("*")] == ["index.md"]
    assert "no installed package 'zoo-gentel' with parts. Did you mean 'zoo-gentle'?" in zoo(
        "docs", "new", "--package", "zoo-gentel")[2]  # fmt: skip
    Path("file").write_text("")
    assert zoo("docs", "file")[0] == 2


def test_the_contract_stands_on_the_page():
    report = check_command.Report("norm", "RMSNorm", "zoo", ("shapes", "dtypes"))
    report.add(0.0, "shapes", "ok", "", 0.1).add(0.0, "dtypes", "FAIL", "it is\nfloat16 | 32", 0.1)
    results = [("norm", "A", "trains", ""), ("ffn", "B", "refused", "no."), ("ffn", "C", "refused", "no.")]
    report.facts = {
        "cost": {"parameters": [12345, 12000], "flops": [2e6, 1e6]},
        "combinations": [dict(zip(("kind", "name", "status", "sentence"), row, strict=True)) for row in results],
    }
    text = docs_command.page(registry.find("norm", "rmsnorm"), report)
    assert "`zoo check norm RMSNorm`: 1 of 2 checks failed." in text
    assert "| dtypes | FAIL | it is float16 \\| 32 |" in text
    assert "| parameters | 12,345 | 12,000 |\n| forward FLOPs per token | 2,000,000 | 1,000,000 |" in text
    assert "- norm: trains with A\n- ffn: is refused with B, C: no." in text
    assert "cannot be checked" in docs_command.index_page({registry.find("norm", "rmsnorm"): "x.md"}, {
        registry.find("norm", "rmsnorm"): "it has no weights"})  # fmt: skip


@pytest.mark.campaign
def test_the_contract_is_run_where_it_is_wanted(zoo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(docs_command, "selected_parts", lambda packages: [registry.find("norm", "rmsnorm")])
    code, out, _ = zoo("docs", "pages", "--check")
    assert (code, "norm 'RMSNorm' of zoo-transformers" in out) == (0, True)
    text = Path("pages/norm/rmsnorm.md").read_text()
    assert re.search(r"`zoo check norm RMSNorm`: \d+ checks passed", text)
    assert "- attention: trains with" in text
    assert re.search(r"\| parameters \| [\d,]+ \| [\d,]+ \|", text)


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_pages_are_made(zoo, tmp_path, monkeypatch):
    (tmp_path / "pages").write_text("mine\n")
    monkeypatch.setattr(docs_command, "page", lambda *_: pytest.fail("a page was made"))
    code, out, err = zoo("docs", str(tmp_path / "pages"))
    assert (code, out) == (2, "")
    assert f"cannot write into {tmp_path / 'pages'}: Not a directory" in err
    assert (tmp_path / "pages").read_text() == "mine\n"

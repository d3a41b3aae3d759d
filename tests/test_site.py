"""The documentation site: what can be tested without building it, and in a campaign the site itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from zoo_learn import source

from docs.site import build, hooks, lessons, links, part_figures, parts, pictures, sources
from zoo import registry
from zoo.conformance.check_command import Report
from zoo.errors import UsageError

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "gallery").glob("*.py"))
GENERATED = {"gallery/index"}  # by sphinx-gallery


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """The folder of all pages of a draft, from which Sphinx would make the site."""
    folder = tmp_path_factory.mktemp("site") / "source"
    sources.collect(ROOT, folder, draft=True)
    return folder


def toctree_entries(page):
    """The pages that the toctrees of a page list, as paths without a suffix."""
    for body in re.findall(
        r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
    ):
        for line in body.split("\n"):
            target = re.sub(r".*<(.+)>", r"\1", line.strip())
            if target:
                yield target.removesuffix(".md"), (page.parent / target.removesuffix(".md")).resolve()


def test_every_page_of_the_repository_and_every_part_is_in_the_navigation(staged):
    pages = {path.with_suffix("").resolve() for path in staged.rglob("*.md")}
    entries_of_all = [
        target for page in staged.rglob("*.md") for name, target in toctree_entries(page) if name not in GENERATED
    ]
    assert len(entries_of_all) == len(set(entries_of_all)), "a page is there twice"
    assert set(entries_of_all) == pages - {(staged / "index").resolve()}
    every = [part for kind in registry.KINDS for part in registry.parts(kind)]
    assert len(list((staged / "parts").glob("*/*.md"))) == len(every)
    assert {path.stem for path in (staged / "lessons" / "zh").glob("*.md")} == {"index", *source.lessons()}


def test_every_link_between_the_pages_leads_to_a_page_or_a_file(staged):
    for page in staged.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for _, target, _ in sources.LINK.findall(text):
            place = page.parent / target
            assert place.is_file() or f"{page.parent.name}/{target}" == "source/gallery/index.rst", f"{page}: {target}"


def test_links_out_of_the_docs_folder_lead_to_the_sites_own_pages(staged):
    assert "](../index.md)" in (staged / "docs" / "start.md").read_text(encoding="utf-8")  # README
    assert "](zoo-hello/README.md)" in (staged / "plugins" / "README.md").read_text(encoding="utf-8")  # a folder
    assert "](docs/images/compare-curves.png)" in (staged / "index.md").read_text(encoding="utf-8")
    assert (staged / "docs" / "images" / "compare-curves.png").is_file()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_in_the_gallery_compiles_and_describes_its_pictures(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title, rule = (ast.get_docstring(tree) or "").splitlines()[:2]
    assert set(rule) == {"="}
    assert len(rule) == len(title)
    assert pictures.ReadingOrder("")(path.name) >= 0
    charts = 0
    for cell in re.split(r"^# %%", text, flags=re.M):
        lines = cell.rstrip().splitlines()
        if re.fullmatch(r"[a-z_]+", lines[-1]):
            assert pictures.alternative_text(lines), f"no comment above {lines[-1]!r}"
            charts += 1
        assert ("plt.show()" in cell) == ("plt.title(" in cell), "a chart's title is its text for screen readers"
        charts += "plt.show()" in cell
    assert "http" not in text


def test_the_order_names_no_example_that_is_gone():
    assert sorted(pictures.ORDER) == [path.stem for path in EXAMPLES]
    with pytest.raises(ValueError, match="tuple"):
        pictures.ReadingOrder("")("unknown.py")


def test_the_comment_above_a_picture_describes_it():
    lines = ["x = 1", "# Four heads", "# of two layers", "picture"]
    assert pictures.alternative_text(lines) == "Four heads of two layers"
    assert pictures.alternative_text(["# a comment", "x = 1", "picture"]) == ""


def test_signs_of_restructured_text_mean_themselves_in_docstrings_but_not_in_code():
    assert hooks.escape_markup("a * b, |x|, x_ and ``a * |b|``") == r"a \* b, \|x\|, x\_ and ``a * |b|``"
    assert hooks.escape_markup("max_length stays") == "max_length stays"


def test_broken_links_missing_texts_and_requests_are_reported(tmp_path):
    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><img src="a.png" alt="a"><a href="#top">x</a>')
    (tmp_path / "a.png").touch()
    assert links.check(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<a href="gone.html">x</a><a href="good.html#gone">x</a><img src="a.png"><a href="https://host">x</a>'
        '<script src="https://cdn.example.org/x.js"></script><a href="https://example.org/page">x</a>'
        '<img alt="b" src="a.png" srcset="a.png, b.png 2x">'
    )
    assert sorted(links.check(tmp_path)) == [
        "bad.html: b.png: there is no such file",
        "bad.html: gone.html: there is no such file",
        "bad.html: good.html#gone: the page has no such heading",
        "bad.html: https://cdn.example.org/x.js: is loaded from a network",
        "bad.html: https://host: is no address",
        "bad.html: the picture a.png has no alt text",
    ]


def test_a_lesson_is_a_page_with_results_tables_and_folded_code():
    lesson = source.get_lesson("cat")
    events = lessons.run(lesson)
    english, chinese = (lessons.page(lesson, events, language) for language in source.LANGUAGES)
    assert english.startswith("# One token, number by number\n\n[一个词的旅程](../zh/cat.md)")
    assert "- ✗ V: printed [0.0546 0.0728], computed [-0.1091 -0.1091]" in english
    assert "- ✗ V: 讲义 [0.0546 0.0728], 计算 [-0.1091 -0.1091]" in chinese
    for page in (english, chinese):
        assert page.count("<details>") == sum(not cell.language for cell in lesson.cells)
        assert len(re.findall(r"^```", page, re.M)) % 2 == 0
        assert "**Exercise 3.**" in page or "**练习 3.**" in page
    assert re.search(r"^\| ?-+:? \|", english, re.M) or "|---" in english or "| ---" in english


@pytest.mark.parametrize("length", [64, 1024])
def test_the_cost_of_a_part_is_that_of_the_formula(length):
    (rope,) = (part for part in registry.parts("position") if part.name == "RoPE" and part.builtin)
    flops, traffic = parts.trace_cost("position", rope.load(), length)
    assert flops == 24 * 512**2 + 2 * 512 * 256 + 4 * length * 512  # layer, output matrix, scores and values
    assert traffic > 0
    rows = parts.cost_section(rope).splitlines()
    assert sum(row.startswith(f"| {length:,} | {flops:,.0f} | 1 × |") for row in rows) == 1


def test_a_part_outside_of_stacks_and_one_that_cannot_be_built_have_no_table_of_costs():
    (adam,) = (part for part in registry.parts("optimizer") if part.name == "Adam")
    assert parts.cost_section(adam) == ""
    assert parts.trace_cost("norm", lambda dim, needed: None, 64) is None


def test_the_result_of_a_contract_is_on_the_page_of_the_part(tmp_path, monkeypatch):
    (norm,) = (part for part in registry.parts("norm") if part.name == "RMSNorm" and part.builtin)
    monkeypatch.setattr(parts.docs_command, "selected_parts", lambda packages: [norm])
    outcomes = [{"name": "shapes", "status": "ok", "sentence": "", "seconds": 0.1}]
    report = Report("norm", "RMSNorm", norm.origin, ("shapes",), outcomes)
    monkeypatch.setattr(parts.docs_command, "contract", lambda part, timeout, debug: report)
    parts.write_pages(tmp_path, lengths=False, check=True)
    assert "1 check passed" in (tmp_path / "norm" / "rmsnorm.md").read_text(encoding="utf-8")
    assert "1 check passed" in (tmp_path / "index.md").read_text(encoding="utf-8")


def test_a_folder_of_others_is_not_emptied(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x")
    assert build.main([str(tmp_path)]) == 2
    assert "was not written by python -m docs" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").exists()


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_the_site_is_built_without_a_warning_and_its_notebooks_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "docs", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "0 broken links" in done.stdout
    notebooks = sorted((tmp_path / "site" / "html" / "_downloads").rglob("*.ipynb"))
    assert {path.stem for path in notebooks} == {path.stem for path in EXAMPLES}
    (tmp_path / "empty").mkdir()
    for path in notebooks:
        run_notebook(path, tmp_path / "empty")


def run_notebook(path, folder):
    """Run every cell in a process of its own, in a folder that has nothing of the repository."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    assert any(cell.get("outputs") for cell in notebook.cells), f"{path.name} shows nothing"


STORED = {
    "about": {"date": "2026-11-23", "machine": "a machine"},
    "parts": {
        "norm RMSNorm zoo-transformers": {
            "lm-tiny": {"mean": 5.5, "deviation": 0.25, "seeds": 3},
            "vit-tiny": {"refused": "no <norm> | here"},
            "probe": {
                "steps": 100, "scores": {"recall": [0.25, None, 0.125]}, "heads": 8,
                "roles": ["induction", "induction"], "ranks": [["stack input", 15.4, 64], ["stack.blocks.0", 44.0, 64]],
                "gradients": [["stack.norm", 0.5]],
            },
        },
        "norm LayerNorm zoo-transformers": {
            "lm-tiny": {"mean": 5.0, "deviation": 0.5, "seeds": 3, "with": "position none"},
        },
    },
}  # fmt: skip


def test_a_part_has_its_stored_figures_beside_those_of_the_recipe(monkeypatch):
    rms, layer = (registry.find("norm", name) for name in ("rmsnorm", "layernorm"))
    table = parts.figures_section(layer, STORED).replace("\N{NO-BREAK SPACE}", " ")
    assert "| `lm-tiny` | 5.000 ± 0.500 (position none) | 5.500 ± 0.250 | nats" in table
    text = parts.figures_section(rms, STORED) + parts.scorecard_section(rms, STORED)
    assert "| `vit-tiny` | refused | – |" in text
    assert "| recall | 0.25 |  | 0.12 |" in text
    assert "heads with a role, of 8: 2 induction" in text
    assert "15 of 64 in front of it, 44 of 64 after layer 0" in text
    assert parts.scorecard_section(layer, STORED) == ""
    assert parts.figures_section(registry.find("ffn", "mlp"), STORED) == ""


def test_scorecards_of_all_parts_stand_on_one_page_with_their_command():
    paths = {registry.find("norm", name): f"norm/{name}.md" for name in ("rmsnorm", "layernorm")}
    page = parts.scorecards_page(paths, STORED).replace("\N{NO-BREAK SPACE}", " ")
    assert "| [RMSNorm](norm/rmsnorm.md) | 5.500 ± 0.250 | – | refused | 0.25 | – | – | – | 2 induction |" in page
    assert "python -m docs.site.part_figures" in page
    assert "a machine" in page
    assert "## ffn" not in page


def test_what_is_measured_of_a_part_is_stored_and_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(part_figures, "FILE", tmp_path / "figures.json")
    calls = []

    def measure(part, task):
        calls.append((part.name, task))
        return {"mean": 1.0, "deviation": 0.0, "seeds": 3}

    monkeypatch.setattr(part_figures, "measure_task", measure)
    monkeypatch.setattr(part_figures, "measure_probe", lambda part: {"refused": "no"})
    for _ in range(2):
        assert part_figures.main(["--only", "norm"]) == 0
    assert len(calls) == len(set(calls)) == 3 * len(registry.parts("norm"))
    assert part_figures.main(["--only", "norm", "rmsnorm"]) == 0  # a part that is named is measured again
    assert calls[-3:] == [("RMSNorm", task) for task in part_figures.TASKS]
    assert part_figures.read()["parts"]["norm RMSNorm zoo-transformers"]["probe"] == {"refused": "no"}


def test_a_part_that_refuses_the_position_of_a_recipe_is_measured_without_one(monkeypatch):
    def train(part, recipe, seed, more):
        if not more:
            raise UsageError("not with this position")
        return float(seed)

    monkeypatch.setattr(part_figures, "train_once", train)
    result = part_figures.measure_task(registry.find("attention", "additive"), "lm-tiny")
    assert result == {"mean": 2.0, "deviation": 1.0, "seeds": 3, "with": "position none"}
    monkeypatch.setattr(part_figures, "train_once", lambda *_: (_ for _ in ()).throw(UsageError("never")))
    assert part_figures.measure_task(registry.find("attention", "additive"), "lm-tiny") == {"refused": "never"}

"""The pages from which Sphinx makes the site, in one folder: those of the repository, and those that are generated.

The repository's pages keep their places, so that the links between them lead to the same pages as on a code host.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
PAGES = (
    "docs/*.md", "docs/contract/*.md", "docs/lab/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "plugins/README.md",
    "plugins/*/README.md",
)  # fmt: skip
INDEX = "index.md"  # the site's first page: README.md
SITE = """
## On this site

| page | content |
|---|---|
| [Examples](gallery/index.rst) | short programs with output and pictures, to download as scripts or Jupyter notebooks |
| [Lessons](lessons/en/index.md), [课程](lessons/zh/index.md) | the course of `zoo lesson`, with what it computes |
| [All parts](parts/index.md) | a page for each part: formula, paper, options, cost, figures on three tasks |
| [Scorecards](parts/scorecards.md) | what a small model with each part learns, on three tasks and in `zoo probe` |
| [Python](api/index.md) | classes and functions, with the shapes of their arguments and results |
"""


def collect(root: Path, target: Path, draft: bool = False, check: bool = False) -> None:
    """Write all pages below ``target``. A draft has neither executed lessons nor API; ``check`` runs contracts."""
    from docs.site import api, lessons, parts

    pages = copy_pages(root, target)
    write_index(root, target, pages)
    parts.write_pages(target / "parts", lengths=not draft, check=check)
    lessons.write_pages(target / "lessons", execute=not draft)
    api.write_pages(target / "api", draft)


def copy_pages(root: Path, target: Path) -> list[str]:
    """Copy the repository's pages with the files that they link. Returns the pages' paths."""
    paths = sorted(path for pattern in PAGES for path in root.glob(pattern))
    for path in [root / "README.md", *paths]:
        name = INDEX if path.parent == root and path.name == "README.md" else str(path.relative_to(root))
        link = functools.partial(_link, page=path, root=root, target=target)
        copied = target / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(LINK.sub(link, path.read_text(encoding="utf-8")), encoding="utf-8")
    return [path.relative_to(root).as_posix() for path in paths]


def _link(match: re.Match[str], page: Path, root: Path, target: Path) -> str:
    """A link of a page as it has to be in the site; a file that is no page is copied beside it."""
    other = (page.parent / match[2]).resolve()
    if other.is_dir() and (other / "README.md").exists():
        other /= "README.md"
    if other == root / "README.md":
        other = root / INDEX
    elif other.is_file() and other.suffix != ".md":
        copied = target / other.relative_to(root)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other, copied)
    return f"{match[1]}{os.path.relpath(other, page.parent)}{match[3]}"


def contents(readme: str) -> dict[str, list[str]]:
    """The pages below each bold heading of README's table of contents, in order."""
    sections: dict[str, list[str]] = {}
    for title, body in re.findall(r"^\*\*([^*\n]+)\*\*$(.+?)(?=^\*\*|\Z)", readme, re.MULTILINE | re.DOTALL):
        sections[title] = list(dict.fromkeys(re.findall(r"\]\(([\w/.-]+\.md)\)", body)))
    return sections


def write_index(root: Path, target: Path, pages: Iterable[str]) -> None:
    """Complete the first page: links to generated pages, and the navigation, in README's order."""
    sections = contents((root / "README.md").read_text(encoding="utf-8"))
    start, reference, extend = sections.values()
    linked = {page for section in sections.values() for page in section}
    trees = {
        "Start here": start,
        "Learn": ["gallery/index", "English lessons <lessons/en/index>", "中文课程 <lessons/zh/index>"],
        "Reference": ["All parts <parts/index>", "Python <api/index>", *reference],
        "Extend": [*extend, *(page for page in pages if page not in linked and page.startswith("docs/contract/"))],
        "Plugins": [page for page in pages if page not in linked and page.startswith("plugins/zoo-")],
        "History": ["CHANGELOG.md"],
    }
    path = target / INDEX
    text = path.read_text(encoding="utf-8").replace("\nLicence:", f"{SITE}\nLicence:")
    path.write_text(text + "".join(toctree(caption, entries) for caption, entries in trees.items()), encoding="utf-8")


def toctree(caption: str, entries: Iterable[str], hidden: bool = True) -> str:
    """A directive that lists pages in the navigation, and in the page itself unless hidden."""
    options = [*([":hidden:"] if hidden else []), ":maxdepth: 1", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])

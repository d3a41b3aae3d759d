"""The command: collect pages, run Sphinx with warnings as errors, check every link."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from docs.site import links, sources

ROOT = Path(__file__).parents[2]
MARKER = ".zoo-site"  # a file in a folder that this command made, and may empty


def main(arguments: list[str] | None = None) -> int:
    """Build the site. Returns 0, or 1 for warnings and broken links, or 2 for a folder that is not the site's."""
    parser = argparse.ArgumentParser(prog="python -m docs", description=__doc__)
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--draft", action="store_true", help="quickly: examples and lessons do not run, no API")
    parser.add_argument("--check", action="store_true", help="test every part's contract for its page, for hours")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        print(f"error: {folder} exists and was not written by python -m docs. Name another folder.", file=sys.stderr)
        return 2
    start = time.monotonic()
    pages = build(folder, options.draft, options.check)
    if pages is None:
        return 1
    problems = links.check(pages)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    count = sum(1 for _ in pages.rglob("*.html"))
    print(f"{count} pages in {time.monotonic() - start:.0f} s, {len(problems)} broken links → {pages / 'index.html'}")
    return 1 if problems else 0


def build(folder: Path, draft: bool = False, check: bool = False) -> Path | None:
    """The folder of HTML pages, made from nothing; None where Sphinx has warned or failed."""
    try:
        from sphinx.cmd.build import build_main
    except ImportError as error:
        raise SystemExit(f"error: {error}. Install the tools of the documentation: pip install -e '.[docs]'") from error
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    source, html = folder / "source", folder / "html"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: several threads would wait for each other
    print("collecting pages", flush=True)
    sources.collect(ROOT, source, draft, check)
    print("running examples, writing pages", flush=True)
    os.environ["ZOO_SITE_DRAFT"] = "1" if draft else ""  # conf.py reads it
    words = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(Path(__file__).parent), "-d", str(folder / "doctrees")]
    return None if build_main([*words, str(source), str(html)]) else html

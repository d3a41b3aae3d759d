"""Every link of the site leads somewhere, and no page loads anything from a network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "audio": "src"}


class Page(HTMLParser):
    """Names to which links can lead, links, what is loaded, and pictures without a text, of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.undescribed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        values = dict(attributes)
        self.anchors.update(value for name in ("id", "name") if (value := values.get(name)))
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if tag == "img" and "alt" not in values:
            self.undescribed.append(values.get("src") or "")
        for one in [values.get(LOADED.get(tag, "")), *_candidates(values.get("srcset"))]:
            if one and not one.startswith("data:"):
                self.loaded.append(one)


def _candidates(srcset: str | None) -> list[str]:
    return [one.split()[0] for one in (srcset or "").split(",") if one.strip()]


def check(folder: Path) -> list[str]:
    """A sentence for every broken link, picture without a text, and request to a network, of all pages."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(folder)
        problems += [f"{name}: the picture {picture} has no alt text" for picture in page.undescribed]
        for target in [*page.links, *page.loaded]:
            problem = _problem(path, target, pages, target in page.loaded)
            problems += [f"{name}: {target}: {problem}"] if problem else []
    return list(dict.fromkeys(problems))


def _problem(path: Path, target: str, pages: dict[Path, Page], loaded: bool) -> str:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        if loaded:
            return "is loaded from a network"
        valid = parts.scheme in ("https", "http") and "." in parts.netloc and " " not in target
        return "" if valid or (parts.scheme == "mailto" and "@" in parts.path) else "is no address"
    other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not other.is_file():
        return "there is no such file"
    if parts.fragment and other in pages and unquote(parts.fragment) not in pages[other].anchors:
        return "the page has no such heading"
    return ""

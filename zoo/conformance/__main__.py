"""`python -m zoo.conformance [KIND …]` prints the checks of a kind, or those that kinds share, as Markdown tables."""

from __future__ import annotations

import sys
from importlib import import_module

from zoo.conformance.contract import SUBJECTS

SHARED = 4  # kinds: a check that so many have is listed once, in docs/contract/README.md


def checks_by_kinds() -> dict[tuple[str, str], list[str]]:
    """The kinds that have a check, by its name and what it promises."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind in SUBJECTS:
        for promise in import_module(f"zoo.conformance.contracts.{kind}").PROMISES:
            kinds.setdefault((promise.__name__, (promise.__doc__ or "").partition("\n")[0]), []).append(kind)
    return kinds


def table(kind: str) -> str:
    """One row for each check that a kind does not share: its name, and what it promises."""
    own = [check for check, kinds in checks_by_kinds().items() if kind in kinds and len(kinds) < SHARED]
    return "\n".join(["| check | promise |", "|---|---|", *(f"| `{name}` | {promise} |" for name, promise in own)])


def shared_tables() -> str:
    """A heading that names kinds, and one row for each check that just these share."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for check, kinds in checks_by_kinds().items():
        if len(kinds) >= SHARED:
            groups.setdefault("all kinds" if len(kinds) == len(SUBJECTS) else ", ".join(kinds), []).append(check)
    tables = []
    for kinds_named, shared in groups.items():
        rows = [f"| `{name}` | {promise} |" for name, promise in shared]
        tables.append("\n".join([f"## Checks of {kinds_named}", "", "| check | promise |", "|---|---|", *rows]))
    return "\n\n".join(tables)


if __name__ == "__main__":
    for text in [table(kind) for kind in sys.argv[1:]] or [shared_tables()]:
        print(text)

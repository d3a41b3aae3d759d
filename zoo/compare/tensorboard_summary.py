"""What TensorBoard shows of a comparison as a whole: its table in Text, and charts of its figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zoo.console import printable

NAME = "tensorboard"


def write_summary(home: Path, markdown: str, goals: Iterable[str]) -> Path:
    """Write the table and the layout of the Custom Scalars page into a folder of the comparison's own."""
    from zoo.logging.event_files import Events

    folder = home / NAME
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink(missing_ok=True)  # an earlier answer of the same comparison
    writer = Events(str(folder))
    writer.add_text("comparison", printable(markdown, lines=True), 0)
    figures = list(goals)
    writer.add_custom_scalars(
        {
            "comparison": {
                **{name: ["Multiline", [f"val/{name}$"]] for name in figures},
                **{f"best {name}": ["Multiline", [f"best/{name}$"]] for name in figures},
                "by tokens seen": ["Multiline", [f"val_by_tokens/{figures[0]}$"]],
            },
            "cost": {"speed": ["Multiline", ["cost/tokens_per_s"]], "memory": ["Multiline", ["cost/peak_memory_mb"]]},
        }
    )
    writer.close()
    return folder


def pinned_tags(goal: str, goals: Iterable[str]) -> tuple[str, ...]:
    """The charts that the link pins: the headline first, over steps and over tokens, then the other figures."""
    others = [f"val/{name}" for name in goals if name != goal]
    return (f"val/{goal}", f"val_by_tokens/{goal}", *others, "cost/tokens_per_s")[:5]

"""How pictures and the order of examples get from docs/gallery into the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from PIL import Image

# the examples as they are read, simple ones first
ORDER = (
    "swap_a_part", "write_a_part", "search_with_optuna", "keep_or_discard", "explain_a_model", "attention_picture",
    "predictions_by_layer", "position_encodings", "layer_patterns", "mixture_of_experts", "beam_search",
    "key_value_cache", "train_a_recipe",
)  # fmt: skip


class ReadingOrder:
    """The sort key of an example: its place in ORDER."""

    def __init__(self, folder: str):
        pass

    def __call__(self, filename: str) -> int:
        """Raises ValueError for an example that ORDER lacks."""
        return ORDER.index(Path(filename).stem)


def last_image(block: Any, variables: dict[str, Any], configuration: dict[str, Any]) -> str:
    """The Pillow image that a block of code ends with, as a notebook shows it.

    The comment above that last line is the text for readers who do not see it. Raises ExtensionError without one.
    """
    from sphinx.errors import ExtensionError
    from sphinx_gallery.scrapers import figure_rst

    image = variables["example_globals"].get("___")
    if not isinstance(image, Image.Image):
        return ""
    lines = block.content.rstrip().splitlines()
    comment = alternative_text(lines)
    if not comment:
        raise ExtensionError(f"{variables['src_file']}: no comment describes the picture {lines[-1]!r}")
    variables["example_globals"]["___"] = None  # it is of this block alone
    path = next(variables["image_path_iterator"])
    image.save(path)
    return figure_rst([path], configuration["src_dir"], comment)


def alternative_text(lines: list[str]) -> str:
    """The comment directly above the last line; empty without one."""
    comments: list[str] = []
    for line in reversed(lines[:-1]):
        match = re.fullmatch(r"# (?!sphinx_gallery_)(.+)", line)
        if not match:
            break
        comments.insert(0, match[1])
    return " ".join(comments)


def reset(configuration: dict[str, Any], name: str) -> None:
    """torch's and Python's random states at the start of every example, as in a notebook's fresh process."""
    import random

    import torch

    random.seed(0)
    torch.manual_seed(0)

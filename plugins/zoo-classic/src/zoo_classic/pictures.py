"""Word vectors in the plane of their two largest principal components.

    python -m zoo_classic.pictures RUN FILE.png

RUN is a trained Word2Vec, or a trained ELMo, whose vectors of one word in many sentences are shown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from zoo.compare.charts import series_style
from zoo.errors import UsageError, ZooError
from zoo.palette import LIGHT
from zoo.plotting import new_figure, style, text_width, to_image
from zoo_classic.sentences import ABOUT, CLASSES, PEOPLE
from zoo_classic.trained import TrainedELMo, TrainedVectors

WIDTH, HEIGHT, EDGE, TOP, SIDE = 720, 480, 46, 80, 60  # units
LIFTS = (0, 12, -12, 24, -24, 36, -36, 48)


class Plane(NamedTuple):
    """Points (N, 2), and the share of the variance that each axis has."""

    points: Tensor
    shares: tuple[float, float]


def plane(vectors: Tensor) -> Plane:
    """The principal components of vectors (N, dim): projections on the two directions of the largest variance."""
    centred = vectors.double() - vectors.double().mean(0)
    _, s, v = torch.linalg.svd(centred, full_matrices=False)
    v = v * torch.where(v.gather(1, v.abs().argmax(1, keepdim=True)) < 0, -1.0, 1.0)  # the same sign everywhere
    share = s**2 / (s**2).sum()
    return Plane(centred @ v[:2].T, (float(share[0]), float(share[1])))


@style()
def scatter(title: str, names: Sequence[str], groups: Mapping[str, Sequence[int]], vectors: Tensor) -> Figure:
    """Named vectors in their plane; each group has a colour and a mark."""
    projection = plane(vectors)
    figure = new_figure(WIDTH, HEIGHT)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))  # in units, from the upper left corner
    axes.text(EDGE, 20, title, fontsize=14, va="center")
    low, high = projection.points.amin(0), projection.points.amax(0)
    ends = torch.tensor([[EDGE, HEIGHT - EDGE], [WIDTH - EDGE - SIDE, TOP]], dtype=torch.float64)
    places = (ends[0] + (projection.points - low) / (high - low).clamp(min=1e-9) * (ends[1] - ends[0])).tolist()
    placed: list[tuple[float, float, float]] = []
    for members in groups.values():
        for member in members:
            if names[member]:
                placed.append(label(figure, axes, names[member], places[member], placed))
    x = float(EDGE)
    for number, (group, members) in enumerate(groups.items()):
        mark_style = series_style(number)
        mark: dict[str, Any] = {"color": mark_style.colour, "marker": mark_style.marker, "linestyle": ""}
        mark["markeredgecolor"] = LIGHT["paper"]
        axes.plot(x, 46, markersize=9.5, **mark)
        axes.text(x + 10, 46, group, fontsize=12, va="center_baseline")
        x += text_width(figure, group, 12) + 34
        axes.plot([places[member][0] for member in members], [places[member][1] for member in members], **mark,
                  markersize=8.5, zorder=4)  # fmt: skip
    shares = " · ".join(f"PC{n} {share:.0%}" for n, share in enumerate(projection.shares, 1))
    axes.text(EDGE, HEIGHT - 14, f"share of the variance: {shares}", fontsize=11.5, color=LIGHT["grey"], va="center")
    return figure


def label(
    figure: Figure, axes: Axes, words: str, place: tuple[float, float], placed: list[tuple[float, float, float]]
) -> tuple[float, float, float]:
    """Write beside a mark, to its left near the right edge, moved up or down where another name stands."""
    (x, y), wide = place, text_width(figure, words, 11.5)
    edge = x + 8 if x + 8 + wide < WIDTH - 4 else x - 8 - wide
    lift = next(
        (n for n in LIFTS if all(abs(y + n - at) > 11 or edge + wide < a or edge > b for a, at, b in placed)), 0
    )
    axes.text(edge, y + lift, words, fontsize=11.5, va="center_baseline")
    return edge, y + lift, edge + wide


def words(model: TrainedVectors) -> Figure:
    """The people and the classes of ``Sentences``."""
    groups: dict[str, list[str]] = {"person": list(PEOPLE)}
    groups |= {kind: [word for word in members if word != "apple"] for kind, members in CLASSES.items()}
    groups["apple"] = ["apple"]
    names = [word for members in groups.values() for word in members]
    members_by_kind = {kind: [names.index(word) for word in members] for kind, members in groups.items()}
    return scatter(
        "Word2Vec: one vector per word", names, members_by_kind, torch.stack([model.vector(word) for word in names])
    )


def senses(model: TrainedELMo, word: str = "apple", layer: int = -1) -> Figure:
    """One word in every sentence that has it, and others in the same places, in one layer."""
    texts: dict[str, list[tuple[str, str]]] = {}
    for kind in ("fruit", "firm"):
        others = [other for other in CLASSES[kind] if other != word][:2]
        texts[f"{word} ({kind})"] = [(word, form.format(w=word)) for form in ABOUT[kind]]
        texts[f"other {kind}"] = [(other, form.format(w=other)) for form in ABOUT[kind] for other in others]
    pairs_of_texts = [pair for pairs in texts.values() for pair in pairs]
    names = [text if name == word else "" for name, text in pairs_of_texts]
    ends = torch.tensor([0, *map(len, texts.values())]).cumsum(0).tolist()
    groups = {kind: range(begin, end) for kind, begin, end in zip(texts, ends, ends[1:], strict=False)}
    vectors = torch.stack([model.vector(name, text, layer) for name, text in pairs_of_texts])
    return scatter(f"ELMo: the vector of {word!r} depends on its sentence", names, groups, vectors)


def main(arguments: Sequence[str]) -> int:
    """Draw a run; 2 where it cannot be drawn."""
    import zoo

    try:
        if len(arguments) != 2:
            raise UsageError("usage: python -m zoo_classic.pictures RUN FILE.png")
        model = zoo.load(arguments[0])
        if not isinstance(model, TrainedVectors | TrainedELMo):
            raise UsageError(f"{arguments[0]} is a {type(model.task).__name__}: only Word2Vec and ELMo are drawn.")
        to_image(words(model) if isinstance(model, TrainedVectors) else senses(model)).save(arguments[1])
    except ZooError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

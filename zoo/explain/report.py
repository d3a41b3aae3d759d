"""An explanation as text tables, as plain values for JSON, and as one HTML page that needs no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from zoo import __version__
from zoo.console import format_bytes, printable
from zoo.explain.costs import Difference, Explanation, Row, differences, option_differences
from zoo.explain.graph import charts, module_tree, operation_numbers
from zoo.explain.inside import Heads, Inside
from zoo.explain.subjects import DEFAULT
from zoo.explain.trace import Operation
from zoo.logging.attention_maps import LABELLED, layer_title
from zoo.palette import DARK, LIGHT

MOST_OPERATIONS = 60  # rows of a block in the terminal; JSON and HTML have all
PIECES = (("parameters", ""), ("flops", ""), ("traffic", "B"), ("seconds", "s"))


class Text(NamedTuple):
    """A table under a title, and notes below it."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: list[str]


def quantity(value: float, unit: str = "") -> str:
    """A number with three digits and a prefix: 1.23 M, 7.89 ms; bytes (B or B/s) in binary units: 44.5 KiB."""
    if not value:
        return "0"
    if unit in ("B", "B/s"):
        return f"{format_bytes(value)}{unit[1:]}"
    size = abs(value)
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if size >= limit:
            return f"{value / limit:.3g} {prefix}{unit}".rstrip()
    for limit, prefix in ((1e-3, "m"), (1e-6, "µ")):
        if size >= limit:
            return f"{value / limit:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def shape_of(sizes: Sequence[int]) -> str:
    """1 × 64 × 128."""
    return " × ".join(map(str, sizes))


def part_table(explanation: Explanation) -> Text:
    """The costs of a sample by part."""
    total = explanation.total
    rows = [[*_cells(row, total.seconds)] for row in [*explanation.parts, total]]
    headings = ["part", "class", "shape", "parameters", "FLOPs", "bytes", "share", "bound by", "products"]
    return Text(f"By part: {sample_of(explanation)}", headings, rows, [])


def sample_of(explanation: Explanation) -> str:
    """The sample that is traced, in words."""
    units, unit = explanation.units, explanation.unit
    return f"a forward of one sample, {units} {unit}{'' if units == 1 else 's'}"


def _cells(row: Row, seconds: float) -> list[str]:
    name = f"{row.name} × {row.count}" if row.count > 1 else row.name
    share = f"{100 * row.seconds / seconds:.1f} %" if seconds else "–"
    products = "" if not row.products else str(row.products) if row.count == 1 else f"{row.products} each"
    return [
        row.part, name, shape_of(row.shape), quantity(row.parameters), quantity(row.flops), quantity(row.traffic, "B"),
        share, row.bound, products,
    ]  # fmt: skip


def block_tables(explanation: Explanation) -> list[Text]:
    """The operations of a block of each kind, in order."""
    tables = []
    for title, operations in explanation.blocks:
        rows = [operation_cells(explanation, operation, title.partition(" ")[0]) for operation in operations]
        products = sum(operation.products for operation in operations)
        notes = [f"{products} matrix products"]
        if len(rows) > MOST_OPERATIONS:
            notes.append(f"and {len(rows) - MOST_OPERATIONS} operations more: --json and --html have all of them")
            rows = rows[:MOST_OPERATIONS]
        headings = ["in", "operation", "shape", "FLOPs", "bytes", "FLOP per byte", "share", "bound by"]
        tables.append(Text(f"By operation: {title}", headings, rows, notes))
    return tables


def operation_cells(explanation: Explanation, operation: Operation, path: str = "") -> list[str]:
    """An operation as cells of a table; its module is named without ``path``."""
    ceilings, seconds = explanation.ceilings, explanation.total_seconds
    module = operation.module.removeprefix(path).lstrip(".") if path else operation.module
    return [
        module, operation.name, shape_of(operation.shape), quantity(operation.flops), quantity(operation.traffic, "B"),
        f"{operation.intensity:.3g}", f"{100 * ceilings.seconds(operation) / seconds:.2f} %" if seconds else "–",
        ceilings.bound(operation),
    ]  # fmt: skip


def memory_lines(explanation: Explanation) -> list[str]:
    """The memory of a training step, in words."""
    memory = explanation.memory
    if memory is None:
        return []
    sizes = (
        f"weights {quantity(memory.weights, 'B')}, optimiser {quantity(memory.states, 'B')}, and at most "
        f"{quantity(memory.batch, 'B')} during the step, of which gradients are {quantity(memory.gradients, 'B')}"
    )
    return [f"Memory of a step with {explanation.batch}: {quantity(memory.total, 'B')} ({sizes})"]


def ceilings_line(explanation: Explanation) -> str:
    """The ceilings of this machine, in words."""
    ceilings = explanation.ceilings
    return (
        f"This machine: {quantity(ceilings.flops, 'FLOP/s')} in products of float32, "
        f"{quantity(ceilings.bandwidth, 'B/s')} of memory, {ceilings.balance:.1f} FLOPs while it moves a byte"
    )


COUNTING = (
    "FLOPs are those of matrix products, two for a multiply-add, as torch counts them. Bytes: every operand read and "
    "every result written once, as without fusion and caches. Share: of the least time on this machine."
)
RANDOM = "The weights are random: this is an untrained recipe. Name a run to see what training has made of it."


def option_table(explanation: Explanation, every: bool = False) -> Text:
    """Options with their origins; those that something sets, or with ``every`` all of them."""
    options = [option for option in explanation.subject.options if every or option.origin != DEFAULT]
    hidden = len(explanation.subject.options) - len(options)
    notes = [f"{hidden} further options have their defaults: --json and --html list them"] if hidden else []
    return Text("Options and where they are set", ["option", "value", "origin"], list(map(list, options)), notes)


def difference_tables(before: Explanation, after: Explanation) -> list[Text]:
    """What differs between two models: options, parts with their costs, and the totals."""
    options = [list(row) for row in option_differences(before.subject, after.subject)]
    pairs = [*differences(before, after), Difference("total", before.total, after.total)]
    memory = [explanation.memory.total if explanation.memory else None for explanation in (before, after)]
    notes = []
    if None not in memory:
        notes.append(f"Memory of a step: {quantity(memory[0] or 0, 'B')} → {quantity(memory[1] or 0, 'B')}")
    headings = ["part", "class", "parameters", "FLOPs", "bytes", "least time"]
    rows = [[pair.part, _classes(pair), *(_change(pair, field, unit) for field, unit in PIECES)] for pair in pairs]
    return [
        Text("Options that differ", ["option", "first", "second", "origin of first", "origin of second"], options, []),
        Text("Parts that differ: first → second (change)", headings, rows, notes),
    ]


def _classes(pair: Difference) -> str:
    names = [f"{row.name} × {row.count}" if row and row.count > 1 else row.name if row else "–" for row in pair[1:]]
    return names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}"


def _change(pair: Difference, field: str, unit: str) -> str:
    values = [getattr(row, field) if row else 0 for row in (pair.before, pair.after)]
    if values[0] == values[1]:
        return quantity(values[0], unit)
    change = values[1] - values[0]
    share = f", {100 * change / values[0]:+.1f} %" if values[0] else ""
    sign = "+" if change > 0 else ""
    return f"{quantity(values[0], unit)} → {quantity(values[1], unit)} ({sign}{quantity(change, unit)}{share})"


def inside_tables(inside: Inside) -> list[Text]:
    """The last position's prediction after every layer, and what it attends to in every head."""
    place = len(inside.positions) - 1
    title = f"Prediction after every layer, at {inside.positions[place]!r}, through the final norm and head"
    rows = []
    for depth, positions in enumerate(inside.layers):
        name = "all layers" if depth == len(inside.layers) - 1 else f"{depth} layers" if depth != 1 else "1 layer"
        rows.append([name, *(f"{guess.label!r} {guess.probability:.3f}" for guess in positions[place])])
    headings = ["after", *(f"guess {number + 1}" for number in range(len(inside.layers[-1][place])))]
    tables = [Text(title, headings, rows, list(inside.notes))]
    rows = []
    for heads in inside.heads:
        for number, weights in enumerate(heads.weights):
            weight, column = weights[-1].max(0)
            rows.append([heads.name, str(number + 1), f"{heads.columns[int(column)]!r}", f"{float(weight):.3f}"])
    if rows:
        row = inside.heads[0].rows[-1]
        tables.append(
            Text(
                f"Where the last row of every head looks most ({row!r})",
                ["attention", "head", "at", "weight"],
                rows,
                [],
            )
        )
    return tables


def as_values(explanation: Explanation, inside: Inside | None = None) -> dict[str, Any]:
    """An explanation in plain values, for JSON."""
    subject, ceilings = explanation.subject, explanation.ceilings
    memory = explanation.memory
    value: dict[str, Any] = {
        "subject": subject.title,
        "trained": subject.trained,
        "sample": {"unit": explanation.unit, "units": explanation.units},
        "ceilings": {
            "flops_per_second": ceilings.flops, "bytes_per_second": ceilings.bandwidth, "rates": dict(ceilings.rates),
        },
        "total": _row_values(explanation.total),
        "parts": [_row_values(row) for row in explanation.parts],
        "operations": [
            {
                "module": operation.module, "operation": operation.name, "shape": list(operation.shape),
                "flops": operation.flops, "read": operation.read, "written": operation.write,
                "products": operation.products, "inputs": list(operation.inputs),
                "seconds": ceilings.seconds(operation), "bound": ceilings.bound(operation),
            }
            for operation in explanation.traced.operations
        ],
        "memory": None
        if memory is None
        else {**memory._asdict(), "total": memory.total, "rows": subject.rows, "of": explanation.batch},
        "options": [option._asdict() for option in subject.options],
        "notes": subject.notes,
        "numerics": [error._asdict() for error in subject.numerics],
    }  # fmt: skip
    if inside is not None:
        value["inside"] = {
            "tokens": inside.tokens,
            "attention": [
                {
                    "name": heads.name, "rows": heads.rows, "columns": heads.columns,
                    "weights": [[[round(x, 5) for x in row] for row in head] for head in heads.weights.tolist()],
                }
                for heads in inside.heads
            ],
            "positions": inside.positions,
            "layers": [[[guess._asdict() for guess in guesses] for guesses in layer] for layer in inside.layers],
            "notes": inside.notes,
        }  # fmt: skip
    return value


def _row_values(row: Row) -> dict[str, Any]:
    return {
        "part": row.part, "class": row.name, "shape": list(row.shape), "parameters": row.parameters,
        "flops": row.flops, "bytes": row.traffic, "seconds": row.seconds, "bound": row.bound,
        "products": row.products, "layers": row.count,
    }  # fmt: skip


def difference_values(before: Explanation, after: Explanation) -> dict[str, Any]:
    """What differs between two models, for JSON."""
    names = ("option", "first", "second", "first_origin", "second_origin")
    return {
        "options": [dict(zip(names, row, strict=True)) for row in option_differences(before.subject, after.subject)],
        "parts": [
            {
                "part": pair.part,
                **{
                    side: _row_values(row) if row else None
                    for side, row in (("first", pair.before), ("second", pair.after))
                },
                "change": {field: pair.change(field) for field, _ in PIECES},
            }
            for pair in [*differences(before, after), Difference("total", before.total, after.total)]
        ],
    }


def page(explanations: Sequence[Explanation], inside: Inside | None = None) -> str:
    """One HTML page with everything; it loads nothing from elsewhere."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("zoo.explain"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"quantity": quantity, "shape": shape_of}
    trees = [module_tree(explanation) for explanation in explanations]
    models = [
        {
            "title": explanation.subject.title, "trained": explanation.subject.trained,
            "notes": explanation.subject.notes, "parts": part_table(explanation), "bars": bars(explanation),
            "memory": memory_lines(explanation), "machine": ceilings_line(explanation),
            "tree": tree, "numbers": set(operation_numbers(tree)), "charts": charts(explanation),
            "options": option_table(explanation, every=True),
            "explanation": explanation, "total": explanation.total, "sample": sample_of(explanation),
        }
        for explanation, tree in zip(explanations, trees, strict=True)
    ]  # fmt: skip
    several = len(explanations) == 2
    text = environment.get_template("explain.html").render(
        models=models,
        tables=difference_tables(*explanations) if several else [],
        inside=inside,
        heads=[] if inside is None else [_head_picture(number, head) for number, head in enumerate(inside.heads)],
        picture=None if inside is None or inside.picture is None else data_address(inside.picture),
        random=RANDOM,
        counting=COUNTING,
        version=__version__,
        light=LIGHT,
        dark=DARK,
    )
    return printable(text, lines=True)


def bars(explanation: Explanation) -> list[tuple[str, str, list[tuple[str, float, str]]]]:
    """Shares of the parts in parameters, FLOPs, bytes and least time: title, total, and (part, percent, value)."""
    total = explanation.total
    charts = []
    titles = ("Parameters", "FLOPs", "Bytes", "Least time")
    for title, (field, unit) in zip(titles, PIECES, strict=True):
        whole = getattr(total, field) or 1
        values = [
            (row.part, 100 * getattr(row, field) / whole, quantity(getattr(row, field), unit))
            for row in explanation.parts
            if getattr(row, field)
        ]
        charts.append((title, quantity(getattr(total, field), unit), sorted(values, key=lambda bar: -bar[1])[:12]))
    return charts


def _head_picture(number: int, heads: Heads) -> tuple[str, str, str]:
    """The heads of a layer: its title, a picture as an address of data, and a description."""
    from zoo.logging.attention_figures import head_grid

    wide = heads.weights.size(0) * max(len(heads.rows), len(heads.columns)) > 4 * LABELLED
    words = heads.rows if heads.rows == heads.columns and not wide else None
    title = f"{layer_title(heads.name, number)} · {heads.name}"
    picture = head_grid([heads.weights], words, None, [layer_title(heads.name, number)])
    about = f"{heads.weights.size(0)} heads: {len(heads.rows)} rows attend to {len(heads.columns)} columns"
    return title, data_address(picture), about


def data_address(picture: Any) -> str:
    """A PIL image as an address that holds it."""
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()

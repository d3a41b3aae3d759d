"""What a listing costs grows with the number of parts, not with its square."""

import sys

import pytest

from zoo.cli import main


def steps(call) -> int:
    """How many calls of Python functions something takes: a measure that no other load on the machine changes."""
    count = 0

    def tracer(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tracer)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def install(folder, count: int, modules: int) -> None:
    home = folder / "many-1.0.dist-info"
    home.mkdir(exist_ok=True)
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: many\nVersion: 1.0\nRequires-Dist: zoo-transformers\n")
    lines = [f"Many{number} = many{count}_{number % modules}:Many{number}" for number in range(count)]
    (home / "entry_points.txt").write_text("\n".join(["[zoo.norm]", *lines, ""]))
    for module in range(modules):
        classes = [f'class Many{number}:\n    """A norm."""\n' for number in range(module, count, modules)]
        (folder / f"many{count}_{module}.py").write_text("\n".join(classes))


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        (["list"], 1),
        (["list"], 20),
        (["list", "norm", "--json"], 20),
        (["list", "norm", "many*"], 20),
        (["doctor"], 20),
    ],
)
def test_cost_per_part(site, command, modules, capsys):
    costs = []
    for count in (40, 160):
        install(site(), count, modules)
        site()
        main(["list", "position"])  # imports what is needed
        costs.append(steps(lambda: main(command)))
    assert "Many1" in capsys.readouterr().out or command == ["doctor"]
    assert costs[1] < 5.5 * costs[0]  # four times as many parts; the square would be 16

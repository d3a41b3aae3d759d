"""DyT keeps zoo's contract of a norm, and is its formula."""

import math
import re
from pathlib import Path

import pytest
import torch
import zoo_hello
from zoo_hello import DyT

from zoo.conformance import checks


@pytest.mark.parametrize("check", checks(DyT), ids=str)
def test_contract(check):
    check()


def test_it_is_the_formula():
    norm = DyT(3, alpha=0.8)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 3.0]))
        norm.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    out = norm(torch.tensor([[0.5, -1.0, 10.0]])).squeeze()
    expected = [math.tanh(0.4), -2 * math.tanh(-0.8) + 1, 3 * math.tanh(8.0) - 1]
    assert out.tolist() == pytest.approx(expected)


def test_the_readme_shows_the_code_which_is_at_most_fifteen_lines():
    code = Path(zoo_hello.__file__).read_text(encoding="utf-8")
    readme = Path(__file__).parents[1] / "README.md"
    assert re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.S)[1] == code
    lines = [line for line in code.splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(lines) <= 15

"""Which numbers an option may be."""

import pytest

from zoo import registry
from zoo.errors import UsageError
from zoo.value_checks import LARGEST, MOST_MODULES, MOST_SAMPLES, at_least, at_most


def test_bounds_are_included_and_named():
    at_least(1, a=1, b=LARGEST, c=None)
    at_most(3, a=3, b=None)
    for call in (lambda: at_least(1, size=0), lambda: at_least(1, size=LARGEST + 1), lambda: at_most(3, size=4)):
        with pytest.raises(UsageError, match=r"^size must be at "):
            call()


@pytest.mark.parametrize(
    ("kind", "name", "option", "most", "others"),
    [
        ("ffn", "MoE", "experts", MOST_MODULES, {"dim": 4, "hidden": 4}),
        ("data", "Phrasebook", "size", MOST_SAMPLES, {}),
        ("data", "Glyphs", "size", MOST_SAMPLES, {}),
    ],
)
def test_a_number_that_would_be_built_for_hours_is_refused_at_once(kind, name, option, most, others):
    part = registry.find(kind, name).load()
    with pytest.raises(UsageError, match=f"{option} must be at most {most}, got {most + 1}"):
        part(**others, **{option: most + 1})

"""Every family, and the command, keep the contract of their kind."""

import pytest
from import_steps import FAMILIES
from zoo_pretrained.commands import Import

from zoo.conformance import checks

# which build the example's network once or twice: a family meets one of them in turn, while the tests of agreement
# (test_llama.py, test_bert.py and others) bring a model of each family in and out again, bit by bit
COSTLY = ("configuration_returns", "tensors_return", "unknown_keys_are_refused")


def marks_of(check, number):
    """The marks of a check of the family of this number."""
    again = check.name == "clean_import" and number  # the same modules import each other
    later = check.name in COSTLY and COSTLY.index(check.name) != number % len(COSTLY)
    return [pytest.mark.campaign] if again or later else []


@pytest.mark.parametrize(
    "check",
    [
        *(pytest.param(check, id=f"Import-{check}") for check in checks(Import)),
        *(
            pytest.param(check, marks=marks_of(check, number), id=f"{family.__name__}-{check}")
            for number, family in enumerate(FAMILIES)
            for check in checks(family)
        ),
    ],
)
def test_contract(check):
    check()

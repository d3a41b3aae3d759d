"""The contract of each kind of part, as checks that run on any part: `zoo check` and tests of plugins use them.

In a test file: ``@pytest.mark.parametrize("check", checks(MyNorm), ids=str)``, ``def test_contract(check): check()``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.conformance.contract import Broken, Check, Inapplicable, Outcome, checks

__all__ = ["Broken", "Check", "Inapplicable", "Outcome", "checks"]


def __getattr__(name: str) -> Any:
    """Import the contract, and torch with it, for those who use it: the commands of this package do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zoo.conformance import contract

    return getattr(contract, name)

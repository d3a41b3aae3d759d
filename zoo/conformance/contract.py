"""The contract of each kind of part, as checks that run on any part: `zoo check` and tests of plugins use them.

In a test file: ``@pytest.mark.parametrize("check", checks(MyNorm), ids=str)``, ``def test_contract(check): check()``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from zoo import registry
from zoo.conformance.check import Broken, Check, Inapplicable, Outcome, make_checks
from zoo.conformance.subject import Independent, Subject, subject_classes
from zoo.errors import UsageError

SUBJECTS: dict[str, type[Subject]] = {subject_class.kind: subject_class for subject_class in subject_classes()}
SUBJECTS |= {kind: Independent for kind in registry.KINDS if kind not in SUBJECTS}

__all__ = ["Broken", "Check", "Inapplicable", "Outcome", "checks"]


def checks(part: type, **options: Any) -> list[Check]:
    """The checks of a part's kind, for the part with these options.

    A part declares with class attributes what it does not support: see docs/plugins.md. Raises UsageError for a class
    that is not a part.
    """
    kind = registry.kind_of(part)
    if not isinstance(part, type) or kind not in SUBJECTS:
        name = getattr(part, "__name__", repr(part))
        raise UsageError(
            f"{name} is not a part: it must derive from the base class of {', '.join(SUBJECTS)}: see docs/plugins.md."
        )
    return make_checks(SUBJECTS[kind](part, options), import_module(f"zoo.conformance.contracts.{kind}").PROMISES)

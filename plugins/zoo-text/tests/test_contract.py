"""Every task, data module and command keeps the contract of its kind.

The default run has the commands and a task; the default run of zoo's own tests samples the contract of all parts.
"""

import pytest
from text_helpers import PROJECT

from zoo.conformance import checks
from zoo.plugins.safe_import import import_target

# options with which a data module loads in a tenth of the time
FEW = {
    "LibraryDialogues": {"functions": 100, "size": 2000},
    "PythonRoles": {"pieces": 400},
    "SourceTopics": {"pieces": 60},
}
PARTS = [
    (import_target(target, name), FEW.get(name, {}))
    for kind in ("command", "task", "data")
    for name, target in PROJECT["entry-points"][f"zoo.{kind}"].items()
]
QUICK = ("Fill", "Tag", "MaskedLM")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=[] if check.subject.name in QUICK else [pytest.mark.campaign])
        for part, options in PARTS
        for check in checks(part, **options)
    ],
    ids=lambda check: f"{check.subject.name}-{check}",
)
def test_contract(check):
    check()

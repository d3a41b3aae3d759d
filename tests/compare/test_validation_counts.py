"""The number of validations is known before training where steps or epochs decide it."""

import pytest

from zoo.compare.prepare_runs import check_validations, most_validations
from zoo.errors import UsageError


@pytest.mark.parametrize(
    ("trainer", "most"),
    [
        ({"max_steps": 100, "val_check_interval": 30}, 4),  # once more at the end
        ({"max_steps": 90, "val_check_interval": 30}, 3),
        ({"max_steps": 90, "val_check_interval": 30, "accumulate_grad_batches": 2}, 6),
        ({"max_epochs": 2, "val_check_interval": 0.5}, 5),
        ({"max_epochs": 2, "max_steps": -1, "val_check_interval": 0.5}, 5),
        ({"max_epochs": 3, "val_check_interval": 20}, 9),  # 50 batches an epoch
        ({"max_steps": 90, "val_check_interval": 1.0}, None),
        ({"max_steps": None, "val_check_interval": 30}, None),
        ({"max_steps": 90, "val_check_interval": "00:00:10:00"}, None),
        ({"max_steps": 90, "val_check_interval": None}, None),
        ({}, None),
    ],
)
def test_the_largest_number_of_validations(trainer, most):
    assert most_validations(trainer, lambda: 50) == most


def test_too_few_validations_are_refused_by_name():
    trainer = {"max_steps": 90, "val_check_interval": 30}
    for at in ("last", "best", "test", "last:3", None):
        check_validations(at, [("default", {"trainer": trainer}), ("other", {"trainer": {}})])
    with pytest.raises(UsageError, match=r"--at last:4: runs of short will have 3 validations, one every 30 batches"):
        check_validations(
            "last:4", [("long", {"trainer": {**trainer, "max_steps": 900}}), ("short", {"trainer": trainer})]
        )

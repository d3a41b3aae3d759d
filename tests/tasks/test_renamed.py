"""What plugins override or import by an old name works, and warns."""

import pytest

from zoo.tasks import task as module
from zoo.tasks.lm import CausalLM, LanguageTask
from zoo.tasks.masked import MaskedLM
from zoo.tasks.task import Task


def old_style():
    class Old(CausalLM):
        goals = {"bits_per_byte": "min"}  # noqa: RUF012
        blanks = {"vocab_size": 7, "max_length": 9}  # noqa: RUF012

        def figures(self, loss):
            return {**super().figures(loss), "twice": 2 * loss}

    return Old


def test_old_names_that_a_class_overrides_are_used_and_warned_of():
    with pytest.warns(FutureWarning) as warned:
        cls = old_style()
    names = [str(one.message).partition("Task.")[2].split(",")[0] for one in warned]
    assert sorted(names) == ["blanks", "figures", "goals"]
    assert all("test_renamed" in one.filename for one in warned)
    assert "named compute_metrics now" in str(warned[0].message)
    assert cls.monitored_metrics == {"bits_per_byte": "min"}
    assert cls.data_sizes == cls.small_sizes({}) == {"vocab_size": 7, "max_length": 9}
    values = cls(31, 8, dim=16, depth=1, heads=2).compute_metrics(1.5)
    assert values["twice"] == 3
    assert {"perplexity", "bits_per_byte"} < values.keys()


def test_old_names_can_be_read():
    assert CausalLM.goals is CausalLM.monitored_metrics
    assert Task.blanks is Task.data_sizes
    assert Task.tried
    assert not MaskedLM.tried
    assert vars(LanguageTask)["figures"] is vars(LanguageTask)["compute_metrics"]


@pytest.mark.parametrize(
    ("old", "new"), [("known", "required_size"), ("taken", "compute_and_reset"), ("Goals", "Directions")]
)
def test_old_functions_can_be_imported(old, new):
    with pytest.warns(FutureWarning, match=f"zoo.tasks.task.{old} is named {new} now"):
        assert getattr(module, old) is getattr(module, new)


def test_no_other_name_is_made_up():
    with pytest.raises(AttributeError, match="has no attribute 'figures'"):
        module.figures  # noqa: B018

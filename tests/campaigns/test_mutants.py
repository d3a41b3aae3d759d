"""The list of mutants fits today's code: `python -m tests.campaigns.mutants` runs it."""

from collections import Counter
from pathlib import Path

from tests.campaigns import mutants
from tests.rows import try_each


@try_each(mutants.MUTANTS, lambda mutant: mutant.title)
def test_a_mutant_can_be_tried(mutant):
    assert list(mutants.problems(mutant)) == []


def test_the_list_covers_every_folder_and_repeats_nothing():
    assert len(mutants.MUTANTS) >= 100
    assert max(Counter((mutant.file, mutant.text) for mutant in mutants.MUTANTS).values()) == 1
    folders = {path.parent.name for path in (mutants.ROOT / "zoo").glob("*/__init__.py")}
    assert folders <= {Path(mutant.file).parent.name for mutant in mutants.MUTANTS}


def test_a_place_that_is_gone_ambiguous_or_unchanged_is_named():
    mutant = mutants.Mutant("value_checks.py", "no such line", "x", ("test_mutants.py",))
    assert "is there 0 times, not once" in next(mutants.problems(mutant))
    mutant = mutants.Mutant("value_checks.py", "value", "x", ("no_test.py",))
    first, second = mutants.problems(mutant)
    assert "times, not once" in first
    assert "tests/no_test.py, which does not exist" in second
    mutant = mutants.Mutant("value_checks.py", "and not value >", "and not  value >", ("test_mutants.py",))
    assert "changes nothing" in next(mutants.problems(mutant))


def test_names_stand_for_any_identifier():
    mutant = mutants.Mutant("x.py", "~ < ~.least", "~ > ~.least", ())
    assert mutant.apply("if a < b.least:") == "if a > b.least:"

"""The study of a comparison's time against Lightning's fits; times are made up."""

import pytest

from bench.studies import verdict_time
from bench.study import Options


@pytest.mark.parametrize(
    ("compare", "judgement", "above"),
    [(10.5, "reached (≤ 1.05 times)", "reached (≤ 0.7 s)"), (21.0, "missed (≤ 1.05 times)", "missed (≤ 0.7 s)")],
)
def test_a_comparison_is_judged_by_the_fits_beside_it(compare, judgement, above, monkeypatch):
    monkeypatch.setattr(verdict_time, "_measure", lambda *_: (compare, 1.0, 0.5, 10.0, 3.0))
    tables = verdict_time.study(Options(turns=1))
    assert len(tables) == len(verdict_time.STEPS)
    rows = {row[0]: row for row in tables[0].rows}
    assert rows["zoo compare, to the verdict"][2:] == [compare / 10, judgement]
    assert rows["above the fits, per run"][1:] == [(compare - 10) / 15, "", above]

"""The simulation of false verdicts with few repetitions: bounds are those of the binomial distribution."""

import numpy as np
import pytest
from scipy import stats

from bench import verdicts
from zoo.compare import statistics
from zoo.compare.looks import UNTIL
from zoo.compare.simultaneous_tests import PairedTestPlan, compare_samples, judge_all
from zoo.compare.statistics import ALPHA

SYMMETRIC = [null for null in verdicts.NULLS if null.symmetric]


def most(count, rate=ALPHA):
    """The number of hits that a true rate exceeds with a probability of 1e-4."""
    return int(stats.binom.isf(1e-4, count, rate))


@pytest.mark.parametrize("null", SYMMETRIC, ids=lambda null: null.title)
def test_looks_after_every_seed_give_few_false_verdicts(null):
    ours, theirs = null.samples(np.random.default_rng(11), 2000, verdicts.MOST)
    false = statistics.p_values(ours - theirs)[:, -1] <= ALPHA
    assert false.sum() <= most(2000)
    assert false.sum() > 20  # a test that never errs has no power
    assert verdicts.t_after_every_seed(ours - theirs).mean() > 0.15  # what it is for


@pytest.mark.parametrize(
    "null", [SYMMETRIC[0], *(pytest.param(null, marks=pytest.mark.campaign) for null in SYMMETRIC[1:])],
    ids=lambda null: null.title,
)  # fmt: skip
def test_seeds_added_as_advised_give_few_false_verdicts(null):
    ours, theirs = null.samples(np.random.default_rng(12), 100, verdicts.PATIENCE)
    words = [verdicts.follow_advice(*pair) for pair in zip(ours.tolist(), theirs.tolist(), strict=True)]
    assert sum(word in ("better", "worse") for word in words) <= most(100)


def test_the_simulated_paths_are_those_of_the_verdict():
    rng = np.random.default_rng(13)
    ours, theirs = rng.standard_normal((40, 12)) + 0.7, rng.standard_normal((40, 12))
    plan = PairedTestPlan("sequential", UNTIL * ALPHA)
    paths = statistics.p_values(ours - theirs)
    for path, one, other in zip(paths, ours, theirs, strict=True):
        for count in (2, 6, 12):
            tested = compare_samples({"v": (one[:count], other[:count])}, plan)
            assert tested["v"].pair.p == pytest.approx(path[count - 1], rel=1e-12)
            assert (tested["v"].adjusted <= plan.level) == (path[count - 1] <= plan.level)
    assert judge_all(tested, True, plan)["v"].word in ("better", "worse", "not distinguishable")


def test_a_series_of_tries_that_change_nothing_finds_nothing():
    rows = verdicts.series(60, np.random.default_rng(14))
    uncorrected, corrected = (float(cell.removesuffix(" %")) / 100 for cell in rows[1][2:])
    assert uncorrected > 0.5
    assert corrected * 60 <= most(60) + 0.1


def test_at_the_margin_few_are_called_as_good():
    (_, *rows) = verdicts.margins(300, np.random.default_rng(15))
    for cells in rows:
        rates = [float(cell.removesuffix(" %")) / 100 for cell in cells[1:6]]
        assert max(rates[:2]) * 300 <= most(300) + 0.5
    assert rates[4] > 0.9  # a margin of two standard deviations


@pytest.mark.parametrize("variants", [3, 6])
def test_dunnett_errs_no_more_whatever_scatters_and_finds_more_where_all_scatter_alike(variants):
    rng = np.random.default_rng([16, variants])
    deviations = {str(draw): tuple(10.0 ** rng.uniform(-1, 1, variants + 1)) for draw in range(2)}
    (_, *rows) = verdicts.families(400, rng, deviations | {"alike": (1.0,) * (variants + 1)}, (3, 5), (1000,))
    gains = {}
    for title, seeds, *cells in rows:
        false_t, false, power_t, power = (float(cell.removesuffix(" %")) / 100 for cell in cells)
        assert max(false_t, false) * 400 <= most(400) + 0.5, (title, deviations)
        gains[title, seeds] = power - power_t
    assert gains["alike", "5"] > 0.1


@pytest.mark.parametrize("null", SYMMETRIC, ids=lambda null: null.title)
@pytest.mark.parametrize("seeds", verdicts.SEEDS)
def test_recorded_accuracies_give_few_false_verdicts(null, seeds):
    """Of two seeds with accuracies of 1,000 images 11 % were false with three variants, and 24 % with bad seeds."""
    rng = np.random.default_rng([seeds, *null.title.encode()])
    for images in verdicts.IMAGES:
        variants = int(rng.choice(verdicts.VARIANTS))
        figures = verdicts.as_accuracies(null.families(rng, 400, variants, seeds), images)
        assert verdicts.differing_families(figures).sum() <= most(400)


def test_candidates_are_all_that_the_verdicts_find():
    rng = np.random.default_rng(18)
    for null in SYMMETRIC:
        figures = verdicts.as_accuracies(null.families(rng, 60, 2, 5), 100)
        candidates = verdicts.find_candidates(figures, ALPHA)
        for one, candidate in zip(figures, candidates, strict=True):
            words = judge_all(verdicts._family(one, PairedTestPlan()), True)
            assert candidate or not {verdict.word for verdict in words.values()} & {"better", "worse"}


def test_planned_looks_err_no_more_and_find_more_than_seeds_that_are_added():
    rng = np.random.default_rng(19)
    for null in (SYMMETRIC[0], SYMMETRIC[-1]):
        figures = verdicts.as_accuracies(null.families(rng, 400, 3, 10), 1000)
        assert verdicts.planned_families(figures).sum() <= most(400)
    values = rng.standard_normal((300, 2, 10)) / np.sqrt(2)
    values[:, 1] += 1.0
    assert verdicts.planned_families(10 + values).mean() > 0.68  # a first look and then the sequential test: 0.4


def test_crossings_and_largest_sizes_lie_in_their_intervals(monkeypatch):
    """Of 95 % intervals, in 40 comparisons each; the command's table has 1,000."""
    monkeypatch.setattr(verdicts, "LAWS", [law for law in verdicts.LAWS if "deviation" not in law.title][:3])
    (_, *rows) = verdicts.scales(40, np.random.default_rng(17), samples=150)
    for _, inside, _, _, predicted, _ in rows:
        for cell in (inside, predicted):
            assert 40 - 40 * float(cell.removesuffix(" %")) / 100 <= most(40) + 0.1


def test_two_laws_cross_where_they_say():
    for laws in verdicts.LAWS:
        at = np.array([laws.crossing])
        assert laws.loss(0, at) == pytest.approx(laws.loss(1, at))
        assert laws.loss(1, np.ones(1)) == pytest.approx(3.5)
        assert laws.loss(0, 2 * at) < laws.loss(1, 2 * at)


def test_the_command_prints_a_table(capsys):
    verdicts.main(["power", "--count", "50"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| effect, d_z |")
    assert len({line.count("|") for line in lines[2:] if line}) == 1
    with pytest.raises(SystemExit):
        verdicts.main(["nonsense"])

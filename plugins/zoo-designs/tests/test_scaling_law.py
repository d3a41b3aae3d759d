"""Power laws of loss: exact ones are recovered, and intervals hold what they should."""

import numpy as np
import pytest
from scipy import optimize
from zoo_designs.scale_result import LawBootstrap, fit_laws

COMPUTE = np.array([1.0, 2.1, 3.6, 7.8]) * 1e12


def law(irreducible, at_first, exponent, compute=COMPUTE):
    return irreducible + at_first * (compute / COMPUTE[0]) ** -exponent


@pytest.mark.parametrize("irreducible", [0.0, 1.7])
def test_exact_laws_are_recovered(irreducible):
    losses = np.stack([law(irreducible, 1.4, 0.2), law(irreducible, 1.5, 0.3)])
    laws = fit_laws(np.stack([COMPUTE, COMPUTE]), losses)
    assert laws.irreducible == pytest.approx(irreducible, abs=0.1)
    beyond = np.array([20e12])
    for curve, (height, exponent) in enumerate([(1.4, 0.2), (1.5, 0.3)]):
        assert laws.losses(curve, COMPUTE) == pytest.approx(losses[curve], abs=2e-4)
        assert laws.losses(curve, beyond) == pytest.approx(law(irreducible, height, exponent, beyond), abs=4e-3)


def test_two_sizes_have_a_law_without_an_irreducible_term():
    laws = fit_laws(COMPUTE[None, :2], law(0.0, 2.0, 0.1)[None, :2])
    assert (float(laws.irreducible), *laws.exponent) == (0.0, pytest.approx(0.1))
    with pytest.raises(ValueError, match="two sizes or more"):
        fit_laws(COMPUTE[None, :1], np.array([[2.0]]))


def test_the_fit_is_the_one_of_scipy():
    """Least squares of losses with a common E, by a search from many starts."""
    rng = np.random.default_rng(3)
    losses = np.stack([law(1.5, 2.0, 0.3), law(1.5, 2.1, 0.4)]) + 0.01 * rng.standard_normal((2, 4))
    x = COMPUTE / COMPUTE[0]

    def residuals(p):
        return (np.stack([p[0] + p[1] * x ** -p[2], p[0] + p[3] * x ** -p[4]]) - losses).ravel()

    best = optimize.least_squares(residuals, [1.5, 2.0, 0.3, 2.1, 0.4], bounds=([0, 0, 0, 0, 0], np.inf))
    laws = fit_laws(np.stack([COMPUTE, COMPUTE]), losses)
    ours = sum(((laws.losses(curve, COMPUTE) - losses[curve]) ** 2).sum() for curve in range(2))
    assert ours == pytest.approx(2 * best.cost, rel=0.05)
    assert float(laws.irreducible) == pytest.approx(best.x[0], abs=0.15)


def sample(rng, crossing=3.0, seeds=3, deviation=0.01):
    """Losses (2, 4, seeds) of a variant and a baseline whose laws cross at a multiple of the smallest compute."""
    means = np.stack([law(2.0, 1.5 * crossing**0.1, 0.3), law(2.0, 1.5, 0.2)])
    shared = rng.standard_normal((1, 4, seeds)) + rng.standard_normal((2, 4, seeds))
    return means[..., None] + deviation * np.sqrt(0.5) * shared


def test_a_crossing_is_inside_its_interval_and_the_largest_size_inside_its_prediction():
    rng = np.random.default_rng(5)
    compute = np.stack([COMPUTE, COMPUTE])
    inside = predicted = 0
    for _ in range(40):
        losses = sample(rng)
        crossing = LawBootstrap(compute, losses, samples=200).crossing(0, 1)
        assert crossing.possible
        inside += (crossing.low or 0) <= 3e12 <= (crossing.high or np.inf)
        expected = LawBootstrap(compute[:, :3], losses[:, :3], samples=200).difference(
            0, 1, (7.8e12, 7.8e12), measured=True
        )
        predicted += expected.holds(float((losses[0, 3] - losses[1, 3]).mean()))
    assert inside >= 34
    assert predicted >= 34


def test_what_is_expected_of_a_mean_is_wider_than_the_difference():
    compute, widths = np.stack([COMPUTE, COMPUTE])[:, :3], []
    for number in range(6):
        laws = LawBootstrap(compute, sample(np.random.default_rng(number))[:, :3])
        both = [laws.difference(0, 1, (4e12, 4e12), measured) for measured in (False, True)]
        widths.append([one.high - one.low for one in both])
    difference, expected = np.mean(widths, axis=0)
    assert expected > 1.1 * difference


def test_a_crossing_far_away_has_no_bound_or_is_none():
    losses = sample(np.random.default_rng(6), crossing=1.0)
    parallel = np.stack([losses[1] + 0.5, losses[1]])
    crossing = LawBootstrap(np.stack([COMPUTE, COMPUTE]), parallel, samples=200).crossing(0, 1)
    assert crossing.value is None
    noisy = sample(np.random.default_rng(7), crossing=30.0, deviation=0.2)
    wide = LawBootstrap(np.stack([COMPUTE, COMPUTE]), noisy, samples=200).crossing(0, 1)
    assert wide.possible
    assert None in (wide.low, wide.high)


def test_one_seed_has_estimates_and_no_intervals():
    losses = sample(np.random.default_rng(8), seeds=1)
    laws = LawBootstrap(np.stack([COMPUTE, COMPUTE]), losses)
    expected = laws.difference(0, 1, (7.8e12, 7.8e12), measured=True)
    assert np.isfinite(expected.value)
    assert np.isnan([expected.low, expected.high]).all()
    assert laws.crossing(0, 1).low is None


def test_the_same_runs_have_the_same_intervals():
    losses = sample(np.random.default_rng(9))
    one, other = (LawBootstrap(np.stack([COMPUTE, COMPUTE]), losses, samples=50).exponent(0) for _ in range(2))
    assert one == other

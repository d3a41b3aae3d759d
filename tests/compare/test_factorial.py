"""Main effects and interactions of a grid, against the t test of contrasts that numpy computes."""

import numpy as np
import pytest
from fabricate import run
from scipy import stats
from statsmodels.stats.multitest import multipletests

from zoo.compare import table
from zoo.compare.verdict import answer

SEEDS = 6
NORMS, POSITIONS = ("RMSNorm", "LayerNorm"), ("RoPE", "ALiBi", "T5")


def grid(effect=lambda norm, position: 0.0, leave_out=()):
    """Runs of 2 x 3 variants, their figures as an array (norm, position, seed), and the answer."""
    rng = np.random.default_rng(1)
    figures = 1.7 + 0.05 * rng.standard_normal(SEEDS) + 0.005 * rng.standard_normal((2, 3, SEEDS))
    runs = []
    for (n, p), norm, position in (((n, p), NORMS[n], POSITIONS[p]) for n in range(2) for p in range(3)):
        figures[n, p] += effect(n, p)
        name = ",".join(filter(None, (f"norm={norm}" if n else "", f"position={position}" if p else ""))) or "default"
        if (n, p) not in leave_out:
            for seed in range(SEEDS):
                value = {"loss": figures[n, p, seed]}
                changes = {"best": value, "last": value, "validations": [{"step": 1, "tokens": 1, **value}]}
                runs.append(run(name, seed + 1, choices={"norm": norm, "position": position}, **changes))
    return figures, answer(runs)


def test_a_main_effect_is_the_mean_over_the_other_option():
    figures, result = grid(lambda n, p: -0.05 * n)
    effects = {effect.name: effect for effect in result.effects}
    assert list(effects) == [
        "position RoPE → ALiBi", "position RoPE → T5", "norm RMSNorm → LayerNorm",
        "position ALiBi × norm LayerNorm", "position T5 × norm LayerNorm",
    ]  # fmt: skip
    contrast = (figures[1] - figures[0]).mean(axis=0)
    expected = stats.ttest_1samp(contrast, 0.0)
    norm = effects["norm RMSNorm → LayerNorm"].tested
    assert (norm.pair.mean, norm.pair.p) == pytest.approx((contrast.mean(), expected.pvalue))
    assert (norm.pair.low, norm.pair.high) == pytest.approx(expected.confidence_interval(1 - 0.05 / (5 + 5)))
    assert effects["norm RMSNorm → LayerNorm"].verdict.word == "better"
    assert {effect.verdict.word for effect in effects.values() if effect.interaction} == {"not distinguishable"}


def test_effects_and_verdicts_are_one_family():
    """Corrected apart, a grid without any effect had a false verdict or effect in 7 % of comparisons."""
    _, result = grid()
    every = [row.pair for row in result.rows[1:]] + [effect.tested.pair for effect in result.effects]
    adjusted = [row.adjusted for row in result.rows[1:]] + [effect.tested.adjusted for effect in result.effects]
    assert adjusted == pytest.approx(list(multipletests([pair.p for pair in every], method="holm")[1]))
    assert result.tests == len(every) == 10


def test_an_interaction_is_what_both_change_beyond_their_sum():
    figures, result = grid(lambda n, p: -0.08 * (n == 1 and p == 2))
    effects = {effect.name: effect for effect in result.effects}
    contrast = figures[1, 2] - figures[0, 2] - figures[1, 0] + figures[0, 0]
    tested = effects["position T5 × norm LayerNorm"].tested
    assert tested.pair.mean == pytest.approx(contrast.mean())
    assert tested.pair.p == pytest.approx(stats.ttest_1samp(contrast, 0.0).pvalue)
    assert effects["position T5 × norm LayerNorm"].verdict.word == "better"
    other = effects["position ALiBi × norm LayerNorm"]
    contrast = figures[1, 1] - figures[0, 1] - figures[1, 0] + figures[0, 0]
    assert other.tested.pair.mean == pytest.approx(contrast.mean())
    assert other.verdict.word == "not distinguishable"


def test_a_grid_with_a_gap_or_one_option_has_no_effects():
    assert grid(leave_out={(1, 1)})[1].effects == ()
    assert grid(leave_out={(1, 0), (1, 1), (1, 2)})[1].effects == ()


def test_effects_stand_below_the_table():
    _, result = grid(lambda n, p: -0.05 * n)
    text, markdown = table.compose_report(result).as_text(), table.compose_report(result).as_markdown()
    line = next(line for line in text.splitlines() if line.startswith("norm RMSNorm → LayerNorm"))
    assert line.endswith("better")
    assert "## Main effects and interactions" in markdown
    assert '"effects": [' in table.as_json(result)
    assert '"interaction": true' in table.as_json(result)


def test_a_grid_of_two_options_of_one_part_has_effects():
    """Both stand in one choice, `AdamW(betas=…, weight_decay=…)`; what varies are its options."""
    runs = []
    for name, betas, decay in (("default", None, None), ("b", "[0.9, 0.95]", None), ("d", None, 0.0),
                               ("b,d", "[0.9, 0.95]", 0.0)):  # fmt: skip
        config = {"model.optimizer": "AdamW", "model.optimizer.betas": betas, "model.optimizer.weight_decay": decay}
        config = {key: value for key, value in config.items() if value is not None}
        choices = {"optimizer": f"AdamW({betas}, {decay})"}
        for seed in range(1, SEEDS + 1):
            loss = 1.7 + 0.01 * seed - 0.1 * (betas is not None) + 0.001 * (seed % 3) * (decay is not None)
            value = {"loss": loss}
            changes = {"best": value, "last": value, "validations": [{"step": 1, "tokens": 1, **value}]}
            runs.append(run(name, seed, choices=choices, config=config, **changes))
    result = answer(runs, varied=["model.optimizer.betas", "model.optimizer.weight_decay"])
    assert [effect.name for effect in result.effects] == [
        "optimizer.betas default → [0.9, 0.95]",
        "optimizer.weight_decay default → 0.0",
        "optimizer.betas [0.9, 0.95] × optimizer.weight_decay 0.0",
    ]
    assert result.effects[0].tested.pair.mean == pytest.approx(-0.1)

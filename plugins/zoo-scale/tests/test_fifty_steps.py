"""`zoo fit` of recipes by every strategy: the losses of fifty steps are those of one process. A campaign of minutes."""

import os
from functools import partial
from pathlib import Path

import pytest

toys = pytest.importorskip("tests.campaigns.chaos.toys", reason="it is in zoo's checkout")
from tests.campaigns.chaos import lives, worlds  # noqa: E402 (where they are)

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(3600)]
STEPS = int(os.environ.get("STEPS", "50"))
SMALL = "--model.dim 64 --model.depth 2 --trainer.val_check_interval 25 --trainer.limit_val_batches 4"
RECIPES = {  # the options besides, what says the size of a batch, and that of one process
    "lm-tiny": (SMALL, "batch_size", 8),
    "translation-tiny": (SMALL, "max_tokens", 512),
    "vit-glyphs": (f"{SMALL} --model.dropout 0", "batch_size", 16),
    "llama-style-tiny": (SMALL, "batch_size", 8),
    "lm-tiny with parts of a package": (f"{SMALL} --model.attention softcap --model.ffn SquaredReLU", "batch_size", 8),
    "lm-delta-hybrid": (f"{SMALL} --model.depth 4 --model.hidden 128", "batch_size", 8),
}
STRATEGIES = {"ddp": (2, 2), "fsdp2": (2, 2), "tp": (2, 1), "fsdp2_tp2": (4, 2)}  # processes, shares of a batch
BOUNDS = {"64-true": 1e-6, "32-true": 1e-5}  # logged losses have 24 bits
PAIRS = [
    *((recipe, strategy) for recipe in list(RECIPES)[:5] for strategy in STRATEGIES),
    ("lm-delta-hybrid", "fsdp2"),
]


def losses(home, name, recipe, words, processes=1, share=1):
    """Every logged loss of a run of this name, by its tag and step. The processes are forks of this one."""
    options, size, whole = RECIPES[recipe]
    recipe = recipe.partition(" ")[0]
    command = [
        *("fit", recipe, "--name", name, *options.split(), f"--data.{size}", str(whole // share), "--overwrite"),
        *(
            "--trainer.max_steps",
            str(STEPS),
            "--trainer.accelerator",
            "cpu",
            "--trainer.log_every_n_steps",
            "1",
            *words,
        ),
        *("--trainer.devices", str(processes)),
    ]
    ready = partial(worlds.ready, processes) if processes > 1 else None
    code = lives.ended(lives.born(command, home, home / "log", ready), 1800)
    assert code == 0, f"{command}\n{(home / 'log').read_text()[-3000:]}"
    scalars = toys.scalars(Path(home, "runs", recipe, name, "s1"))
    return {(tag, step): value for tag, values in scalars.items() if "loss" in tag for step, value in values}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """The losses of one process, computed once for each recipe and precision."""
    lives.load()
    curves = {}

    def get(recipe, precision):
        if (recipe, precision) not in curves:
            home = tmp_path_factory.mktemp("one")
            curves[recipe, precision] = losses(home, "one", recipe, ["--trainer.precision", precision])
        return curves[recipe, precision]

    return get


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize(("recipe", "strategy"), PAIRS)
def test_losses_are_those_of_one_process(recipe, strategy, precision, single, tmp_path):
    if "package" in recipe or "delta" in recipe:
        pytest.importorskip("zoo_frontier", reason="the parts are those of the package zoo-frontier")
    expected = single(recipe, precision)
    processes, shares = STRATEGIES[strategy]
    several = ["--trainer.strategy", strategy, "--trainer.precision", precision]
    actual = losses(tmp_path, "several", recipe, several, processes, shares)
    assert actual.keys() == expected.keys()
    gaps = {key: abs(actual[key] - expected[key]) for key in expected}
    worst = max(gaps, key=gaps.get)
    print(f"{recipe} · {strategy} × {processes} · {precision}: {len(gaps)} losses, {gaps[worst]:.1e} at {worst}")
    assert gaps[worst] < BOUNDS[precision]

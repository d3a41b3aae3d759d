"""Parameters and FLOPs of real models, matched by the width of the feed-forward, and what a step holds."""

from types import SimpleNamespace

import pytest
from lightning.pytorch import seed_everything

from tests.covering import choices_in_turn
from zoo.compare import match_and_tune
from zoo.compare.plan import Arm, Choice, Point
from zoo.errors import UsageError
from zoo.inference.rebuild_task import rebuild_task
from zoo.training import config_meter
from zoo.training.config_meter import ConfigMeter

PARTS = "zoo.parts"
WIDE = {"vocab_size": 300, "max_length": 32, "dim": 512, "depth": 1, "heads": 8}


def part(name, **options):
    return {"class_path": f"{PARTS}.{name}", "init_args": options}


def config(path, **options):
    model = {"class_path": "zoo.tasks.lm.CausalLM", "init_args": {**WIDE, "hidden": None, **options}}
    data = {
        "class_path": "zoo.data.text.TextFiles",
        "init_args": {"path": str(path), "max_length": 32, "batch_size": 4},
    }
    return {"model": model, "data": data, "trainer": {}}


class Fits:
    """Takes --model.hidden alone."""

    def __init__(self, configs):
        self.configs = configs

    def point(self, words):
        result = dict(self.configs[words[0]])
        for word in words[1:]:
            key, _, value = word.partition("=")
            assert key == "--model.hidden"
            model = result["model"]
            result["model"] = {**model, "init_args": {**model["init_args"], "hidden": int(value)}}
        return Point(None, "toy", "/".join(words), result)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("all work and no play makes a dull toy " * 100)
    return path


@pytest.fixture(scope="module")
def meter():
    return ConfigMeter()


def arms(configs):
    fits = Fits(configs)
    return [Arm((), (name,), fits.point((name,))) for name in configs], fits


def real(config):
    """Parameters of the model that would be trained, counted on it."""
    return sum(p.numel() for p in rebuild_task(config, "test").net.parameters())


GELU = part("ffn.MLP", activation="gelu")


OTHERS = [
    {"ffn": part("ffn.SwiGLU")},
    {"ffn": part("ffn.SwiGLU", bias=True)},
    {"ffn": part("ffn.SwiGLU"), "position": part("position.Learned")},
    {"ffn": part("ffn.MoE", experts=2, top_k=2), "hidden": 777},
]


@pytest.mark.parametrize(("other", "what"), choices_in_turn(OTHERS, ["params", "flops"]))
def test_a_matched_variant_is_within_a_thousandth(what, other, text, meter):
    result, fits = arms({"a": config(text, ffn=GELU), "b": config(text, **other)})
    done = match_and_tune.match_size(result, what, fits, meter)
    ours, theirs = (meter.cost(arm.point.config) for arm in done)
    one, two = (match_and_tune.amount(cost, what) for cost in (ours, theirs))
    assert abs(two / one - 1) < 1e-3
    assert done[0] is result[0]
    assert f"{two / one - 1:+.3%} from the baseline's" in done[1].notes[0]
    assert done[1].solved.startswith("hidden ")  # which keeps the width out of what varies
    if what == "params":
        assert real(done[1].point.config) == theirs.parameters


def test_gated_with_biases_needs_another_width_than_without(text, meter):
    """By hand, d = 512: plain 2dh + h + d; gated 3dw, and 2w + d more with biases, with w = floor(2h/3)."""
    gated = {"a": GELU, "b": part("ffn.SwiGLU", bias=False), "c": part("ffn.SwiGLU", bias=True)}
    result, fits = arms({name: config(text, ffn=ffn, hidden=1000) for name, ffn in gated.items()})
    mlp_size = 2 * 512 * 1000 + 1000 + 512
    done = match_and_tune.match_size(result, "params", fits, meter)
    for arm, width in zip(
        done[1:], (round(mlp_size / (3 * 512)), round((mlp_size - 512) / (3 * 512 + 2))), strict=True
    ):
        hidden = arm.point.config["model"]["init_args"]["hidden"]
        assert 2 * hidden // 3 == width
        assert hidden == 1000 or 2 * (hidden - 1) // 3 < width  # the smallest of those that give it


def test_a_wide_enough_width_is_found_for_a_large_baseline(text, meter):
    result, fits = arms({"a": config(text, ffn=GELU, hidden=9000), "b": config(text, ffn=part("ffn.GEGLU"), hidden=8)})
    ours, theirs = (meter.cost(arm.point.config) for arm in match_and_tune.match_size(result, "params", fits, meter))
    assert abs(theirs.parameters / ours.parameters - 1) < 1e-3


def test_counting_takes_no_memory_and_leaves_the_seed_alone(text, meter):
    import torch

    seed_everything(5, verbose=False)
    before = torch.random.get_rng_state()
    huge = config(text, dim=65536, depth=4, heads=64)
    assert meter.cost(huge).parameters > 100e9
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_task_without_that_width_says_so(text, meter):
    result, fits = arms({"a": config(text), "b": config(text)})
    for arm in result:
        del arm.point.config["model"]["init_args"]["hidden"]
    with pytest.raises(UsageError, match=r"--match solves for model\.hidden, and task CausalLM has no such option"):
        match_and_tune.match_size(result, "params", fits, meter)


def test_the_width_itself_cannot_vary(text, meter):
    result, fits = arms({"a": config(text), "b": config(text)})
    varied = Arm((Choice("model.hidden", "3"),), result[1].words, result[1].point)
    with pytest.raises(UsageError, match=r"sets model\.hidden, so it cannot be a varied option: remove it"):
        match_and_tune.match_size([result[0], varied], "params", fits, meter)


@pytest.mark.parametrize(
    ("trainer", "count"),
    [
        ({}, 128), ({"accumulate_grad_batches": 3}, 384), ({"devices": 2}, 256), ({"devices": "2"}, 256),
        ({"devices": [0, 1]}, 256), ({"devices": "0,1"}, 256), ({"devices": "1,"}, 128),
        ({"devices": 2, "num_nodes": 2}, 512), *(({"devices": word}, 128) for word in ("auto", -1, "-1")),
        ({"devices": 4, "strategy": "of_all"}, 128), ({"devices": 4, "strategy": "of_two"}, 256),
    ],
)  # fmt: skip
def test_predictions_in_a_step(trainer, count, text, meter, monkeypatch):
    for name, size in {"of_all": None, "of_two": 2}.items():
        entry = {"strategy": SimpleNamespace(tensor_parallel=size)}
        monkeypatch.setitem(config_meter.StrategyRegistry, name, entry)
    small = config(text, dim=8, heads=2, depth=1)
    assert meter.tokens_per_step({**small, "trainer": {"accelerator": "cpu", **trainer}}) == count


@pytest.mark.parametrize("devices", [None, "auto", -1])
def test_predictions_in_a_step_on_devices_that_only_the_machine_tells(devices, text, meter, monkeypatch):
    small = config(text, dim=8, heads=2, depth=1)
    monkeypatch.setattr(config_meter, "plan_trainer", lambda *_, **__: SimpleNamespace(num_devices=8))
    with pytest.raises(UsageError, match="this machine has 8: name their number"):
        meter.tokens_per_step({**small, "trainer": {"devices": devices}})


def test_parts_that_do_not_fit_are_refused_without_data(text, meter, tmp_path):
    wrong = config(tmp_path / "no such file", position=part("position.ALiBi"), backend=part("backend.Flash"))
    with pytest.raises(UsageError, match="adds a bias to the scores, which backend Flash cannot take"):
        meter.check(wrong)
    meter.check(config(tmp_path / "no such file", position=part("position.ALiBi")))
    with pytest.raises(UsageError, match="not divisible by heads"):
        meter.check(config(text, heads=7))


@pytest.mark.parametrize("guess", [1, 7, 50, 51, 400])
@pytest.mark.parametrize("target", [1, 8, 500, 505])
def test_the_smallest_width_is_the_same_from_every_guess(guess, target):
    assert match_and_tune._first(lambda width: 10 * width, target, guess) == max(1, -(-target // 10))

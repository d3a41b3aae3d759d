"""What is not equal is said by name, what cannot be compared is refused, and what is equal raises nothing."""

from dataclasses import replace

import numpy as np
import pytest
from fabricate import run, study

from zoo.compare.comparability import find_flags, speed_ratio
from zoo.compare.run_records import closest_to_recipe


def pair(seeds=2, base=None, **changes):
    """A baseline and one variant, of which every run has the changes."""
    usual = [run("default", seed, **(base or {})) for seed in range(1, seeds + 1)]
    return usual + [
        run("position=alibi", seed, choices={"position": "ALiBi"}, **changes) for seed in range(1, seeds + 1)
    ]


def messages(ledgers, **options):
    return [flag.sentence for flag in find_flags(ledgers, **options)]


def test_equal_runs_raise_nothing():
    assert find_flags(study({"default": 1.7, "position=ALiBi": 1.6, "position=Learned": 1.9})) == []


def test_unequal_tokens_are_refused_by_name():
    (flag,) = find_flags(pair(base={"tokens": 3_100_000}, tokens=1_900_000))
    assert flag.sentence == "these runs are not comparable: tokens 1.9M (position=alibi) against 3.1M (default)"
    assert flag.fatal
    assert flag.about == "tokens"
    assert flag.refuses("position=alibi")
    assert not flag.refuses("norm=rmsnorm")


def test_amounts_that_are_almost_equal_are_told_with_enough_digits():
    (flag,) = find_flags(pair(base={"tokens": 3_100_000}, tokens=3_108_000))
    assert "tokens 3.11M (position=alibi) against 3.10M (default)" in flag.sentence
    assert find_flags(pair(base={"tokens": 3_100_000}, tokens=3_100_500)) == []


def test_one_seed_that_saw_less_is_named():
    runs = [*pair(2), run("position=alibi", 3, choices={"position": "ALiBi"}, tokens=1_900_000), run("default", 3)]
    assert "1.9M (position=alibi s3) against 6.1M (default)" in messages(runs)[0]


def test_a_baseline_that_is_unequal_in_itself_refuses_all():
    flag = find_flags([*pair(3), run("default", 4, tokens=1_000_000)])[0]
    assert flag.fatal
    assert flag.variants == ()
    assert flag.refuses("position=alibi")
    data = find_flags([*pair(3), run("default", 4, **{"data.fingerprint": "x"})])[0]
    assert data.about == "data"
    assert data.refuses("position=alibi")


def test_a_run_that_diverged_may_have_seen_fewer_tokens():
    runs = [*pair(2), run("position=alibi", 3, choices={"position": "ALiBi"}, diverges=1000), run("default", 3)]
    assert [flag for flag in find_flags(runs) if flag.fatal] == []


@pytest.mark.parametrize(
    ("budget", "changes", "fatal"),
    [
        ("flops=1e13", {"tokens": 3_072_000, "cost.flops_per_token": 3.68e6}, False),
        ("flops=1e13", {"tokens": 3_072_000}, True),
        ("time=180", {"tokens": 3_072_000, "cost.seconds": 183.0}, False),
        ("time=180", {"cost.seconds": 283.0}, True),
        ("tokens=6e6", {"tokens": 3_072_000}, True),
    ],
)
def test_a_budget_says_what_must_be_equal(budget, changes, fatal):
    result = find_flags(pair(base={"setting.budget": budget}, **{"setting.budget": budget, **changes}))
    assert [flag.about for flag in result if flag.fatal] == ["tokens"] * fatal


@pytest.mark.parametrize(
    ("changes", "about", "words"),
    [
        (
            {"data.fingerprint": "0123456789abcdef"},
            "data",
            "data: StdlibDocs 01234567 (position=alibi) against StdlibDocs",
        ),
        ({"data.class": "TextFiles"}, "data", "TextFiles"),
        ({"unit": "image"}, "unit", "unit: image (position=alibi) against token (default)"),
        ({"goals": {"loss": "max"}}, "goals", "goals: loss (max) of the next token (position=alibi) against"),
        ({"goals": {"f1": "max"}}, "goals", "goals: f1 (max) of the next token (position=alibi) against"),
        ({"prediction": "a class"}, "goals", "bits_per_byte (min) and loss (min) of a class (position=alibi) against"),
    ],
)
def test_other_data_and_other_goals_are_refused(changes, about, words):
    flag = find_flags(pair(base={"prediction": "a token"} if "prediction" in changes else {}, **changes))[0]
    assert flag.fatal
    assert flag.about == about
    assert words in flag.sentence


def test_metrics_that_not_all_tasks_have_are_named():
    (flag,) = find_flags(pair(goals={"loss": "min", "middle_loss": "min"}))
    assert flag.sentence == (
        "different goals: bits_per_byte of default alone and middle_loss of position=alibi alone. "
        "What all have decides: loss"
    )
    assert (flag.fatal, flag.about, flag.variants) == (False, "goals", ("position=alibi",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "bf16-mixed"), ("accumulate", 4), ("optimizer", "SGD"), ("schedule", "Constant()"),
        ("batch", {"batch_size": 24, "max_length": 64}), ("max_steps", 6000), ("torch", "2.14.0"), ("python", "3.13.0"),
    ],
)  # fmt: skip
def test_other_settings_are_flagged_by_name(name, value):
    (flag,) = find_flags(pair(**{f"setting.{name}": value}))
    assert not flag.fatal
    assert flag.sentence.startswith(f"different {name}: ")
    assert "(position=alibi) against" in flag.sentence


@pytest.mark.parametrize(
    ("choices", "setting"),
    [
        ({"optimizer": "SGD"}, {"setting.optimizer": "SGD"}),
        ({"schedule": "Constant"}, {"setting.schedule": "Constant()"}),
        ({"warmup": 500}, {"setting.schedule": "Cosine(warmup=500)"}),
        ({"trainer.precision": "bf16"}, {"setting.precision": "bf16"}),
        ({"data.batch_size": 24}, {"setting.batch": {"batch_size": 24, "max_length": 64}}),
    ],
)
def test_the_varied_option_itself_is_no_flag(choices, setting):
    base = [run("default", seed, choices=dict.fromkeys(choices, "x")) for seed in (1, 2)]
    assert find_flags([*base, *(run("varied", seed, choices=choices, **setting) for seed in (1, 2))]) == []
    assert (
        len(
            find_flags(
                [*base, *(run("varied", seed, choices=dict.fromkeys(choices, "x"), **setting) for seed in (1, 2))]
            )
        )
        == 1
    )


@pytest.mark.parametrize(("name", "value"), [("device", "cuda"), ("machine", "Xeon"), ("threads", 8), ("processes", 2)])
def test_other_hardware_concerns_speed_alone(name, value):
    (flag,) = find_flags(pair(**{f"setting.{name}": value}))
    assert flag.about == "speed"
    assert not flag.fatal
    assert flag.sentence.startswith(f"speed and memory are not comparable: different {name}: {value} (position=alibi)")


def test_other_batches_are_flagged_with_their_seeds():
    late = [
        *pair(2),
        run("default", 3),
        run("position=alibi", 3, choices={"position": "ALiBi"}, **{"batches.digest": "x"}),
    ]
    assert messages(late) == ["other batches than default later on: pairing by seed is weaker: position=alibi s3"]
    first = pair(**{"batches.first": ["x"], "batches.digest": "x"})
    assert messages(first) == ["other batches than default from the start: pairing by seed is weaker: position=alibi"]
    assert find_flags(pair(**{"batches.digest": "x", "batches.count": 7})) == []  # as many as the budget lets each see


def test_initial_tensors_that_should_be_shared_are_flagged_by_name():
    runs = pair(2, **{"start": {"net.embedding.weight": "other", "net.stack.norm.weight": "other", "net.new": "x"}})
    (sentence,) = messages(runs)
    assert sentence.startswith(
        "2 shared initial tensors not as in default, net.embedding.weight and net.stack.norm.weight"
    )
    assert sentence.endswith("position=alibi")


@pytest.mark.parametrize(
    ("choice", "tensor", "flagged"),
    [
        ("ffn", "net.stack.blocks.0.ffn.part.up.weight", False),
        ("ffn", "net.stack.blocks.0.ffn.norm.weight", True),
        ("ffn", "net.stack.blocks.0.attend.part.qkv.weight", True),
        ("hidden", "net.stack.blocks.0.ffn.part.up.weight", False),
        ("norm", "net.stack.blocks.0.ffn.norm.weight", False),
        ("norm", "net.stack.norm.weight", False),
        ("norm", "net.embedding.weight", True),
        ("attention", "net.stack.blocks.0.attend.part.qkv.weight", False),
        ("attention", "net.stack.blocks.0.ffn.part.up.weight", True),
        ("model.position", "net.stack.position.table.weight", False),
        ("block", "net.stack.blocks.0.attend.behind.weight", False),
        ("block", "net.stack.blocks.0.ffn.part.up.weight", True),
        ("dim", "net.embedding.weight", False),
        ("lr", "net.embedding.weight", True),
    ],
)
def test_tensors_of_the_varied_part_are_aside(choice, tensor, flagged):
    runs = [run("default", 1, choices={choice: "a"}, start={tensor: "1"})]
    runs += [run("other", 1, choices={choice: "b"}, start={tensor: "2"})]
    assert [flag.about for flag in find_flags(runs)] == ["start"] * flagged


def test_parameters_beside_a_baseline_without_any_are_flagged():
    assert messages(pair(base={"cost.parameters": 0}, **{"cost.parameters": 1051})) == [
        "1.05k more parameters than default (--match params makes them equal): position=alibi"
    ]


def test_parameters_beyond_five_percent_are_flagged():
    assert messages(pair(base={"cost.parameters": 1000}, **{"cost.parameters": 1051})) == [
        "5 % more parameters than default (--match params makes them equal): position=alibi"
    ]
    assert "10 % fewer parameters" in messages(pair(base={"cost.parameters": 1000}, **{"cost.parameters": 900}))[0]
    assert find_flags(pair(base={"cost.parameters": 1000}, **{"cost.parameters": 1049})) == []


def test_speed_that_spreads_is_flagged():
    assert messages(pair(**{"cost.spread": 0.23})) == [
        "speed spread by up to 23 % within a run (a busy machine?): position=alibi"
    ]
    slow = [
        *pair(2),
        run("default", 3),
        run("position=alibi", 3, choices={"position": "ALiBi"}, **{"cost.tokens_per_s": 5000}),
    ]
    (sentence,) = messages(slow)
    assert "% between seeds (a busy machine?): position=alibi" in sentence


def test_unfinished_damaged_and_doubled_runs_are_named(tmp_path):
    waiting = run("position=alibi", 3, choices={"position": "ALiBi"}, finished=False, steps=1200)
    damaged = replace(run("default", 4), problem="runs/x/ledger.json is damaged: why")
    result = messages([*pair(2), run("default", 3), waiting, damaged, run("default", 1)])
    assert "not finished and not counted: position=alibi s3" in result
    assert "runs/x/ledger.json is damaged: why: it does not count" in result
    assert any("is a second default s1" in sentence for sentence in result)
    assert find_flags([damaged])[0].about == "reading"


def test_the_baseline_is_default_or_the_first():
    assert closest_to_recipe(["a", "default", "b"]) == "default"
    assert closest_to_recipe(["x/a", "x/default"]) == "x/default"
    assert closest_to_recipe(["b", "a"]) == "b"


def test_flags_are_told_against_the_baseline_that_was_named():
    runs = pair(base={"tokens": 3_100_000}, tokens=1_900_000)
    assert "1.9M" in messages(runs)[0].partition("against")[0]
    assert "3.1M (default) against 1.9M (position=alibi)" in messages(runs, baseline="position=alibi")[0]


def test_tokens_are_compared_seed_by_seed():
    """Batches of so many padded tokens hold more real ones with some seeds, for all variants alike."""
    runs = [replace(each, tokens=each.tokens + 50_000 * each.seed) for each in pair(3)]
    assert messages(runs) == []
    less = [replace(each, tokens=1) if each.seed == 2 and each.variant != "default" else each for each in runs]
    (sentence,) = messages(less)
    assert "tokens 1 (position=alibi s2) against" in sentence


def test_fatal_flags_come_first():
    result = find_flags(pair(tokens=1_000, **{"setting.precision": "16", "cost.spread": 0.5}))
    assert [flag.fatal for flag in result] == [True, False, False]


CODE = {"zoo": {"version": "1", "source": "c0de" * 4, "libraries": {"numpy": "2.0", "tokenizers": "0.22"}}}


def with_libraries(**versions):
    return {"zoo": {**CODE["zoo"], "libraries": {**CODE["zoo"]["libraries"], **versions}}}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"code": with_libraries(numpy="1.26")}, "different numpy: 1.26 against 2.0 of default"),
        ({"code": with_libraries(tokenizers="0.21")}, "different tokenizers: 0.21 against 0.22 of default"),
        ({"code": CODE, "earlier_code": [with_libraries(numpy="1.26")]}, "different numpy: 1.26 and 2.0 against 2.0"),
        ({"code": CODE, "outcome": {"state": "finished", "skipped": 15}}, "15 of 3000 steps were left out"),
    ],
)
@pytest.mark.parametrize("seeds", [(1, 2), (2,)])
def test_what_a_run_was_made_with_and_what_it_left_out_is_named(changes, word, seeds):
    runs = [replace(one, code=CODE) for one in pair(2)]
    runs = [replace(one, **changes) if one.variant != "default" and one.seed in seeds else one for one in runs]
    (flag,) = find_flags(runs)
    assert word in flag.sentence
    assert not flag.fatal
    assert ("s2" in flag.sentence) is (seeds == (2,))


@pytest.mark.parametrize("whose", ["default", "position=alibi"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_went_on_with_other_options_is_not_pooled(whose, seed):
    resumed = [{"step": 100, "changes": {"model.lr": [0.1, 0.2]}}]
    runs = [replace(one, resumed=resumed) if (one.variant, one.seed) == (whose, seed) else one for one in pair(2)]
    (flag,) = find_flags(runs)
    assert flag.fatal
    assert flag.refuses("position=alibi")
    assert "was resumed with other options: model.lr 0.1 → 0.2" in flag.sentence
    assert f"s{seed}" in flag.sentence


def speeds(variant, values):
    return {seed: run(variant, seed, **{"cost.tokens_per_s": value}) for seed, value in enumerate(values, 1)}


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("variants", [1, 3])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_equal_speed_on_a_noisy_machine_is_not_called_another(seeds, variants, noise):
    rng = np.random.default_rng([seeds, variants])
    count, claims = 400, 0
    for _ in range(count):
        factors = np.exp(noise * rng.standard_normal((variants + 1, seeds)))
        base, *others = (speeds("default", 1000 * each) for each in factors)
        claims += any(speed_ratio(each, base, variants)[0].excludes(1.0) for each in others)
    assert claims / count <= 0.05 + 3 * (0.05 * 0.95 / count) ** 0.5


@pytest.mark.parametrize(
    ("base", "other", "claim"),
    [
        ([1000, 1010, 990], [1400, 1420, 1390], "trains at 1.4 times the speed of default (95 % interval 1."),
        ([1000, 1010, 990], [400, 405, 395], "trains at 0.4 times the speed of default (95 % interval 0."),
        ([1000, 1010, 990], [1400, 700, 2100], ""),  # scattered
        ([1000], [1400], ""),  # one seed
        ([1000, 1010, 990], [1100, 1110, 1090], ""),  # shown, and small
        ([1000, 1000, 1000], [1000, 1000, 1000], ""),
    ],
)
def test_another_speed_is_said_where_its_interval_excludes_equal_speed(base, other, claim):
    runs = [*speeds("default", base).values(), *speeds("position=alibi", other).values()]
    claims = [message for message in messages(runs) if "times the speed" in message]
    assert len(claims) == bool(claim)
    assert claim in "".join(claims)


@pytest.mark.parametrize(("key", "name"), [("position.base", "position"), ("optimizer.betas", "optimizer")])
def test_an_option_of_a_part_that_varies_on_purpose_is_no_hidden_cause(key, name):
    runs = [run("default", seed, choices={name: "X(1)"}) for seed in (1, 2)]
    runs += [run(f"{key}=2", seed, choices={name: "X(2)"}) for seed in (1, 2)]
    assert find_flags(runs, varied={key}) == []
    assert find_flags(runs, varied={"norm.eps"})


def test_runs_without_training_are_compared():
    assert find_flags(pair(base={"tokens": 0}, tokens=0)) == []
    assert [flag.about for flag in find_flags(pair(base={"tokens": 0}, tokens=9)) if flag.fatal]

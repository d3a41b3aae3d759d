"""The sizes of a comparison: how they are named, what they train with, and what their runs say."""

import pytest
from zoo_designs import scale_runs
from zoo_designs.designs import Scale

from tests.compare.fake_zoo import Costs, Fits
from zoo.cli import find_command
from zoo.compare import command
from zoo.compare.plan import Arm, Comparison, Point, parse_factors, variant_text
from zoo.compare.prepare_runs import Stage
from zoo.errors import UsageError


def request(*scale, **more):
    values = {"scale": list(scale)}
    return Comparison("toy", parse_factors(["model.position=rope,alibi"]), design=Scale(), design_values=values, **more)


def test_sizes_take_one_value_of_each_option():
    sizes = scale_runs.check_scale(request("dim=64,96,128", "trainer.max_steps=10,20,30"))
    assert [variant_text(size) for size in sizes] == [
        "dim=64,max_steps=10",
        "dim=96,max_steps=20",
        "dim=128,max_steps=30",
    ]
    assert tuple(choice.word for choice in sizes[1]) == ("--model.dim=96", "--trainer.max_steps=20")


@pytest.mark.parametrize(
    ("scale", "more", "message"),
    [
        (["dim=64,96"], {}, "two sizes to fit and one to predict"),
        (["dim"], {}, "is not OPTION=VALUE"),
        (["dim=64,96,96"], {}, "a value occurs twice"),
        (["dim=1,2,3", "depth=1,2,3,4"], {}, "has 3 values and model.depth has 4"),
        (["position=a,b,c"], {}, "either varies or makes the size"),
        (["dim=1,2,3", "model.dim=4,5,6"], {}, "either varies or makes the size"),
        (["speed.x=1,2,3"], {}, "cannot vary"),
        (["dim=1,2,3"], {"until": "decided"}, "--until does not go with --scale"),
        (["dim=1,2,3"], {"budget": "flops=1e15"}, "--budget flops gives the variants of each size"),
        (["dim=1,2,3"], {"budget": "time=1m"}, "needs different ones"),
    ],
)
def test_no_sizes(scale, more, message):
    with pytest.raises(UsageError, match=message):
        scale_runs.check_scale(request(*scale, **more))


def test_a_budget_of_flops_is_that_of_the_baseline_of_each_size(tmp_path):
    comparison = request("trainer.max_steps=10,20,30", budget="flops")
    sizes = scale_runs.check_scale(comparison)
    budgets = [scale_runs.comparison_at(comparison, size, Fits(tmp_path), Costs()).budget for size in sizes]
    each = 3 * 40 * Costs().cost(Fits(tmp_path).point(("toy",)).config).flops
    assert [float(text.removeprefix("flops=")) for text in budgets] == pytest.approx([10 * each, 20 * each, 30 * each])
    requests = comparison.procedure.command_lines(
        comparison, lambda each: [each]
    )  # without a model there is no budget yet
    assert [(each.budget, each.options) for each in requests] == [
        (None, tuple(choice.word for choice in size)) for size in sizes
    ]


def point(dim, heads, init="zoo.models.initialization.MuP"):
    config = {"model": {"class_path": "x.Toy", "init_args": {"dim": dim, "heads": heads, "init": {"class_path": init}}}}
    return Point(None, "toy", "default", config)


def test_heads_keep_their_width_with_mup():
    assert scale_runs.heads_of_one_width(point(128, 4), point(192, 4), ()) == ("--model.heads=6",)
    assert scale_runs.heads_of_one_width(point(128, 4), point(128, 4), ()) == ()
    assert scale_runs.heads_of_one_width(point(128, 4), point(192, 4), ("--model.heads=2",)) == ()
    assert scale_runs.heads_of_one_width(point(128, 4, "x.FanIn"), point(192, 4, "x.FanIn"), ()) == ()
    with pytest.raises(UsageError, match="all heads have one width, 32 in this recipe, and dim=100"):
        scale_runs.heads_of_one_width(point(128, 4), point(100, 4), ())


@pytest.mark.parametrize(
    ("tune", "init", "words"),
    [("model.lr=0.1,0.2", "x.FanIn", "was chosen for each variant at each size"), (None, "x.MuP", "by muP"),
     (None, "x.FanIn", "which suits one of them")],
)  # fmt: skip
def test_what_is_said_of_the_learning_rate(tune, init, words):
    arms = [Arm((), (), point(64, 2, init))]
    (note,) = scale_runs.rate_notes(request("dim=1,2,3", tune=tune), arms)
    assert words in note


def test_variants_that_some_size_lacks_are_left_out(tmp_path):
    fits = Fits(tmp_path)
    arms = {value: Arm(tuple(parse_factors([f"model.position={value}"])[0].choices()), (), fits.point(("toy",)))
            for value in ("rope", "alibi", "t5")}  # fmt: skip
    sizes = [Stage(request("dim=1,2,3"), tuple(arms[name] for name in names), label=str(names)) for names in
             (("rope", "alibi", "t5"), ("rope", "t5"), ("t5", "rope"))]  # fmt: skip
    aligned = scale_runs.align_variants(sizes)
    assert [[arm.variant[0].value for arm in each.arms] for each in aligned] == [["rope", "t5"]] * 3
    assert [each.label for each in aligned] == [each.label for each in sizes]
    assert [list(each.invalid) for each in aligned] == [["position=alibi"]] * 3
    with pytest.raises(UsageError, match="no variant can be built at all sizes"):
        scale_runs.align_variants([Stage(request("dim=1,2,3"), (arms["rope"],))] * 2)


def test_a_file_says_sizes_as_a_command_line_does(tmp_path):
    path = tmp_path / "sizes.yaml"
    path.write_text(
        "recipe: lm-tiny\nvary: {model.norm: [rmsnorm, layernorm]}\n"
        "scale: {dim: [64, 96, 128], trainer.max_steps: [10, 20, 30]}\ntune_seeds: 3\n"
    )
    comparison = command.read_comparison(find_command.parse(find_command.find_command("compare"), [str(path)]))
    assert scale_runs.scale_texts(comparison) == ["dim=64,96,128", "trainer.max_steps=10,20,30"]
    assert comparison.tune_seeds == 3
    words = ["lm-tiny", "--vary", "model.norm=a,b", "--scale", "dim=1,2,3", "--scale", "heads=1,2,3"]
    comparison = command.read_comparison(find_command.parse(find_command.find_command("compare"), words))
    assert scale_runs.scale_texts(comparison) == ["dim=1,2,3", "heads=1,2,3"]

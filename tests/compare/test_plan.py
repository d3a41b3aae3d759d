"""From what is asked to the runs: variants once, budgets, tuning, states, and what an existing run differs in."""

import json
import shlex
from dataclasses import replace

import pytest

from tests.compare.fake_compare import how
from tests.compare.fake_compare import jobs as toys
from tests.compare.fake_zoo import Costs, Fits
from zoo.compare import match_and_tune, plan, prepare_runs, run_records
from zoo.compare.parallel_runs import execute
from zoo.compare.plan import Comparison, parse_factors
from zoo.compare.prepare_runs import complete_runs, draft_runs
from zoo.errors import UsageError, ZooError
from zoo.io.locks import Lock
from zoo.logging import run_state


def request(*vary, **more):
    return Comparison("toy", parse_factors(vary or ["model.position=rope,alibi"]), **more)


def never(arms, seeds):
    pytest.fail("nothing has to be run to know this")


def prepare(comparison, fits, meter, execute):
    return complete_runs(draft_runs(comparison, fits, meter), fits, meter, execute)


def names(design):
    return [arm.name for arm in design.arms]


@pytest.fixture
def fits(tmp_path):
    return Fits(tmp_path)


def finish(folder, **record):
    folder.mkdir(parents=True)
    content = {"finished": True, "goals": {"loss": "min"}, "best": {"loss": 1.0}, "last": {"loss": 1.0}, **record}
    (folder / "ledger.json").write_text(json.dumps(content))
    (folder / "finished.json").write_text("{}")


# variants


def test_every_variant_is_there_once_the_baseline_first(fits):
    design = prepare(request("model.position=alibi,rope,ROPE,learned"), fits, Costs(), never)
    assert names(design) == ["default", "position=alibi", "position=learned"]
    design = prepare(request("model.position=alibi,rope", base="position=alibi"), fits, Costs(), never)
    assert names(design) == ["position=alibi", "default"]
    design = prepare(request("model.position=alibi,t5", "model.ffn=glu", base="position=t5"), fits, Costs(), never)
    assert names(design) == ["position=t5", "ffn=glu,position=alibi", "ffn=glu,position=t5"]


def test_variants_that_differ_and_share_a_name_are_refused(fits, monkeypatch):
    """Names have the last part of a path: one of two files of that name would never have been run."""
    real = Fits.point

    def point(self, words):
        result = real(self, words)
        parts = dict(result.config["model"]["init_args"])
        return replace(result, variant=result.variant.replace("da_", "").replace("db_", ""),
                       config={**result.config, "model": {"class_path": "x.Toy", "init_args": parts}})  # fmt: skip

    monkeypatch.setattr(Fits, "point", point)
    with pytest.raises(UsageError, match=r"position=db_text and position=da_text would both be called position=text"):
        prepare(request("model.position=da_text,db_text"), fits, Costs(), never)


def test_tasks_vary_and_an_option_of_one_is_left_out_of_the_others(fits):
    design = prepare(request("model=Toy,Far", "model.ahead=1,2", options=("--model.lr=0.5",)), fits, Costs(), never)
    assert names(design) == ["lr=0.5", "ahead=1,lr=0.5,model=far", "ahead=2,lr=0.5,model=far"]
    assert design.arms[0].words == ("toy", "--model.lr=0.5")
    assert design.arms[2].words == ("toy", "--model.lr=0.5", "--model=Far", "--model.ahead=2")
    assert design.notes == [
        "model=Toy,ahead=1: its task lacks --model.ahead=1, left out",
        "model=Toy,ahead=2: its task lacks --model.ahead=2, left out",
        "Far lacks model.near of Toy: dropped",
    ]
    assert design.goal == "loss"
    assert plan.split_foreign(["--model.a.b=1", "--data.a=1"], frozenset(), frozenset("a")) == (
        ("--data.a=1",), ("--model.a.b=1",),
    )  # fmt: skip


def test_tasks_without_a_metric_in_common_are_refused_before_anything_runs(fits):
    for other in ("Image", "Score"):
        with pytest.raises(UsageError, match="no metric in common") as caught:
            prepare(request(f"model=Toy,{other}"), fits, Costs(), never)
        assert f"{other} by loss" in str(caught.value)
    assert prepare(request("model=Far,Toy", base="model=Far"), fits, Costs(), never).goal == "rate"
    assert prepare(request("model=Far,Toy", goal="val/rate"), fits, Costs(), never).goal == "val/rate"
    with pytest.raises(UsageError, match=r"no metric that all tasks have\. Those are: loss, rate"):
        prepare(request("model=Toy,Far", goal="bleu"), fits, Costs(), never)


def test_options_for_all_runs_are_in_every_variant(fits):
    design = prepare(request(options=("--model.lr=0.5",)), fits, Costs(), never)
    assert names(design) == ["lr=0.5", "lr=0.5,position=alibi"]
    assert design.arms[1].job(3).words == (
        "toy", "--model.lr=0.5", "--model.position=alibi", "--seed=3", f"--runs={fits.root}",
    )  # fmt: skip
    assert design.arms[1].job(3).folder == fits.root / "toy" / "lr=0.5,position=alibi" / "s3"


def test_what_cannot_be_built_is_left_out_by_name_but_never_the_baseline(fits):
    costs = Costs()
    costs.refuses = [("position", "alibi")]
    design = prepare(request("model.position=alibi,t5"), fits, costs, never)
    assert names(design) == ["default", "position=t5"]
    assert list(design.invalid.items()) == [("position=alibi", "position alibi cannot be built.")]
    with pytest.raises(UsageError, match="the baseline, position=alibi: position alibi cannot be built"):
        prepare(request("model.position=alibi,t5", base="position=alibi"), fits, costs, never)
    with pytest.raises(
        UsageError, match=r"there is one variant, default, and nothing to compare it with\. position=alibi"
    ):
        prepare(request("model.position=alibi,rope"), fits, costs, never)


def test_one_variant_is_no_comparison(fits):
    with pytest.raises(UsageError, match="The values are the recipe's own"):
        prepare(request("model.position=rope"), fits, Costs(), never)
    with pytest.raises(UsageError, match="nothing varies"):
        Comparison("toy", ())


# budgets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tokens=2M", ("tokens", 2e6)), ("tokens=500k", ("tokens", 5e5)), ("flops=1e15", ("flops", 1e15)),
        ("flops=1.5T", ("flops", 1.5e12)), ("time=10m", ("time", 600.0)), ("time=90", ("time", 90.0)),
        ("time=2h", ("time", 7200.0)), ("tokens=1e6", ("tokens", 1e6)),
    ],
)  # fmt: skip
def test_budgets(text, expected):
    assert match_and_tune.parse_budget(text) == expected


@pytest.mark.parametrize(
    "text", ["tokens", "token=3", "tokens=", "tokens=x", "tokens=0", "time=3M", "time=3d", "flops=-1"]
)
def test_no_budgets(text):
    if text == "time=3M":
        assert match_and_tune.parse_budget(text) == ("time", 180.0)  # units ignore case
        return
    with pytest.raises(UsageError, match="--budget"):
        match_and_tune.parse_budget(text)


def test_a_budget_of_tokens_is_as_many_steps_for_all(fits):
    design = prepare(request(budget="tokens=8k"), fits, Costs(), never)
    assert names(design) == ["max_steps=200", "max_steps=200,position=alibi"]
    assert design.notes[1] == "position=alibi: 200 steps for tokens 8000"


def test_a_budget_of_flops_buys_a_costly_variant_fewer_steps(fits):
    costs = Costs()
    design = prepare(request("model.ffn=plain,glu", budget="flops=1e9"), fits, costs, never)
    for arm in design.arms:
        spent = 3 * costs.cost(arm.point.config).flops * 40.0 * arm.point.config["trainer"]["max_steps"]
        assert 0 <= 1e9 - spent < 3 * costs.cost(arm.point.config).flops * 40.0
    assert design.arms[0].point.config["trainer"]["max_steps"] != design.arms[1].point.config["trainer"]["max_steps"]


def test_a_budget_takes_away_an_end_by_epochs_and_refuses_to_compete_with_steps(fits):
    design = prepare(request(options=("--trainer.max_epochs=3",), budget="tokens=8k"), fits, Costs(), never)
    assert "--trainer.max_epochs=-1" in design.arms[0].words
    with pytest.raises(UsageError, match=r"--budget sets trainer\.max_steps"):
        prepare(request("trainer.max_steps=1,2", budget="tokens=8k"), fits, Costs(), never)
    with pytest.raises(UsageError, match="is less than one step of the recipe"):
        prepare(request(budget="tokens=39"), fits, Costs(), never)


def test_a_budget_of_time_measures_each_variant_first(fits):
    ran = []

    def measured(arms, seeds):
        for arm in arms:
            ran.append((arm.name, *seeds))
            speed = 400.0 if "alibi" in arm.name else 800.0
            finish(arm.point.folder(seeds[0]), cost={"tokens_per_s": speed})

    design = prepare(request(budget="time=1m"), fits, Costs(), measured)
    assert ran == [("limit_val_batches=1", 0), ("limit_val_batches=1,position=alibi", 0)]
    assert [arm.point.config["trainer"]["max_steps"] for arm in design.arms] == [1200, 600]
    with pytest.raises(ZooError, match="--budget time: default did not run"):
        prepare(request(budget="time=1m"), Fits(fits.root / "x"), Costs(), lambda arms, seeds: None)


# matching


@pytest.mark.parametrize("what", ["params", "flops"])
def test_matching_solves_for_the_width_and_tells_the_residual(fits, what):
    costs = Costs()
    design = prepare(request("model.ffn=plain,glu", "model.position=rope,learned", match=what), fits, costs, never)
    target = match_and_tune.amount(costs.cost(design.arms[0].point.config), what)
    for arm in design.arms[1:]:
        near = match_and_tune.amount(costs.cost(arm.point.config), what)
        assert abs(near / target - 1) < 0.02
    assert len(design.notes) == 3
    assert all("from the baseline's" in note for note in design.notes)


def test_a_variant_that_is_equal_already_keeps_its_width(fits):
    design = prepare(request(match="params"), fits, Costs(), never)
    assert names(design) == ["default", "position=alibi"]
    assert "hidden 32, parameters +0.000%" in design.notes[0]


def test_matching_needs_a_width_that_is_free(fits):
    with pytest.raises(UsageError, match=r"sets model\.hidden, so it cannot be a varied option: remove it"):
        prepare(request("model.hidden=16,64", match="params"), fits, Costs(), never)
    with pytest.raises(UsageError, match="Did you mean 'params'"):
        prepare_runs.check_comparison(request(match="parms"))


@pytest.mark.parametrize(
    ("count", "target", "usual", "width"),
    [
        (lambda h: 3 * h, 300, 7, 100),
        (lambda h: 3 * h, 301, 7, 100),
        (lambda h: 3 * h, 299, 7, 100),
        (lambda h: 3 * h, 1, 7, 1),
        (lambda h: 3 * (2 * h // 3), 200, 7, 101),  # 198 and 201: the nearest, at its smallest width
        (lambda h: 3 * (2 * h // 3), 200, 102, 102 if 3 * (2 * 102 // 3) == 201 else 101),
        (lambda h: 3 * h, 300, 100, 100),
        (lambda h: 10 + h * h, 1000, 7, 31),
        (lambda h: 768 * -(-(2 * h // 3) // 256) * 256, 768 * 1024, 4000, 1154),  # in steps of 256
        (lambda h: 7e9 + 3 * h, 7e9 + 9000, 4, 3000),
        (lambda h: 5 * h, 5, 400, 1),
    ],
)
def test_solving(count, target, usual, width):
    widths = []

    def count_parameters(h):
        widths.append(h)
        return count(h)

    result = match_and_tune.solve_width(count_parameters, target, usual)
    assert abs(count(result) - target) == min(abs(count(h) - target) for h in range(1, 4000))
    assert result == width
    assert result == usual or count(result) != count(result - 1)  # the smallest of those with its count
    assert len(widths) == len(set(widths)) <= 20  # a model is built for each


# runs


def test_runs_go_seed_by_seed(fits):
    design = prepare(request(), fits, Costs(), never)
    assert [job.title for job in plan.list_jobs(design.arms, (1, 5))] == [
        "position=rope s1", "position=alibi s1", "position=rope s5", "position=alibi s5",
    ]  # fmt: skip


def test_states(tmp_path):
    several = toys(tmp_path, "abcd", (1,))
    execute(several[:1], how())
    (several[1].folder / "checkpoints").mkdir(parents=True)
    (several[1].folder / "checkpoints" / "last.ckpt").write_bytes(
        (several[0].folder / "checkpoints" / "last.ckpt").read_bytes()
    )
    lock = Lock(run_state.path_beside(several[2].folder, ".lock"))
    lock.acquire()
    assert list(plan.job_states(several).values()) == ["finished", "continue", "running", "missing"]
    lock.release()


def test_a_run_of_another_configuration_is_not_taken_for_this_one(fits):
    design = prepare(request(), fits, Costs(), never)
    plan.verify_runs(design.arms, (1,), fits)
    finish(design.arms[1].point.folder(1))
    plan.verify_runs(design.arms, (1,), fits)
    fits.changed = ["model.dim was 8 and is 16", "model.depth was 1 and is 2"]
    with pytest.raises(
        UsageError, match=r"position=alibi/s1 was made with another configuration: model\.dim was 8 .*1 more"
    ):
        plan.verify_runs(design.arms, (1,), fits)
    fits.changed = []
    (design.arms[1].point.folder(1) / "ledger.json").unlink()
    with pytest.raises(UsageError, match=r"is finished and has no ledger\.json"):
        plan.verify_runs(design.arms, (1,), fits)


def test_an_estimate_comes_from_finished_runs(fits):
    design = prepare(request(), fits, Costs(), never)
    length = {"default": 100, "position=alibi": 200}
    steps = plan.unfinished_jobs(plan.list_jobs(design.arms, (1, 2)))
    root = fits.root / "toy"
    assert plan.estimate_seconds(steps, length, root) is None
    finish(design.arms[0].point.folder(1), steps=50, cost={"seconds": 5.0})
    finish(design.arms[0].point.folder(9), steps=2, cost={"seconds": 9.0})  # a trial
    steps = plan.unfinished_jobs(plan.list_jobs(design.arms, (1, 2)))
    assert plan.estimate_seconds(steps, length, root) == pytest.approx(
        3 * plan.STARTUP_SECONDS + 0.1 * (100 + 200 + 200)
    )
    assert plan.estimate_seconds(steps, dict.fromkeys(length), root) == pytest.approx(3 * (plan.STARTUP_SECONDS + 5.0))
    assert plan.estimate_seconds([], length, root) == 0.0


def test_a_comparison_is_kept_by_paths_that_may_move_together(tmp_path):
    place = run_records.comparison_path(tmp_path / "runs", "toy", "position")
    record = run_records.Record(
        (tmp_path / "runs/toy/a/s1",), "a", "loss", "flops=1e9", {"a": "lr 1"}, "zoo compare toy", ("lr",)
    )
    run_records.save_record(place, record)
    assert run_records.load_record(place) == record
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    moved = run_records.load_record(run_records.comparison_path(tmp_path / "elsewhere", "toy", "position"))
    assert moved.folders == (tmp_path / "elsewhere/toy/a/s1",)
    assert run_records.load_record(tmp_path) is None
    (tmp_path / run_records.RUNS_FILE).write_text("{}")
    with pytest.raises(UsageError, match="is damaged"):
        run_records.load_record(tmp_path)


# the real `zoo fit`


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return plan.ZooFit(str(tmp_path_factory.mktemp("runs")))


@pytest.mark.parametrize(
    ("word", "variant"),
    [
        ("--model.position=NoPosition", "position=noposition"),
        ("--model.position=learned", "default"),
        ("--model.position={class_path: RoPE, init_args: {base: 500}}", "position=rope,base=500"),
        ('--model.position={"class_path": "zoo.parts.position.RoPE", "init_args": {"base": 10000.0}}', "position=rope"),
        ("--model.schedule.warmup=0", "warmup=0"),
        ("--model.hidden=null", "default"),
        ("--trainer.precision=bf16-mixed", "precision=bf16-mixed"),
        ("--trainer.log_every_n_steps=10", "default"),
    ],
)
def test_folders_are_those_of_zoo_fit(real, word, variant, capsys):
    from zoo.cli import main

    point = real.point(("vit-tiny", word))
    assert point.variant == variant
    assert main(["fit", "vit-tiny", *shlex.split(shlex.quote(word)), "--print_config"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"# zoo run: vit-tiny/{variant}"


def test_changes_are_those_that_matter(real):
    from zoo.config import run_config as plans

    folder = real.point(("vit-tiny",)).folder(1)
    folder.mkdir(parents=True)
    text = plans.config_text(real._plans["vit-tiny/default"])
    path = folder / "config.yaml"

    def changes(old, new, *words):
        path.write_text(text.replace(old, new))
        assert old in text
        return real.changes(real.point(("vit-tiny", *words)), folder)

    assert changes("lr: 0.003", "lr: 0.003") == []
    assert changes("lr: 0.003", "lr: 0.5") == ["model.lr was 0.5 and is 0.003"]
    assert changes("Learned", "RoPE") == ["model.position was RoPE and is Learned"]
    assert changes("num_classes: null", "num_classes: 10") == []  # the data filled it in
    assert changes("    depth: 2\n", "") == ["model.depth was None and is 2"]  # the recipe says it
    assert changes("    pool: mean\n", "") == []  # a default of a later zoo
    assert changes("trainer:\n", "trainer:\n  devices: 4\n") == []
    assert changes("max_steps: 1400", "max_steps: 7") == ["trainer.max_steps was 7 and is 1400"]
    path.write_text(text[:50])
    assert real.changes(real.point(("vit-tiny",)), folder) == []


@pytest.mark.parametrize(
    ("content", "state"), [({"finished": True}, "finished"), ({"finished": False}, "started"), ({}, "started")]
)
def test_a_run_is_finished_if_its_record_says_so(content, state, tmp_path):
    (tmp_path / "finished.json").write_text("{}")
    (tmp_path / "ledger.json").write_text(json.dumps({"format": 1, "recipe": "toy", **content}))
    assert run_state.read_state(tmp_path) == state


SPELLINGS = [
    ("trainer.gradient_clip_val=1,1.0,1e0", 1),
    ("trainer.gradient_clip_val=0.5,5e-1,2", 2),
    ("trainer.callbacks=null,[]", 0),
    ("trainer.callbacks=null,EMA", 1),
    ("model.lr=1e-2,0.01,1", 2),
    ("trainer.limit_train_batches=1,1.0", 1),  # one batch, and all of them as without it
    ("trainer.limit_val_batches=null,3,1.0", 1),
    ("trainer.accumulate_grad_batches=1,2", 1),
    ("trainer.deterministic=true,false", 1),
    ("trainer.gradient_clip_algorithm=norm,value", 1),
    ("trainer.precision=64-true,64", 1),
    ("tune.layer_decay=1,0.5", 1),
    ("model.norm=LayerNorm,zoo.parts.norm.LayerNorm", 1),
]


@pytest.mark.parametrize(("text", "variants"), SPELLINGS)
def test_spellings_of_a_value_are_one_variant(text, variants, tmp_path):
    """The recipe is the baseline; of the values that are equal to its own, and to each other, one is run."""
    comparison = plan.Comparison("lm-tiny", (plan.parse_factor(text),), ("--trainer.gradient_clip_val=3.0",))
    arms, invalid = plan.build_arms(comparison, plan.ZooFit(str(tmp_path)), lambda config: None)
    assert (len(arms), invalid) == (1 + variants, {})


@pytest.mark.parametrize(
    "name", ["gradient_clip_val", "max_steps", "accumulate_grad_batches", "check_val_every_n_epoch"]
)
def test_the_recipes_value_in_another_spelling_is_the_recipe(name, tmp_path):
    comparison = plan.Comparison("lm-tiny", (plan.parse_factor(f"trainer.{name}=2,3"),), (f"--trainer.{name}=2",))
    arms, _ = plan.build_arms(comparison, plan.ZooFit(str(tmp_path)), lambda config: None)
    assert len(arms) == 2


VALUES = {
    "rope,alibi": ["rope", "alibi"], "[1,2],[3, 4]": ["[1,2]", "[3, 4]"], "'a,b',c": ["a,b", "c"],
    "/d/o'brien.txt,/d/b.txt": ["/d/o'brien.txt", "/d/b.txt"], "{a: 'x,y'},z": ["{a: 'x,y'}", "z"],
    '"my,data.txt",other.txt': ["my,data.txt", "other.txt"], "[it's, x],y": ["[it's, x]", "y"],
    "['a,b', 'c'],d": ["['a,b', 'c']", "d"], "it's": ["it's"], "\"'tis\",a": ["\"'tis\"", "a"],
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text):
    assert plan.split_values(text) == VALUES[text]
    assert plan.split_values(",".join(map(plan.quote_value, VALUES[text]))) == VALUES[text]


def test_quotes_that_never_close_are_refused():
    with pytest.raises(UsageError, match="begins with ' and does not end with it"):
        plan.split_values("'abc,d")


def test_a_comparison_of_many_options_has_a_folder_whose_name_fits():
    factors = tuple(plan.Factor(f"model.option_of_a_long_name_{index}", ("1", "2")) for index in range(20))
    title, other = (plan.Comparison("lm-tiny", factors[:count]).title for count in (20, 19))
    assert len(title.encode()) < 200
    assert title != other

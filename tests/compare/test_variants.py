"""What varies, as a command line or a file says it, and which combinations are run."""

import pytest

from zoo import recipe_files
from zoo.cli import find_command, help
from zoo.compare import command, plan, run_records
from zoo.compare.options import COMPARE_OPTIONS
from zoo.compare.plan import (
    Choice,
    Factor,
    design_variants,
    parse_factor,
    parse_factors,
    parse_seeds,
    split_values,
    variant_text,
)
from zoo.config import yaml_source
from zoo.errors import UsageError

A = Factor("model.position", ("RoPE", "ALiBi"))
B = Factor("model.norm", ("LayerNorm", "RMSNorm"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a,b", ["a", "b"]),
        (" a , b ,", ["a", "b"]),
        ("{class_path: RoPE, init_args: {base: 500}},b", ["{class_path: RoPE, init_args: {base: 500}}", "b"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("'x,y',\"z,[\",w", ["x,y", "z,[", "w"]),
        ("RoPE(base=1,x=2),b", ["RoPE(base=1,x=2)", "b"]),
        ("", []),
    ],
)
def test_commas_inside_of_brackets_and_quotes_separate_nothing(text, values):
    assert split_values(text) == values


@pytest.mark.parametrize("word", ["none", "None", "nope", "no"])
def test_none_is_the_part_that_does_nothing(word):
    assert parse_factor(f"model.position={word},RoPE").values == ("NoPosition", "RoPE")
    assert parse_factor(f"model.backend={word},SDPA").values == (word, "SDPA")  # there, zoo fit knows what it means
    assert parse_factor(f"model.dropout={word},1").values == (word, "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.position", "is not OPTION=VALUE,VALUE"),
        ("model.position=", "is not OPTION=VALUE,VALUE"),
        ("position=rope", "as 'model.position'"),
        ("modle.position=rope", "as 'model.position'"),
        ("model.=rope", "begins with model, data, trainer or tune"),
        ("data=StdlibDocs", "the task varies as 'model', and all else begins with model"),
    ],
)
def test_what_cannot_vary(text, message):
    with pytest.raises(UsageError, match=message):
        parse_factor(text)


def test_an_option_varies_once():
    with pytest.raises(UsageError, match=r"'model\.norm' varies twice"):
        parse_factors(["model.norm=a", "model.dim=1", "model.norm=b"])
    assert parse_factor("model.norm=a,a,b").values == ("a", "b")


@pytest.mark.parametrize(
    ("text", "expected"), [("3", (1, 2, 3)), ("1,2,7", (1, 2, 7)), ("7,", (7,)), ("2,2", (2,)), ("0,", (0,))]
)
def test_seeds(text, expected):
    assert parse_seeds(text) == expected


@pytest.mark.parametrize("text", ["0", "x", "1,x", "-1", "", ",", "1001", f"{2**32},1"])
def test_no_seeds(text):
    with pytest.raises(UsageError, match="--seeds"):
        parse_seeds(text)


def names(designed):
    return [variant_text(variant) for variant in designed]


def test_a_grid_has_the_baseline_and_every_combination():
    assert names(design_variants([A, B], (), None)) == [
        "the recipe", "position=RoPE,norm=LayerNorm", "position=RoPE,norm=RMSNorm",
        "position=ALiBi,norm=LayerNorm", "position=ALiBi,norm=RMSNorm",
    ]  # fmt: skip


def test_one_at_a_time_changes_one_option_of_the_baseline():
    base = plan.parse_baseline("position=ALiBi", [A, B])
    assert names(design_variants([A, B], base, "one-at-a-time")) == [
        "position=ALiBi", "position=RoPE", "position=ALiBi",
        "position=ALiBi,norm=LayerNorm", "position=ALiBi,norm=RMSNorm",
    ]  # fmt: skip


def test_a_large_grid_must_be_asked_for():
    wide = Factor("model.dim", tuple(map(str, range(7))))
    with pytest.raises(UsageError, match=r"2 x 7 = 14 variants.*--design grid\n.*9 variants: --design one-at-a-time"):
        design_variants([A, wide], (), None)
    assert len(design_variants([A, wide], (), "grid")) == 15
    assert len(design_variants([A, wide], (), "one-at-a-time")) == 10
    with pytest.raises(UsageError, match=r"no design 'gird'\. Did you mean 'grid'"):
        design_variants([A], (), "gird")


def test_the_baseline_names_varied_options_by_any_end_of_their_names():
    assert plan.parse_baseline("position=nope", [A, B]) == (Choice("model.position", "NoPosition"),)
    assert plan.parse_baseline("model.norm=RMSNorm,position=T5", [A, B]) == (
        Choice("model.norm", "RMSNorm"),
        Choice("model.position", "T5"),
    )
    with pytest.raises(UsageError, match=r"'postion' does not vary\. Did you mean 'position'"):
        plan.parse_baseline("postion=rope", [A, B])
    with pytest.raises(UsageError, match="is not OPTION=VALUE"):
        plan.parse_baseline("position", [A, B])


# files


def parse_request(*argv):
    return command.read_comparison(find_command.parse(find_command.find_command("compare"), argv))


def test_a_file_says_what_a_command_line_says(tmp_path):
    path = tmp_path / "pos.yaml"
    path.write_text(
        "recipe: vit-tiny\n"
        "vary:\n"
        "  model.position: [none, RoPE, {class_path: RoPE, init_args: {base: 500}}]\n"
        "  model.tie: [true, null]\n"
        "seeds: [1, 2, 7]\nbaseline: {position: RoPE}\ndesign: one-at-a-time\nbudget: {tokens: 2M}\nmatch: params\n"
        "tune: {model.lr: [1e-3, 3e-3]}\noptions: {model.dim: 32, trainer.max_steps: 10}\n"
    )
    by_file = parse_request(str(path))
    by_words = parse_request(
        "vit-tiny", "--vary", 'model.position=none,RoPE,{"class_path": "RoPE", "init_args": {"base": 500}}',
        "--vary", "model.tie=true,null", "--seeds", "1,2,7", "--baseline", "position=RoPE",
        "--design=one-at-a-time", "--budget", "tokens=2M", "--match", "params", "--tune", "model.lr=0.001,0.003",
        "--model.dim", "32", "--trainer.max_steps=10",
    )  # fmt: skip
    assert by_file.name == "pos"
    assert by_file.title == "pos"
    assert by_words.title == "position+tie"
    assert {**vars(by_file), "name": ""} == vars(by_words)
    assert parse_request(str(path), "--seeds", "2", "--design", "grid").seeds == (1, 2)
    assert parse_request(str(path), "--model.dim", "64").options[-1] == "--model.dim=64"  # the command line wins


@pytest.mark.parametrize(
    "vary",
    ["vary: {model: {norm: [a, b], ffn: {hidden: [1, 2]}}}", "vary: {model: {norm: [a, b], ffn.hidden: [1, 2]}}",
     "vary.model.norm: [a, b]\nvary.model.ffn.hidden: [1, 2]",
     "vary.model: {norm: [a, b]}\nvary: {model: {ffn.hidden: [1, 2]}}"],
)  # fmt: skip
def test_varied_options_are_written_with_dots_or_nested(tmp_path, vary):
    texts = (vary, "vary: {model.norm: [a, b], model.ffn.hidden: [1, 2]}")
    requests = []
    for text in texts:
        (tmp_path / "c.yaml").write_text(f"recipe: a\n{text}\n")
        requests.append(parse_request(str(tmp_path / "c.yaml")))
    assert requests[0] == requests[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: a\nvary: {model.norm: [a], model: {norm: [b]}}", "an option is written twice"),
        ("recipe: a\nvary: {model: {norm: a}}", "'model.norm' holds no list"),
        ("recipe: a\nvary: {model.norm: [a]}\nsedes: 3", "unknown key 'sedes'. Did you mean 'seeds'"),
        ("recipe: a\nvary: [a]", "'vary' holds options with lists of values"),
        ("vary: {model.norm: [a]}", "'recipe' names a recipe"),
        ("recipe: a\nvary: {model.norm: a}", "'model.norm' holds no list"),
        ("recipe: a\nvary: {norm: [a]}", "as 'model.norm'"),
        ("recipe: a\nvary: {model.norm: []}", "no values to vary over"),
        ("recipe: a\nvary: {model.norm: [a]}\noptions: 3", "'options' holds options"),
        ("recipe: a\nvary: {}", "nothing varies"),
    ],
)
def test_a_file_that_says_nothing_sensible(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        parse_request(str(tmp_path / "c.yaml"))


def test_a_file_and_vary_do_not_mix(tmp_path):
    (tmp_path / "c.yaml").write_text("recipe: a\nvary: {model.norm: [a, b]}")
    with pytest.raises(UsageError, match="says what varies"):
        parse_request(str(tmp_path / "c.yaml"), "--vary", "model.dim=1,2")


CHECKED = [option for option in COMPARE_OPTIONS if option.destination in command.FILE_KEYS
           and (option.type in (int, float) or option.choices)]  # fmt: skip


@pytest.mark.parametrize("option", CHECKED, ids=lambda option: option.name)
@pytest.mark.parametrize("value", ["0", "-1", "x", ".inf", ".nan", "[1, 2]", "{a: 1}"])
def test_a_value_that_an_option_cannot_have_is_refused_in_a_file_too(option, value, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"recipe: lm-tiny\nvary: {{model.norm: [a, b]}}\n{option.destination}: {value}\n")
    with pytest.raises(UsageError, match=f"c.yaml: '{option.destination}' must be .*, got "):
        parse_request(str(path))


def test_a_recipe_is_no_comparison(tmp_path):
    (tmp_path / "r.yaml").write_text("model: CausalLM")
    assert parse_request(str(tmp_path / "r.yaml")) is None


OWN = [one for one in recipe_files.comparisons() if one.builtin]


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_a_packaged_comparison_is_short_explained_and_well_formed(one):
    text = one.path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30
    assert text.startswith(f"# {one.name}: ")
    assert all(f"{word}: " in "\n".join(one.header) for word in ("asks", "time"))
    result = parse_request(one.name)
    assert recipe_files.packaged_recipe(result.recipe)
    assert result.name == one.name
    assert yaml_source.read_yaml(one.path).as_data()["vary"]
    assert one.name in help.command_help(find_command.find_command("compare"))
    assert all(one.name != recipe.name for recipe in recipe_files.recipes())


# the command line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "zoo compare needs RECIPE: "),
        (["vit-tiny", "--vary"], "'--vary' needs a value"),
        (["vit-tiny", "--varry", "model.norm=a,b"], "no option '--varry'. Did you mean '--vary'?"),
        (["vit-tiny", "--vary", "model.norm=a,b", "--sede", "3"], "Did you mean '--seeds'?"),
        (["vit-tiny", "--vary", "model.norm=a,b", "--seed", "3"], "--seed is for one run; here it is --seeds"),
        (["vit-tiny", "--vary", "model.norm=a,b", "--resume"], "--resume is for one run"),
        (["vit-tiny", "--vary", "model.norm=a,b", "--name", "x"], "--name is for one run"),
        (["vit-tiny", "--vary", "model.norm=a,b", "--lr", "3"], "Did you mean '--model.lr'?"),
        (
            ["vit-tiny", "--vary", "model.norm=a,b", "--jobs", "0"],
            "'--jobs' must be a whole number above 0",
        ),
        (["vit-tiny", "--json=1", "--vary", "model.norm=a,b"], "'--json' takes true, false or no value, got '1'"),
        (["nowhere"], "no folder, recipe or comparison 'nowhere'"),
        (["vit-tiny"], "vit-tiny has no run in runs"),
        (["vit-tiny", "--seeds", "3"], "'--seeds' is for new runs"),
        (["vit-tiny", "--dry-run"], "'--dry-run' is for new runs"),
        (["vit-tiny", "--compile"], "'--compile' is for new runs"),
        (["vit-tiny", "-c", "more.yaml"], "'--config' is for new runs"),
        (["vit-tiny", "--model.dim", "3"], "'--model.dim' is for new runs"),
    ],
)
def test_usage_errors_name_the_option(words, message, tmp_path, monkeypatch, capsys):
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert len(output.splitlines()) <= 4


def test_help_lists_options_and_is_fast_to_read(capsys):
    from zoo.cli import main

    assert main(["compare", "--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"--{option.name}" in output for option in COMPARE_OPTIONS)
    assert len(output.splitlines()) <= 60
    assert max(map(len, output.splitlines())) <= 120


NAMES = ["depth=1,dim=16", "a,b,c", "position=rope,norm=rmsnorm,ffn=moe", "plain", "tune.start=u,v"]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_a_folder_whose_name_holds_commas_is_one_value(first, second, tmp_path, monkeypatch):
    paths = [f"runs/lm/{first}/s1", f"runs/vit/{second}/s1"]
    for path in paths:
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    varied = parse_factor(f"tune.start={','.join(paths)}")
    assert varied.values == tuple(paths)
    assert plan.parse_baseline(f"start={paths[1]}", [varied]) == (Choice("tune.start", paths[1]),)
    assert parse_factor("model.norm=rmsnorm,layernorm").values == ("rmsnorm", "layernorm")
    assert parse_factor(f"tune.start={paths[0]},nowhere/else").values == (paths[0], "nowhere/else")


def test_runs_of_different_tasks_are_not_compared(tmp_path):
    def record(recipe, goal, unit):
        return run_records.RunRecord(tmp_path, recipe, "v", 1, goals={goal: "min"}, unit=unit, prediction=f"a {unit}")

    same = [record("lm-tiny", "loss", "token"), record("lm-small", "loss", "token")]
    run_records.check_one_task([*same, run_records.RunRecord(tmp_path, "vit", "v", 1, problem="damaged")])
    one, two = (run_records.RunRecord(tmp_path, "a", "v", 1, goals={"loss": "min", name: "max"}) for name in "fg")
    assert run_records.shared_goals([one, two]) == {"loss": "min"}
    assert run_records.shared_goals([]) == {}
    run_records.check_one_task([one, two])
    for other in (record("vit-glyphs", "accuracy", "image"), record("vit", "loss", "image")):
        with pytest.raises(UsageError, match=f"lm-tiny by loss per token of a token; {other.recipe} by "):
            run_records.check_one_task([*same, other])

"""A target decides by steps, which no law, probe or contribution is about: they are refused beside one."""

import pytest
from test_targets import TARGETS, look_home, request

from zoo.cli.find_command import find_command, parse
from zoo.compare.command import run
from zoo.errors import UsageError

BESIDE = [("scale", "dim=64,96,128"), ("probe", "2,4")]
CASES = [
    case for target in TARGETS for option in BESIDE
    for case in (([target], [option]), ([option], [target]), ([target, option], []), ([], [target, option]))
]  # fmt: skip


@pytest.mark.parametrize(("in_file", "in_words"), CASES, ids=str)
def test_a_design_is_refused_beside_a_target_wherever_both_are_written(in_file, in_words, tmp_path):
    with pytest.raises(UsageError, match="does not go with --"):
        request(tmp_path, in_file, in_words)


def test_a_recorded_comparison_of_sizes_refuses_a_target(tmp_path):
    home = look_home(tmp_path, design={"scale": {"sizes": []}}, goal="loss")
    with pytest.raises(UsageError, match="does not go with --scale"):
        run(parse(find_command("compare"), [str(home), "--to=loss=2.5"]))


@pytest.mark.parametrize(("words", "message"), [
    (["vit-tiny", "--vary", "model.norm=a,b", "--probe", "lenth=2"], "no probe 'lenth'. Did you mean 'length'?"),
    (["vit-tiny", "--vary", "model.norm=a,b", "--probe", "length=2", "--scale", "dim=1,2,3"], "has one design"),
    (["vit-tiny", "--attribute"], "--attribute needs two recipes"),
    (["a", "b", "--attribute", "--tune", "x"], "--tune does not go with --attribute"),
    (["a", "b", "--attribute", "--vary", "x"], "--vary does not go with --attribute"),
    (["a", "b", "--attribute", "--margin", "0.1"], "--margin does not go with --attribute"),
    (["vit-tiny", "b", "--vary", "model.norm=a,"], "Values of --vary are separated by commas"),
    (["vit-tiny", "lm-tiny", "--vary", "model.norm=a,b"], "unknown norm 'a'. Available: "),
])  # fmt: skip
def test_usage_errors_name_the_option(words, message, tmp_path, monkeypatch, capsys):
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert len(output.splitlines()) <= 4


def test_help_lists_the_options_of_designs_and_stays_short(capsys):
    from zoo.cli import main

    assert main(["compare", "--help"]) == 0
    output = capsys.readouterr().out
    assert {"--scale", "--probe", "--attribute"} <= set(output.split())
    assert len(output.splitlines()) <= 60

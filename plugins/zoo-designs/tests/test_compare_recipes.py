"""`zoo compare A B --vary …` from its command line to the scoreboard."""

import json
import math
import typing
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_compare_run import FakeFits, FakeMeter
from tests.compare.fabricate import lay, ledger
from zoo.cli import main
from zoo.compare import run_comparison
from zoo.compare.plan import Point

EFFECTS = {"lm-tiny": -0.1, "vit-tiny": -0.08}
VARY = ("--vary", "model.norm=layernorm,rmsnorm")


class Fits(FakeFits):
    """The recipes' own norm is LayerNorm in one, and RMSNorm in the other."""

    own: typing.ClassVar = {"lm-tiny": "RMSNorm", "vit-tiny": "LayerNorm"}

    def point(self, words):
        norm = next((word.partition("=")[2] for word in words if word.startswith("--model.norm=")), self.own[words[0]])
        model = {"class_path": "x.Toy", "init_args": {"norm": norm}}
        config = {"model": model, "data": {}, "trainer": {"max_steps": 1}}
        variant = "default" if norm.lower() == self.own[words[0]].lower() else f"norm={norm.lower()}"
        return Point(self.runs, words[0], variant, config)


@pytest.fixture
def compare(monkeypatch, tmp_path, capsys):
    """The command with runs that are only records; also which runs it started."""
    started, diverging = [], set()

    def execute(jobs, options):
        for job in jobs:
            if not job.folder.exists():
                recipe, variant, seed = job.folder.parts[-3], job.folder.parts[-2], int(job.folder.name[1:])
                started.append(f"{recipe} {variant} s{seed}")
                norm = Fits.own[recipe] if variant == "default" else {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[
                    variant.partition("=")[2]]  # fmt: skip
                random = np.random.default_rng([seed, *started[-1].encode()])
                loss = 2.0 + (EFFECTS[recipe] if norm == "RMSNorm" else 0.0) + 0.03 * random.standard_normal()
                failed = started[-1] in diverging
                content = ledger(variant, seed, loss, {"norm": norm}, recipe=recipe, finished=not failed,
                                 outcome={"state": "diverged", "step": 3} if failed else {})  # fmt: skip
                content["last"] = {"loss": math.nan if failed else loss, "bits_per_byte": loss}
                place = lay(content, job.folder.parents[2])
                (place.parent / "finished.json").write_text("{}")
        return {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_comparison, "execute", execute)
    monkeypatch.setattr(
        run_comparison, "open_comparison", lambda options, words: (Fits(options.get("runs")), FakeMeter())
    )

    def call(*words, code=0, reports=False):
        started.clear()
        with pytest.MonkeyPatch.context() as patch:
            if not reports:
                patch.setattr("zoo.compare.report.write_report", lambda *arguments: [])
                patch.setattr("zoo.compare.tensorboard_summary.write_summary", lambda *arguments: [])
                patch.setattr("zoo_designs.scoreboard.write_report", lambda *arguments: [])
                patch.setattr("zoo_designs.scoreboard_folder.write_summary", lambda *arguments: None)
                patch.setattr(run_comparison, "print_places", lambda *arguments: None)
            result = main(["compare", *words])
        out, err = capsys.readouterr()
        assert result == code, out + err
        return out, err, list(started)

    call.diverging = diverging
    return call


HOME = Path("runs/compare/lm-tiny+vit-tiny/norm")


def test_one_table_over_recipes_whose_own_parts_differ(compare):
    out, _, started = compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "6", "--exit-code", code=10)
    text = " ".join(out.split())
    assert "Does RMSNorm instead of LayerNorm help in lm-tiny and vit-tiny? Yes." in text
    assert "RMSNorm is better over 2 tasks and 12 pairs of runs; P(improvement)" in text
    assert len(started) == 24
    assert {name.partition(" ")[2] for name in started if name.startswith("lm")} == {
        f"{variant} s{seed}" for variant in ("default", "norm=layernorm") for seed in range(1, 7)
    }
    for recipe in EFFECTS:
        home = Path("runs", recipe, "compare", "norm")
        assert {path.name for path in home.iterdir()} >= {"runs.json", "looks.json", "journal.jsonl"}
    looks = json.loads((HOME / "looks.json").read_text())["looks"]
    assert [look["test"] for look in looks] == ["permutation"]
    again = compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "6", "--json")
    assert again[2] == []
    content = json.loads(again[0])
    assert content["test"]["level"] == pytest.approx(0.04)
    assert len(content["looks"]) == 1
    assert content["commands"] == ["zoo compare lm-tiny vit-tiny --vary model.norm=layernorm,rmsnorm --seeds 6 --json"]


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--exit-code",), 10)])
def test_the_exit_code_is_the_outcome_where_it_is_asked_for_although_a_run_failed(compare, monkeypatch, options, code):
    monkeypatch.setattr(run_comparison, "exit_code", lambda codes: 1)
    compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "6", *options, code=code)


def test_more_seeds_after_a_look_use_the_sequential_test(compare):
    words = ("lm-tiny", "vit-tiny", *VARY)
    compare(*words, "--seeds", "3")
    content = json.loads(compare(*words, "--seeds", "8", "--json")[0])
    assert content["test"]["name"] == "sequential"
    assert content["test"]["level"] == pytest.approx(0.008)
    assert sum(look["spent"] for look in content["looks"]) < 0.05


def test_the_folder_is_read_again_without_running_anything(compare):
    compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "4")
    out, _, started = compare(str(HOME), "--json")
    assert started == []
    assert [each["recipe"] for each in json.loads(out)["recipes"]] == ["lm-tiny", "vit-tiny"]
    _, err, _ = compare(str(HOME), "--goal", "loss", code=2)
    assert "--goal does not go with a scoreboard" in err
    (Path("runs/lm-tiny/compare/norm") / "runs.json").unlink()
    assert "is no folder of a comparison any more" in compare(str(HOME), code=2)[1]


def test_a_diverged_run_stays_in_the_table(compare):
    compare.diverging.add("vit-tiny norm=rmsnorm s2")
    content = json.loads(compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "4", "--json")[0])
    variant = content["variants"][1]
    assert (variant["failed"], variant["pairs"]) == (1, 8)
    assert variant["scores"]["vit-tiny"]["2"] == 0.0


def test_a_shard_runs_its_seeds_of_every_recipe(compare):
    out, _, started = compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "4", "--shard", "1/2")
    assert {name[-2:] for name in started} == {"s1", "s3"}
    assert len(started) == 8
    assert "P(improvement)" not in out
    out, _, started = compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "4", "--shard", "2/2")
    assert len(started) == 8
    assert "P(improvement)" in out


def test_a_dry_run_lists_the_runs_of_every_recipe(compare):
    out, _, started = compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "2", "--dry-run")
    assert started == []
    assert out.count("zoo fit lm-tiny") == out.count("zoo fit vit-tiny") == 4
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lm-tiny", "vit-tiny", *VARY, "--margin", "0.1"), "--margin does not go with several recipes: figures of"),
        (("lm-tiny", "vit-tiny", *VARY, "--until", "decided"), "--until does not go with several recipes: each recipe"),
        (("lm-tiny", "vit-tiny", *VARY, "--series", "f"), "--series does not go with several recipes"),
        (("lm-tiny", "vit-tiny", *VARY, "--probe", "length=2"), "--probe does not go with several recipes"),
        (("lm-tiny", "lm-tiny", *VARY), "'lm-tiny' is named twice"),
        (("lm-tiny", "rmsnorm", *VARY), "after 'lm-tiny', 'rmsnorm' is no recipe"),
        (("lm-tiny", "vit-tiny", *VARY, "--goal", "top7"), "lm-tiny: --goal 'top7' is no figure of the task"),
        (("lm-tiny", "vit-tiny", *VARY, "--baseline", "ffn=mlp"), "does not vary"),
    ],
)
def test_what_does_not_go_with_several_recipes_is_refused_before_anything_runs(compare, words, message):
    _, err, started = compare(*words, code=2)
    assert message in err
    assert len(err.strip().splitlines()) <= 4
    assert started == []


def test_two_files_of_one_name_would_share_their_runs(compare, monkeypatch):
    monkeypatch.setattr(Fits, "own", {"./lm-tiny.yaml": "RMSNorm", "lm-tiny": "RMSNorm"})
    monkeypatch.setattr(Fits, "point", lambda self, words, point=Fits.point: Point(
        self.runs, "lm-tiny", *(lambda one: (one.variant, one.config))(point(self, words))))  # fmt: skip
    Path("lm-tiny.yaml").write_text("model: {}\n")
    _, err, _ = compare("lm-tiny", "./lm-tiny.yaml", *VARY, code=2)
    assert "have the same name, lm-tiny" in err


def test_all_reports_are_written(compare):
    out, _, _ = compare("lm-tiny", "vit-tiny", *VARY, "--seeds", "3", reports=True)
    assert (HOME / "scoreboard.html").is_file()
    assert (HOME / "tensorboard" / "RMSNorm").is_dir()
    for recipe in EFFECTS:
        home = Path("runs", recipe, "compare", "norm")
        assert (home / "comparison.html").is_file()
        assert f"{recipe}: {home / 'comparison.html'}" in out
    assert f"look    zoo tensorboard {HOME}" in out
    assert 'href="../../../lm-tiny/compare/norm/comparison.html"' in (HOME / "scoreboard.html").read_text()

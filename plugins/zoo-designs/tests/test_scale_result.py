"""What the runs of several sizes say: prediction, check, crossing, and why a variant has no law."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from test_report import check_sections
from zoo_designs.designs import Scale
from zoo_designs.scale_result import SizeAnswer, scale_result

from tests.compare import fabricate
from zoo.compare import prose, report, run_records, table
from zoo.compare.verdict import answer

DIMS, WIDTHS = (64, 96, 128, 192), (1.0, 2.1, 3.6, 7.8)
CROSSING = 3.0  # times the compute of the smallest size
FLOPS = 1e6


def loss(alibi, width, seed):
    """The laws of the baseline and of ALiBi, which is worse below the crossing and better beyond, with noise."""
    noise = np.random.default_rng([seed, int(10 * width)]).standard_normal()
    own = np.random.default_rng([seed, int(10 * width), int(alibi)]).standard_normal()
    reducible = 1.5 * CROSSING**0.1 * width**-0.3 if alibi else 1.5 * width**-0.2
    return 2.0 + reducible + 0.007 * noise + 0.003 * own


def runs_of_size(dim, width, seeds=(1, 2, 3), **changes):
    for alibi in (False, True):
        variant = f"dim={dim},position=alibi" if alibi else f"dim={dim}"
        for seed in seeds:
            yield fabricate.run(
                variant, seed, loss(alibi, width, seed), {"position": "ALiBi" if alibi else "RoPE", "dim": dim},
                **{"cost.flops_per_token": FLOPS * width, **(changes if alibi and seed == 2 else {})},
            )  # fmt: skip


def size(dim, width, **changes):
    names = (f"dim={dim}", f"dim={dim},position=alibi")
    result = answer(list(runs_of_size(dim, width, **changes)), names[0], varied=("model.position",))
    return SizeAnswer(f"dim={dim}", result, names)


def sizes():
    return [size(dim, width) for dim, width in zip(DIMS, WIDTHS, strict=True)]


def test_the_largest_size_is_predicted_from_the_others_and_checked():
    result = scale_result(sizes()[::-1], ["a note"])
    assert result.sizes == ("dim=64", "dim=96", "dim=128", "dim=192")
    assert result.seeds == (1, 2, 3)
    base, alibi = result.variants
    assert (base.label, alibi.label) == ("RoPE", "ALiBi")
    assert alibi.as_predicted
    assert alibi.predicted_word() == "better"
    assert alibi.difference.value == pytest.approx(alibi.measured, abs=0.03)
    tokens = fabricate.STEPS * fabricate.PER_STEP
    assert alibi.points[0].compute == pytest.approx(3 * FLOPS * tokens)
    true_crossing = CROSSING * 3 * FLOPS * tokens
    assert alibi.crossing.low < true_crossing < alibi.crossing.high
    assert alibi.crossing.value == pytest.approx(true_crossing, rel=0.2)


def test_the_largest_size_has_no_say_in_what_is_predicted_of_it():
    usual, other = sizes(), sizes()
    changed = [replace(run, last={**run.last, "loss": 3.3}) for run in runs_of_size(192, 7.8)]
    other[-1] = SizeAnswer("dim=192", answer(changed, "dim=192"), other[-1].variants)
    one, two = (scale_result(each).variants[1] for each in (usual, other))
    assert one.difference == two.difference
    assert two.measured == 0.0
    assert two.as_predicted is False


def test_how_the_difference_goes_on_during_training():
    """Both runs lose by one curve here: the difference is constant but for the noise of validations."""
    change = scale_result(sizes()).variants[1].by_doubling
    assert change.n == 3
    assert change.low < 0 < change.high


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"diverges": 500}, "1 of 3 runs failed at dim=96"), ({"data.fingerprint": "x"}, "not comparable: data at dim=96"),
     ({"cost.flops_per_token": math.nan}, "")],
)  # fmt: skip
def test_a_variant_with_failed_runs_or_without_a_verdict_has_no_law(changes, reason):
    each = sizes()
    each[1] = size(96, 2.1, **changes)
    result = scale_result(each)
    alibi = result.variants[1]
    if reason:
        assert alibi.reason == reason
        assert alibi.expected is None
        assert result.irreducible is None
    else:
        assert "no record of its FLOPs at dim=96" in alibi.reason


def write_comparison(home):
    """runs.json of a comparison at four sizes, and its runs."""
    data = {"notes": ["One learning rate."], "sizes": []}
    for dim, width in zip(DIMS, WIDTHS, strict=True):
        folders = []
        for run in runs_of_size(dim, width):
            folder = home.parent / "lm-tiny" / run.variant / f"s{run.seed}"
            folder.mkdir(parents=True)
            content = {name: getattr(run, name) for name in fabricate.ledger() if name != "format"} | {"format": 1}
            (folder / "ledger.json").write_text(json.dumps(content))
            folders.append(f"../lm-tiny/{run.variant}/s{run.seed}")
        data["sizes"].append({
            "label": f"dim={dim}", "budget": None, "variants": [f"dim={dim}", f"dim={dim},position=alibi"], "tuned": {},
            "tuning": {"seeds": [0], "variants": {"x": {"cost": {"runs": 2, "steps": 20, "seconds": 3.0}}}},
            "runs": folders,
        })  # fmt: skip
    largest = [home.parent / "lm-tiny" / run.variant / f"s{run.seed}" for run in runs_of_size(192, 7.8)]
    record = run_records.Record(tuple(largest), "dim=192", varied=("model.position",), design={"scale": data})
    run_records.save_record(home, record)
    return run_records.load_record(home)


def test_a_report_has_prediction_and_sizes(tmp_path):
    record = write_comparison(tmp_path / "compare")
    result = answer(run_records.read_ledgers(record.folders), record.baseline, varied=record.varied)
    scaling = Scale().load().complete(result, tmp_path / "compare", record)
    result = replace(result, design=Scale(), finding=scaling)
    text = " ".join(table.compose_report(result).as_text().split())
    assert "Sizes dim=64, dim=96 and dim=128 were fitted; dim=192 was predicted from them and measured." in text
    assert "ALiBi: predicted better, measured better; the difference is inside of its prediction." in text
    assert "Tuning at all sizes took 8 runs, 80 steps, 12 s of training." in text
    assert "2,000 bootstrap samples" in text
    assert table.compose_report(result).as_markdown().count("## Differences by size") == 1
    content = json.loads(table.as_json(result))["scale"]
    assert content["variants"][1]["as_predicted"] is True
    assert content["variants"][1]["crossing"]["low"] < content["variants"][1]["crossing"]["value"]
    files = report.write_report(result, tmp_path / "report")
    assert {"scale-losses.png", "scale-differences.png"} <= {file.name for file in files}
    page = (tmp_path / "report" / "comparison.html").read_text()
    assert "Does the difference survive scale?" in page
    assert "is not in the laws that predict it" in page
    damaged = replace(record, design={"scale": {"sizes": [{"label": "dim=64"}]}})
    with pytest.raises(Exception, match="its list of sizes is damaged"):
        Scale().load().complete(result, tmp_path, damaged)


def test_without_sizes_nothing_is_added():
    result = answer(list(runs_of_size(64, 1.0)), "dim=64")
    assert result.design.load().sections(result) == []
    assert json.loads(table.as_json(result))["scale"] is None


def test_a_rate_of_the_baseline_is_said_under_the_verdict():
    runs = list(runs_of_size(64, 1.0))
    result = answer(runs, "dim=64")
    assert prose.learning_rate_notes(result) == [
        "The learning rate 0.003 was chosen for RoPE or the recipe, not for ALiBi: --tune model.lr=… chooses one for "
        "each variant."
    ]
    assert prose.learning_rate_notes(result)[0] in " ".join(table.compose_report(result).as_text().split())
    assert json.loads(table.as_json(result))["variants"][1]["rate_of_baseline"] is True
    tuned = dict.fromkeys(("dim=64", "dim=64,position=alibi"), "lr 0.003, best of 3")
    assert prose.learning_rate_notes(answer(runs, "dim=64", tuned=tuned)) == []
    other = dict.fromkeys(("dim=64", "dim=64,position=alibi"), "dropout 0.1, best of 3")
    assert len(prose.learning_rate_notes(answer(runs, "dim=64", tuned=other))) == 1
    own = [replace(run, choices={**run.choices, "lr": 0.001 if "alibi" in run.variant else 0.003}) for run in runs]
    assert prose.learning_rate_notes(answer(own, "dim=64")) == []


def test_the_cost_of_tuning_is_counted():
    tuning = {"seeds": [0, 1001], "variants": {"a": {"cost": {"runs": 6, "steps": 600, "seconds": 12.0}}}}
    result = replace(answer(list(runs_of_size(64, 1.0)), "dim=64"), tuning=tuning)
    assert prose.learning_rate_notes(result)[-1] == (
        "Tuning of all variants took 6 runs, 600 steps, 12 s of training more, with seeds 0 and 1001, which are not "
        "compared."
    )


def test_sizes_of_equal_compute_have_no_law():
    """The regression over the logarithm of compute divided by zero."""
    result = scale_result([size(dim, width) for dim, width in zip(DIMS, (1.0, 1.0, 2.0, 4.0), strict=True)])
    assert result.irreducible is None
    assert "takes no more FLOPs than dim=" in result.variants[1].reason


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_sizes_keep_their_order_where_all_runs_of_the_baseline_failed(failed):
    """Their compute is not a number, by which nothing can be sorted."""
    each = sizes()
    runs = [
        replace(run, finished=False, outcome={"state": "diverged", "step": 1}, last={"loss": math.nan})
        if run.variant == f"dim={DIMS[failed]}" else run
        for run in runs_of_size(DIMS[failed], WIDTHS[failed])
    ]  # fmt: skip
    varied = answer(runs, f"dim={DIMS[failed]}", varied=("model.position",))
    each[failed] = SizeAnswer(each[failed].label, varied, each[failed].variants)
    result = scale_result(each[::-1])
    assert result.sizes == tuple(f"dim={dim}" for dim in DIMS)
    assert "runs failed" in result.variants[0].reason
    assert result.variants[1].expected is None


def test_every_section_stands_in_the_page_and_in_markdown():
    every = sizes()
    check_sections(replace(every[-1].answer, design=Scale(), finding=scale_result(every)))

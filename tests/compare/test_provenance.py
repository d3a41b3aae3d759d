"""What a report says about its runs: code, hardware, commands, failures, and what was equal."""

from dataclasses import replace
from pathlib import Path

from fabricate import run, study

from zoo.compare import report
from zoo.compare.report import page
from zoo.compare.verdict import answer


def two_variants(edit=lambda one: one):
    return answer([edit(one) for one in study({"default": 1.7, "position=ALiBi": 1.6}, seeds=3)])


def test_what_the_records_show_to_be_equal_is_said():
    equal = report.held_equal(two_variants())
    assert equal["batches"] == "the same batches in the same order, by their digest, at every seed"
    assert equal["initial weights"].startswith("the tensors that all variants have are bit-identical at every seed")
    assert equal["code"] == "the same sources, by their digests"
    assert equal["configuration"] == "3 of 3 recorded options are equal"


def test_what_is_not_equal_or_not_recorded_is_not_called_equal():
    def edit(one):
        if one.variant == "default":
            return one
        other = {**one.batches, "digest": "other"} if one.seed == 2 else one.batches
        return replace(one, batches=other, code={}, config={**one.config, "trainer.gradient_clip_val": 2.0}, steps=7)

    equal = report.held_equal(two_variants(edit))
    assert equal["batches"] == "differs at 1 of 3 seeds"
    assert equal["code"] == "not recorded"
    assert equal["configuration"].endswith("are equal; different: trainer.gradient_clip_val")
    assert equal["budget"] == "differs"
    assert report.held_equal(answer([run(seed=1)])) == {}


def test_code_and_hardware_are_counted_where_they_differ():
    def edit(one):
        code = {"zoo": {"version": "1", "source": "abc", "commit": "0123456789abcdef", "dirty": one.seed == 3}}
        machine = "laptop" if one.seed == 3 else "server"
        return replace(one, code=code, setting={**one.setting, "machine": machine})

    result = two_variants(edit)
    assert report.code_rows(result) == [
        ["zoo", "1", "0123456789ab", "abc", "4 of 6"], ["zoo", "1", "0123456789ab, with changes", "abc", "2 of 6"],
    ]  # fmt: skip
    assert report.environment(result)["machine"] == "server (4 runs); laptop (2 runs)"
    assert report.environment(result)["torch"] == "2.15.0"


def test_the_command_of_a_run_is_the_first_of_its_log(tmp_path):
    folder = tmp_path / "norm=x" / "s1"
    folder.mkdir(parents=True)
    one = replace(run(seed=1), path=folder / "ledger.json")
    assert report.run_command(one) == f"zoo fit {folder / 'config.yaml'}"
    words = "python -m zoo fit lm-tiny '--model.position={class_path: RoPE, init_args: {base: 500}}' --seed=1"
    Path(f"{folder}.log").write_text(f"$ {words}\nstep 1\n$ {words} --resume --ckpt_path=x\n")
    assert report.run_command(one) == f"zoo {words.partition('zoo ')[2]}"
    Path(f"{folder}.log").write_bytes(b"\xff")
    assert report.run_command(one) == f"zoo fit {folder / 'config.yaml'}"


def test_failed_runs_stand_in_the_page_with_their_cause():
    def edit(one):
        if (one.variant, one.seed) != ("position=ALiBi", 2):
            return one
        return replace(
            one, diverged=True, finished=False, outcome={"state": "diverged", "step": 1234, "cause": "a NaN"}
        )

    result = two_variants(edit)
    assert report.failed_runs(result) == [["ALiBi", "s2", "diverged", "1,234", "a NaN"]]
    text = page(result)
    for words in ("What was held equal", "Failed runs", "a NaN", "Code, versions and hardware", "Every run by itself"):
        assert words in text
    assert "None of the 6 runs diverged" in page(two_variants())
    assert report.training_time(result) == sum(182.0 + seed for seed in (1, 2, 3)) * 2

"""Rows by part add up to the model, layers that are alike are one row, and two models differ where they do."""

import pytest
import torch

from tests.explain.test_trace import one_in
from tests.test_recipes import DISTINCT, build
from zoo import registry
from zoo.explain import costs
from zoo.explain.subjects import Subject, find_subject
from zoo.tasks.lm import CausalLM

FIELDS = ("parameters", "flops", "traffic", "seconds")


def explain(task, ceilings, rows=0):
    return costs.explain(Subject("x", task, [], rows, False), ceilings)


@pytest.mark.parametrize("name", one_in(5, DISTINCT, 2))
def test_the_rows_of_every_recipe_add_up_to_the_whole(name, ceilings):
    result = explain(build(name, small=True), ceilings)
    for field in FIELDS:
        assert sum(getattr(row, field) for row in result.parts) == pytest.approx(getattr(result.total, field)), field
    assert result.total.flops == result.traced.flops
    assert len({row.part for row in result.parts}) == len(result.parts)


def language(**options):
    with torch.device("meta"):
        return CausalLM(31, 8, **({"dim": 16, "depth": 4, "heads": 2} | options))


def test_layers_that_are_alike_are_one_row(ceilings):
    rows = {row.part: row for row in explain(language(), ceilings).parts}
    assert rows["stack.blocks.0–3.attend.part"].count == 4
    assert rows["stack.blocks.0–3.attend.part"].products == 4
    assert rows["stack.blocks.0–3.ffn.part"].products == 2
    assert rows["model, itself"].products == 1


def test_another_layer_has_its_own_row(ceilings):
    from zoo.models.layer_overrides import Override
    from zoo.parts.ffn import SwiGLU

    result = explain(language(overrides=[Override(first=2, last=2, ffn=SwiGLU)]), ceilings)
    names = {row.part: row.name for row in result.parts if row.part.endswith("ffn.part")}
    assert sorted(names.values()) == ["MLP", "MLP", "SwiGLU"]
    assert len(result.blocks) == 2


def test_tied_weights_count_once(ceilings):
    tied, untied = (explain(language(tie=tie), ceilings) for tie in (True, False))
    assert untied.total.parameters - tied.total.parameters == 31 * 16
    assert sum(row.parameters for row in tied.parts) == sum(p.numel() for p in language().net.parameters())


def test_the_difference_is_what_was_swapped(ceilings):
    from zoo.parts.position import ALiBi

    before, after = explain(language(), ceilings), explain(language(position=ALiBi), ceilings)
    assert [pair.part for pair in costs.differences(before, after)] == ["stack.blocks.*.attend.part"]
    assert costs.differences(before, before) == []
    (pair,) = costs.differences(before, after)
    assert pair.change("flops") == 0
    assert pair.change("parameters") == 0
    assert pair.change("traffic") == after.total.traffic - before.total.traffic != 0


def test_a_part_that_only_one_model_has_is_a_difference(ceilings):
    before, after = explain(language(), ceilings), explain(language(tie=False), ceilings)
    pairs = {pair.part: pair for pair in costs.differences(before, after)}
    assert sum(pair.change("parameters") for pair in pairs.values()) == 31 * 16


@pytest.mark.parametrize("kind", ["position", "attention", "norm", "ffn", "block", "backend"])
def test_every_builtin_part_of_a_stack_can_be_explained(kind, ceilings):
    from zoo import registry

    builtin = [part for part in registry.parts(kind) if part.builtin]
    assert len(builtin) > 1
    for part in builtin:  # also those that do not go with the default position
        assert costs.explain(find_subject([kind, part.name]), ceilings).total.flops > 0


def test_a_part_that_does_not_go_with_the_default_position_is_explained_without_and_a_note_says_so():
    subject = find_subject(["attention", "disentangled"])
    assert subject.notes[1].startswith("position none")
    assert len(find_subject(["attention", "multihead"]).notes) == 1


def test_an_attention_that_cannot_be_causal_is_explained_in_a_classifier_of_images(monkeypatch):
    from zoo.parts.attention import MultiHead

    class Two(MultiHead):
        """Refuses what is causal, as Linformer does."""

        supports = MultiHead.supports - {"causal"}

    monkeypatch.setattr(registry.Part, "load", lambda part: Two)
    subject = find_subject(["attention", "multihead"])
    assert type(subject.task).__name__ == "Classification"
    assert subject.notes[1].startswith("a classifier of images")

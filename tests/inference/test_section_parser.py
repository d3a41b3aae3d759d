"""What a section describes is parsed and refused as jsonargparse does, which parses it more often."""

import copy

import pytest
from jsonargparse import ArgumentParser
from jsonargparse._common import parsing_settings

from zoo.inference.section_parser import SectionParser
from zoo.parts import norm
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Task

MODEL = {
    "attention": {"class_path": "zoo.parts.attention.MultiHead", "init_args": {"kv_heads": 1}},
    "ffn": {"class_path": "zoo.parts.ffn.MoE", "init_args": {"experts": 4}},
    "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"betas": [0.9, 0.99]}},
    "norm": {"class_path": "zoo.parts.norm.Gained", "init_args": {"gain": 2.0}},
    "overrides": [{"layers": "first", "ffn": {"class_path": "zoo.parts.ffn.SwiGLU"}}],
}
GAINED = {"class_path": "zoo.parts.norm.Gained", "init_args": {"eps": 1e-5}}


class Gained(norm.RMSNorm):
    """A norm with an option that has no default."""

    def __init__(self, dim: int, gain: float, eps: float = 1e-6):
        super().__init__(dim, eps)


def parse(parser_class, options):
    """What a parser makes of a model with these options, or its error."""
    parser = parser_class(exit_on_error=False)
    parser.add_subclass_arguments(Task, "model", fail_untyped=False, required=True)
    model = {"class_path": f"{CausalLM.__module__}.CausalLM", "init_args": copy.deepcopy(options)}
    try:
        return parser.parse_object({"model": model}, defaults=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("attention", {"init_args": {"kv_heads": "many"}}),
        ("attention", {"init_args": {"kvheads": 1}}),
        ("ffn", {"class_path": "zoo.parts.norm.RMSNorm", "init_args": {}}),
        ("optimizer", {"init_args": {"betas": "fast"}}),
        ("overrides", [{"layers": "first", "ffn": {"class_path": "zoo.parts.ffn.MoE", "init_args": {"experts": "x"}}}]),
        ("norm", GAINED),
        ("overrides", [{"layers": "first", "norm": GAINED}]),
        ("dims", 3),
    ],
)
def test_options_of_parts_are_checked_at_any_depth(part, change, monkeypatch):
    monkeypatch.setattr(norm, "Gained", Gained, raising=False)
    monkeypatch.setitem(parsing_settings, "import_path_verdicts", {})  # whatever ran before
    fine = parse(SectionParser, MODEL)
    assert fine == parse(ArgumentParser, MODEL)
    assert fine.model.init_args.optimizer.init_args.betas == (0.9, 0.99)
    wrong = MODEL | {part: {**MODEL[part], **change} if isinstance(change, dict) else change}
    refusal = parse(SectionParser, wrong)
    assert refusal == parse(ArgumentParser, wrong)
    assert isinstance(refusal, str)

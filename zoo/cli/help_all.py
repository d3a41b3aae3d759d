"""The complete help of LightningCLI, behind `--help-all`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.config.coercion import describe_type
from zoo.config.fit_options import Command
from zoo.config.run_config import Draft
from zoo.config.signatures import Param, Slot, parameters

if TYPE_CHECKING:
    from zoo.config.resolve import Schema


def run(command: Command, draft: Draft, schema: Schema) -> int:
    """Print every option of the trainer, and of the model and data that a recipe or the options choose."""
    print(f"usage: zoo {command.subcommand} [RECIPE|FILE] [options]\n")
    for section, cls in _sections(command, draft, schema):
        print(f"{section} ({cls.__module__}.{cls.__qualname__})")
        for param in parameters(cls).values():
            print(f"  --{section}.{param.name:<28} {_about(param)}")
        print()
    if not draft.layers and not command.options:
        print("Name a recipe to see the options of its model and data: zoo fit RECIPE --help-all")
    return 0


def _sections(command: Command, draft: Draft, schema: Schema) -> list[tuple[str, type]]:
    if not draft.layers:
        return [("trainer", schema.trainer)]
    from zoo.config.run_config import make_plan

    classes = make_plan(command, draft, schema).resolved.classes
    below = [key for key in classes if key.startswith("model.")]
    return [*((key, classes[key]) for key in ("model", *below, "data")), ("trainer", schema.trainer)]


def _about(param: Param) -> str:
    default = "required" if param.required else f"default {getattr(param.default, '__name__', param.default)}"
    return f"{_slot(param.slot) if param.slot else describe_type(param.annotation)}; {default}"


def _slot(slot: Slot) -> str:
    return f"a {slot.word}, see: zoo list {slot.kind}" if slot.kind else f"a {slot.base.__name__}"

"""The command of this package, as data. Needs no torch."""

from __future__ import annotations

from zoo.command_line import FORCE, USE, Argument, Command, Option


class Import(Command):
    """A published checkpoint (GPT-2, LLaMA, ViT, …) as something to use and change."""

    group = USE
    runs = "zoo_pretrained.import_checkpoint:run"
    arguments = (
        Argument("CHECKPOINT", "a folder with config.json and safetensors, or hf://ORG/NAME[@REVISION]"),
        Argument("OUT", "the folder to write"),
    )
    options = (
        *(
            Option(f"model.{kind}", f"swap the {kind}", metavar="NAME", key=f"model.{kind}", kind=kind)
            for kind in ("position", "attention", "backend", "norm", "ffn", "block")
        ),
        Option("dtype", "type of the weights, theirs unless given: bf16 rounds", choices=("fp32", "bf16")),
        FORCE,
    )
    open_options = ("model.*",)
    examples = ("zoo import gpt2/ imported/", "zoo import gpt2/ swapped/ --model.norm rmsnorm --force")
    description = (
        "OUT gets recipe.yaml too, to train it further. No network is used but for hf://, no code is read from the "
        "checkpoint, and\nevery tensor is accounted for: an unknown key, a missing one or another shape is an error. "
        "Families: docs/import.md.\nA swapped part keeps the tensors that fit; the output says which are kept, "
        "converted, new or left out."
    )

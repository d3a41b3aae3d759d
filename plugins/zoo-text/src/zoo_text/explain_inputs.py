"""What `zoo explain` follows of the trained models of this package."""

from __future__ import annotations

import torch

from zoo.explain.inside import Inputs, first_tokens, require_text
from zoo.logging.attention_maps import labels
from zoo_text.inference.labelling import TrainedLabelling
from zoo_text.inference.masked import TrainedMaskedLM


def masked_inputs(model: TrainedMaskedLM, text: str | None, image: str | None) -> Inputs:
    """Inputs from the tokens of a text, with blanks. Raises UsageError where it is missing or empty."""
    notes: list[str] = []
    ids = model.encode_blanks(require_text(model, text))
    marks = len(model.tokenizer.marked([]))
    row = torch.tensor(
        [model.tokenizer.marked(first_tokens(ids, model.net.max_length - marks, notes))], device=model.device
    )
    words = labels(model.tokenizer, row[0])
    return Inputs((row,), getattr(model.net, "stack", None), words, [], words, model.tokenizer, notes=notes)


def labelling_inputs(model: TrainedLabelling, text: str | None, image: str | None) -> Inputs:
    """Inputs from the tokens of a text. Raises UsageError where it is missing or empty."""
    notes: list[str] = []
    ids = first_tokens(model.tokenizer.encode(require_text(model, text)), model.room, notes)
    row = torch.tensor([model.tokenizer.marked(ids)], device=model.device)
    words = labels(model.tokenizer, row[0])
    positions = ["the text"] if model.task.unit == "text" else words
    return Inputs((row,), getattr(model.net, "stack", None), words, [], positions, model.names, notes=notes)

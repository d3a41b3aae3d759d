"""Fill in the middle: causal language modelling of texts whose middle stands last (Bavarian et al., 2022)."""

from typing import ClassVar

import torch
from torch import Tensor

from zoo.models.loss import IGNORED
from zoo.tasks.lm import CausalLM
from zoo.tasks.task import Directions, Loss


class FIM(CausalLM):
    """Predict each next token of texts whose middle was moved to the end; reports the loss of texts as they are.

    Loss, perplexity and bits per byte are those of CausalLM, so that both are compared by them. ``middle_loss`` is the
    cross-entropy of the tokens of a middle, given what stands before and behind it (nats per token).
    """

    in_matrix = False  # its stack is CausalLM's
    trained = "zoo_text.inference.infill:TrainedInfill"
    learns_from = "texts with a middle to fill in"
    example_data = ("InfillText",)
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "bits_per_byte": "min", "middle_loss": "min"}
    mean_metrics = ("bits_per_byte", "middle_loss")

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """Cross-entropy summed over all tokens of rearranged texts (), special tokens included, and their number."""
        return super().loss({"inputs": batch["infill_inputs"], "targets": batch["infill_targets"]})

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The loss of CausalLM, after updating the metrics."""
        middle = super().loss({"inputs": batch["infill_inputs"], "targets": batch["middle_targets"]})
        if middle.size > 0:
            self.metrics["middle_loss"].update(middle.total / middle.size, middle.size)
        return self.update_bits_per_byte(super().loss(batch), batch)

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random texts (rows, T) as they are and rearranged, the last token of each a middle without a successor."""
        batch = super().sample(rows)
        tokens = torch.randint(self.net.vocab_size, (rows, batch["inputs"].size(1) + 1))
        targets = tokens[:, 1:].clone()
        targets[:, -1] = IGNORED
        middle = targets.masked_fill(torch.arange(targets.size(1)) < targets.size(1) // 2, IGNORED)
        return {**batch, "infill_inputs": tokens[:, :-1], "infill_targets": targets, "middle_targets": middle}

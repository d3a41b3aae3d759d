"""Direct preference optimisation: learn from pairs of answers, without a reward model (Rafailov et al., 2023)."""

import copy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import AdamW

from zoo.errors import UsageError
from zoo.models.language import LanguageModel
from zoo.tasks.schedule import Cosine
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task


class DPO(Task):
    """Prefer one of two answers, measured against the weights that training started from; reports how often it does.

    The reward of an answer is beta (log p(answer) - log p_reference(answer)). ``accuracy`` is the share of pairs whose
    preferred answer has the higher reward, ``margin`` the mean difference of both rewards.
    """

    in_matrix = False  # its stack is CausalLM's
    sample_length = 12
    unit = "pair"
    prediction = "the preferred answer"
    trained = "zoo.inference.language:TrainedLanguageModel"
    learns_from = "pairs of answers, the preferred one and another"
    example_data = ("Preferences", "PreferenceFiles")
    data_sizes: ClassVar = {"vocab_size": 64, "max_length": 64}
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "accuracy": "max"}
    mean_metrics = ("accuracy", "margin")
    net: LanguageModel

    def __init__(
        self,
        vocab_size: int | None = None,
        max_length: int | None = None,
        beta: float = 0.1,
        lr: float = 1e-5,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = Cosine,
        **model,
    ):
        """
        Args:
            vocab_size: number of tokens; what the data has unless given.
            max_length: longest sequence; what the data has unless given.
            beta: how strongly the model is held to the reference; the paper's 0.1.
        """
        if not 0 < beta < float("inf"):
            raise UsageError(f"model.beta must be above 0, got {beta}.")
        super().__init__(
            self.build_network(vocab_size=vocab_size, max_length=max_length, **model), lr, optimizer, schedule
        )
        self.beta = beta
        self.reference = copy.deepcopy(self.net).requires_grad_(False)
        self.has_reference = False  # that of a start or of a checkpoint, not of random weights

    @staticmethod
    def network(**options: Any) -> LanguageModel:
        """A LanguageModel."""
        return LanguageModel(**options)

    def take_start(self) -> None:
        """Freeze a copy of the weights that training starts from: the reference."""
        self.reference.load_state_dict(self.net.state_dict())
        self.has_reference = True

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint holds the reference, too."""
        super().on_load_checkpoint(checkpoint)
        self.has_reference = True

    def on_fit_start(self) -> None:
        """As the base does. Raises UsageError where the reference would be random."""
        if not self.has_reference:
            raise UsageError(
                "DPO learns how answers of a trained model are to change: name that model.\nAdd --tune.start RUN"
            )
        super().on_fit_start()

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, vocab_size)."""
        return self.net(tokens)

    def margins(self, batch: dict[str, Tensor]) -> Tensor:
        """reward(preferred answer) - reward(other answer) of every pair, (B,)."""
        rewards = []
        self.reference.eval()  # not once for all: Lightning sets the mode of every module when training starts
        for name in ("chosen", "rejected"):
            tokens, valid = batch[name], batch[f"{name}_valid"]
            own = answer_log_probabilities(self.net, tokens, valid, batch["prompt"])
            with torch.no_grad():
                usual = answer_log_probabilities(self.reference, tokens, valid, batch["prompt"])
            rewards.append(self.beta * (own - usual))
        return rewards[0] - rewards[1]

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        """-log sigmoid(margin) summed over pairs (), and their number ()."""
        return self._loss(self.margins(batch))

    @staticmethod
    def _loss(margins: Tensor) -> Loss:
        return Loss(-F.logsigmoid(margins).sum(), torch.tensor(len(margins), device=margins.device))

    def evaluate(self, batch: dict[str, Tensor]) -> Loss:
        """The same, after updating accuracy and margin."""
        margins = self.margins(batch)
        self.metrics["accuracy"].update((margins > 0).float())
        self.metrics["margin"].update(margins)
        return self._loss(margins)

    def sample(self, rows: int) -> dict[str, Tensor]:
        """Random pairs (rows, T) with their masks, and the lengths of prompts (rows,)."""
        length = min(self.net.max_length, self.sample_length)
        pairs = torch.randint(self.net.vocab_size, (2, rows, length))
        valid = torch.arange(length) < torch.randint(length // 2, length + 1, (2, rows, 1))
        return {
            "chosen": pairs[0], "chosen_valid": valid[0], "rejected": pairs[1], "rejected_valid": valid[1],
            "prompt": torch.randint(1, length // 2, (rows,)),
        }  # fmt: skip

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """Both texts of a pair, (2, T) on the meta device, and 1."""
        return (torch.zeros(2, self.net.max_length, dtype=torch.long, device="meta"),), 1


def answer_log_probabilities(net: LanguageModel, tokens: Tensor, valid: Tensor, prompt: Tensor) -> Tensor:
    """log p(answer | prompt) of every row, (B,) in float32 or wider, of tokens (B, T) that are padded on the right.

    ``valid`` (B, T) is False at padding, and ``prompt`` (B,) is the number of tokens in front of each answer. Logits
    exist at the answers alone.
    """
    place = torch.arange(1, tokens.size(1), device=tokens.device)
    in_answer = valid[:, 1:] & (place >= prompt[:, None])
    row, column = in_answer.nonzero(as_tuple=True)
    states = net.states(tokens[:, :-1])[row, column]
    logits = net.logits(states)
    log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    own = log_probs.gather(1, tokens[row, column + 1, None])[:, 0]
    return own.new_zeros(len(tokens)).index_add(0, row, own)

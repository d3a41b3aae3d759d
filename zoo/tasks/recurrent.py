"""Translation by recurrent networks."""

from typing import Literal

import torch
from torch.optim import AdamW

from zoo.models.recurrent import RecurrentSeq2Seq
from zoo.tasks.schedule import InverseSqrt
from zoo.tasks.task import OptimizerFactory, ScheduleFactory, required_size
from zoo.tasks.translation import TranslationTask


class RNNSeq2Seq(TranslationTask):
    """Translation by an RNN, GRU or LSTM encoder-decoder, with a fixed context vector or with Bahdanau attention.

    Loss, decoding and figures are those of the Transformer's Translation; a fixed context has no alignment.
    """

    net: RecurrentSeq2Seq

    def __init__(
        self,
        source_vocab_size: int | None = None,
        target_vocab_size: int | None = None,
        max_length: int | None = None,
        label_smoothing: float = 0.1,
        bleu_tokenize: Literal["13a", "zh", "char", "intl", "none"] = "13a",
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = InverseSqrt,
        **model,
    ):
        """
        Args:
            source_vocab_size: number of source tokens; what the data has unless given.
            target_vocab_size: number of target tokens; what the data has unless given.
            max_length: longest source or target; what the data has unless given.
            label_smoothing: share of the target spread over all tokens.
            bleu_tokenize: how SacreBLEU cuts text into words; zh for Chinese.
            lr: learning rate at its peak.
            optimizer: the optimiser; matrices decay, gains and biases never.
            schedule: how the learning rate moves.
        """
        sizes = (
            required_size(source_vocab_size, "source_vocab_size"),
            required_size(target_vocab_size, "target_vocab_size"),
        )
        length = required_size(max_length, "max_length")
        net = RecurrentSeq2Seq(*sizes, length, seed=torch.initial_seed(), **model)
        super().__init__(net, label_smoothing, bleu_tokenize, lr, optimizer, schedule)

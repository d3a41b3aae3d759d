"""Translation by recurrent networks."""

from typing import Any

from zoo.tasks.translation import Translation, TranslationTask
from zoo_classic.seq2seq import RecurrentSeq2Seq


class RNNSeq2Seq(Translation):
    """Translation by an RNN, GRU or LSTM encoder-decoder, with a fixed context vector or with Bahdanau attention.

    Loss, decoding and figures are those of the Transformer's Translation; a fixed context has no alignment.
    """

    loss = TranslationTask.loss  # this network has no states without padding

    @staticmethod
    def network(**options: Any) -> RecurrentSeq2Seq:
        """A RecurrentSeq2Seq."""
        return RecurrentSeq2Seq(**options)

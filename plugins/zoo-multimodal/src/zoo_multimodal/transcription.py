"""Audio to text."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW
from torchmetrics.functional.text import char_error_rate

from zoo.tasks.schedule import InverseSqrt
from zoo.tasks.task import Directions, OptimizerFactory, ScheduleFactory
from zoo.tasks.translation import CorpusScore, TranslationTask
from zoo_multimodal.audio import AudioSeq2Seq


class Transcription(TranslationTask):
    """Predict each next token of what a sound says; reports loss (nats per token), accuracy, exact and error rate.

    Accuracy is the share of tokens that are likeliest given the true ones before them. ``exact`` is the share of texts
    that are right when decoded greedily, ``cer`` the character error rate in percent: insertions, deletions and
    substitutions per 100 characters of the true texts.
    """

    trained = "zoo_multimodal.trained_media:TrainedTranscription"
    training_options = ("label_smoothing",)
    pictures = "zoo_multimodal.sound_pictures:sound_pictures"
    learns_from = "sounds with texts"
    example_data = ("SpokenLetters", "SoundFiles")
    data_sizes: ClassVar = {"target_vocab_size": 64, "max_length": 16, "sample_rate": 8000, "max_samples": 4000}
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "cer": "min", "exact": "max"}
    in_matrix = False  # its stacks are used as Translation's are
    net: AudioSeq2Seq

    def __init__(
        self,
        target_vocab_size: int | None = None,
        max_length: int | None = None,
        sample_rate: int | None = None,
        max_samples: int | None = None,
        label_smoothing: float = 0.0,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = AdamW,
        schedule: ScheduleFactory = InverseSqrt,
        **model,
    ):
        """
        Args:
            target_vocab_size: number of tokens; what the data has unless given.
            max_length: longest text; what the data has unless given.
            sample_rate: samples per second; what the data has unless given.
            max_samples: samples of the longest sound; what the data has unless given.
        """
        net = self.build_network(
            target_vocab_size=target_vocab_size,
            sample_rate=sample_rate,
            max_samples=max_samples,
            max_length=max_length,
            **model,
        )
        super().__init__(net, label_smoothing, "none", lr, optimizer, schedule)
        self.text_metrics = {"cer": CorpusScore(char_error_rate, "edits per character of the references")}

    @staticmethod
    def network(**options: Any) -> AudioSeq2Seq:
        """An AudioSeq2Seq."""
        return AudioSeq2Seq(**options)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[dict[str, Any]]:
        """Per sound what was understood, and what was said."""
        rows = zip(self.translate(batch["source"], batch["source_valid"]), batch["text"], strict=True)
        return [{"text": text, "reference": reference} for text, reference in rows]

    def sample(self, rows: int) -> dict[str, Any]:
        """Random sounds (rows, N) and targets (rows, T) with their masks; nothing is decoded."""
        samples = min(self.net.max_samples, 250 * self.sample_length)
        length = min(self.net.max_length, self.sample_length)
        words = self.net.target_embedding.num_embeddings
        source_end = torch.randint(samples // 2, samples + 1, (rows, 1))
        target_end = torch.randint(2, length + 1, (rows, 1))
        return {
            "source": torch.randn(rows, samples), "source_valid": torch.arange(samples) < source_end,
            "target": torch.randint(words, (rows, length)), "target_valid": torch.arange(length) < target_end,
            "slots": torch.zeros(0, 5, dtype=torch.long), "decode": torch.zeros(rows, dtype=torch.bool),
        }  # fmt: skip

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """The longest sound (1, N) and text (1, T) on the meta device, and T."""
        sound = torch.zeros(1, self.net.max_samples, device="meta")
        return (sound, torch.zeros(1, self.net.max_length, dtype=torch.long, device="meta")), self.net.max_length

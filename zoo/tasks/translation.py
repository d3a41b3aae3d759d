"""Translation from pairs of sentences."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
import torch.nn.functional as F
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor, nn
from torch.optim import AdamW

from zoo.models.attention_weights import record_weights
from zoo.models.decoding_state import State
from zoo.models.generation import GenerationConfig, generate
from zoo.models.loss import IGNORED
from zoo.models.seq2seq import Seq2Seq
from zoo.parts.packing import Packing
from zoo.tasks.schedule import InverseSqrt
from zoo.tasks.task import Directions, Loss, OptimizerFactory, ScheduleFactory, Task
from zoo.value_checks import a_rate


class Translator(Protocol):
    """A network that translates: logits of a target, and a state that generates one."""

    max_length: int

    @property
    def decoder(self) -> nn.Module:
        """The module with attention to the source, for ``record_weights``."""
        ...

    def __call__(self, source: Tensor, target: Tensor, source_valid: Tensor | None = None) -> Tensor:
        """Source (B, S) and target (B, T) to logits (B, T, target_vocab_size)."""
        ...

    def begin(self, source: Tensor, valid: Tensor | None, capacity: int) -> State:
        """A state to generate up to ``capacity`` tokens for sources (B, S)."""
        ...


class CorpusScore:
    """A figure of all decoded texts together, in every process, from 0 to 1; ``signature`` says how it is measured."""

    def __init__(self, score: Callable[[list[str], list[str]], Any], signature: str):
        self.score, self.signature = score, signature
        self.pairs: list[tuple[str, str]] = []  # decoded text and reference

    def update(self, hypotheses: Sequence[str], references: Sequence[str]) -> None:
        """Add decoded texts and the true ones."""
        self.pairs += zip(hypotheses, references, strict=True)

    def compute(self) -> float:
        """The figure of all texts since the last reset; every process must call it."""
        pairs = gather_lists(self.pairs)
        return float(self.score([hypothesis for hypothesis, _ in pairs], [reference for _, reference in pairs]))

    def reset(self) -> None:
        """Start anew."""
        self.pairs = []


def sacrebleu_score(metric: BLEU | CHRF) -> CorpusScore:
    """A metric of sacrebleu with its signature: ``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:…``."""
    _share_of(metric, [""], [""])  # a signature names the number of references, which a metric learns from its first
    return CorpusScore(functools.partial(_share_of, metric), str(metric.get_signature()))


def _share_of(metric: BLEU | CHRF, hypotheses: list[str], references: list[str]) -> float:
    return metric.corpus_score(hypotheses, [references]).score / 100


def gather_lists(items: list[Any]) -> list[Any]:
    """The items of all processes, in their order."""
    if not torch.distributed.is_initialized():
        return items
    everywhere: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, items)
    return [item for part in everywhere for item in part]


class TranslationTask(Task):
    """Predict each next target token; reports loss (nats per target token), accuracy, BLEU, chrF, exact, alignment.

    Accuracy is the share of target tokens that are likeliest given the true ones before them. BLEU and chrF are
    measured on detokenised text, which is decoded greedily for the samples that the data marks. Alignment is the share
    of target tokens whose cross-attention (last layer, mean over heads) is strongest within the source tokens that they
    translate, where the data marks those and the network has attention.
    """

    kind = "task"  # a base, as Task is: it has no network of its own
    trained = "zoo.inference.translation:TrainedTranslation"
    pictures = "zoo.logging.attention_maps:alignment_pictures"
    learns_from = "pairs of texts, a source and its target"
    example_data: ClassVar[tuple[str, ...]] = ("Phrasebook", "ParallelFiles")
    data_sizes: ClassVar = {"source_vocab_size": 64, "target_vocab_size": 64, "max_length": 64}
    monitored_metrics: ClassVar[Directions] = {"loss": "min", "bleu": "max", "exact": "max"}
    mean_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "exact", "alignment")
    sample_length = 8

    def __init__(
        self,
        net: Translator,
        label_smoothing: float,
        bleu_tokenize: Literal["13a", "zh", "char", "intl", "none"],
        lr: float,
        optimizer: OptimizerFactory,
        schedule: ScheduleFactory,
    ):
        """
        Args:
            label_smoothing: share of the target spread over all tokens.
            bleu_tokenize: how SacreBLEU cuts text into words; zh for Chinese.
        """
        super().__init__(cast(nn.Module, net), lr, optimizer, schedule)
        a_rate(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing
        self.text_metrics = {  # reported in percent; `force` silences advice about texts that are cut into words
            "bleu": sacrebleu_score(BLEU(tokenize=bleu_tokenize, force=True)),
            "chrf": sacrebleu_score(CHRF()),
        }
        self.exact_by_type: list[tuple[str, float]] = []

    @property
    def translator(self) -> Translator:
        """The network, by the methods that this task calls."""
        return cast(Translator, self.net)

    def forward(self, source: Tensor, target: Tensor, source_valid: Tensor | None = None) -> Tensor:
        """Source (B, S) and target (B, T) to logits (B, T, target_vocab_size)."""
        return self.translator(source, target, source_valid)

    def prediction_logits(self, net: nn.Module, batch: dict[str, Any]) -> Tensor:
        """Logits (N, target_vocab_size) of the N target tokens of a batch."""
        return net(batch["source"], batch["target"][:, :-1], batch["source_valid"])[batch["target_valid"][:, 1:]]

    def loss(self, batch: dict[str, Any]) -> Loss:
        """Cross-entropy summed over target tokens (), in nats, and their number (); source (B, S), target (B, T)."""
        return self._loss(self._logits(batch), batch, self.label_smoothing)

    def _logits(self, batch: dict[str, Any]) -> Tensor:
        return self(batch["source"], batch["target"][:, :-1], batch["source_valid"]).float()

    def _targets(self, batch: dict[str, Any]) -> Tensor:
        """The target tokens that are to be predicted (B, T), IGNORED at padding."""
        return batch["target"][:, 1:].masked_fill(~batch["target_valid"][:, 1:], IGNORED)

    def _loss(self, logits: Tensor, batch: dict[str, Any], smoothing: float) -> Loss:
        logits, targets = logits.flatten(0, 1), self._targets(batch).flatten()
        total = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
        return Loss(total, batch["target_valid"][:, 1:].sum())

    def evaluate(self, batch: dict[str, Any]) -> Loss:
        """The same without smoothing, after updating the metrics; decodes rows that ``decode`` (B,) marks."""
        with record_weights(self.translator.decoder) as recorded:
            logits = self._logits(batch)
        valid = batch["target_valid"][:, 1:]
        self.metrics["accuracy"].update((logits.argmax(-1) == batch["target"][:, 1:])[valid].float())
        if recorded and len(batch["slots"]):
            self._align(list(recorded.values())[-1].mean(1), batch["slots"])
        if batch["decode"].any():
            self._score(batch)
        return self._loss(logits, batch, 0.0)

    def _align(self, weights: Tensor, slots: Tensor) -> None:
        """Count target tokens of slots whose strongest weight, of (B, T, S), lies in the source tokens of the slot."""
        strongest = weights.argmax(-1)
        hits = []
        for row, source_from, source_to, target_from, target_to in slots.tolist():
            looked = strongest[row, target_from:target_to]
            hits.append((looked >= source_from) & (looked < source_to))
        self.metrics["alignment"].update(torch.cat(hits).float())

    @torch.no_grad()
    def translate(self, source: Tensor, valid: Tensor) -> list[str]:
        """Translations of source tokens (B, S), greedily."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        # an untrained model never stops: twice the source and a few is more than any real translation needs
        longest = (2 * valid.sum(1) + 10).clamp(max=self.translator.max_length)
        state = self.translator.begin(source, valid, int(longest.max()))
        start_tokens = torch.full((len(source), 1), data.target_tokenizer.bos, device=source.device)
        search = GenerationConfig(max_length=self.translator.max_length)
        hypotheses = generate(state, start_tokens, data.target_tokenizer.eos, search, longest)
        return [data.detokenize(best.tokens) for best, *_ in hypotheses]

    def _score(self, batch: dict[str, Any]) -> None:
        rows = batch["decode"].nonzero()[:, 0]
        hypotheses = self.translate(batch["source"][rows], batch["source_valid"][rows])
        references = [batch["text"][row] for row in rows.tolist()]
        kinds = [batch["type"][row] for row in rows.tolist()]
        self.update_text_metrics(hypotheses, references)
        for hypothesis, text, kind in zip(hypotheses, references, kinds, strict=True):
            self.metrics["exact"].update(float(hypothesis == text))
            if kind:
                self.exact_by_type.append((kind, float(hypothesis == text)))

    def update_text_metrics(self, hypotheses: list[str], references: list[str]) -> None:
        """Compare decoded texts with the true ones."""
        for metric in self.text_metrics.values():
            metric.update(hypotheses, references)

    @property
    def metric_signatures(self) -> dict[str, str]:
        """How the figures of decoded texts are measured, by their names."""
        return {name: metric.signature for name, metric in self.text_metrics.items()}

    def compute_metrics(self, loss: float) -> dict[str, float]:
        """Perplexity, accuracy, alignment, and where sentences were decoded exact, BLEU and chrF in percent."""
        values = {"perplexity": math.exp(min(loss, 700.0)), **super().compute_metrics(loss)}
        if values["exact"] == values["exact"]:  # something was decoded, here or in another process
            values |= {name: 100 * metric.compute() for name, metric in self.text_metrics.items()}
        for metric in self.text_metrics.values():
            metric.reset()
        return values | self._exact_by_type()

    def _exact_by_type(self) -> dict[str, float]:
        everywhere, self.exact_by_type = gather_lists(self.exact_by_type), []
        hits: dict[str, list[float]] = {}
        for kind, hit in sorted(everywhere):
            hits.setdefault(kind, []).append(hit)
        return {f"exact_{kind}": sum(flags) / len(flags) for kind, flags in hits.items()}

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[dict[str, Any]]:
        """Per sentence its source, translation and reference."""
        hypotheses = self.translate(batch["source"], batch["source_valid"])
        rows = zip(batch["source_text"], hypotheses, batch["text"], strict=True)
        return [{"source": source, "translation": text, "reference": reference} for source, text, reference in rows]

    def sample(self, rows: int) -> dict[str, Any]:
        """Random source (rows, S) and target (rows, T) with their masks; nothing is decoded."""
        words = min(module.num_embeddings for module in self.net.modules() if isinstance(module, nn.Embedding))
        length, end = min(self.translator.max_length, self.sample_length), torch.randint(2, 9, (2, rows, 1))
        source_valid, target_valid = torch.arange(length) < end
        return {
            "source": torch.randint(words, (rows, length)), "source_valid": source_valid,
            "target": torch.randint(words, (rows, length)), "target_valid": target_valid,
            "slots": torch.zeros(0, 5, dtype=torch.long), "decode": torch.zeros(rows, dtype=torch.bool),
        }  # fmt: skip

    def example(self) -> tuple[tuple[Tensor, ...], int]:
        """Source and target of one sentence (1, T) on the meta device, and T."""
        length = min(self.translator.max_length, 32)
        tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
        return (tokens, tokens), length


class Translation(TranslationTask):
    """Translation by a Transformer; reports loss, BLEU, chrF, exact matches and how well attention is aligned."""

    training_options = ("label_smoothing", "bleu_tokenize")
    net: Seq2Seq

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
        """
        net = self.build_network(
            source_vocab_size=source_vocab_size, target_vocab_size=target_vocab_size, max_length=max_length, **model
        )
        super().__init__(net, label_smoothing, bleu_tokenize, lr, optimizer, schedule)

    @staticmethod
    def network(**options: Any) -> Any:
        """A Seq2Seq."""
        return Seq2Seq(**options)

    prediction_logits = TranslationTask.prediction_logits  # its loss is the base's

    def loss(self, batch: dict[str, Any]) -> Loss:
        """As the base's, computed some rows of logits at a time, and without padding in training."""
        valid, targets = batch["target_valid"][:, 1:], self._targets(batch)
        packing = Packing.of(valid) if self.training else None
        states = self.net.states(batch["source"], batch["target"][:, :-1], batch["source_valid"], packing)
        if packing is not None:
            targets = packing.pack(targets, IGNORED)
        return Loss(self.net.token_loss(states, targets, self.label_smoothing), valid.sum())

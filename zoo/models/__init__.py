"""Models in plain torch: parts assembled, usable without Lightning."""

from zoo.models.language import LanguageModel
from zoo.models.seq2seq import Seq2Seq
from zoo.models.vit import ViT

__all__ = ["LanguageModel", "Seq2Seq", "ViT"]

"""XLM-R (Conneau et al., 2020) and CamemBERT (Martin et al., 2020): RoBERTa's model with defaults of their own."""

from __future__ import annotations

from zoo_pretrained.bert import MASKED, TEXTS, TOKENS, RoBERTa, RoBERTaClassifier, RoBERTaTagger, make_keys

XLM, CAMEMBERT = "xlm-roberta", "camembert"


class XLMRoBERTa(RoBERTa):
    """XLM-R (Conneau et al., 2020) as a masked language model."""

    name = XLM
    types = (XLM,)
    architectures = ("XLMRobertaForMaskedLM",)
    keys = make_keys(XLM, MASKED)


class XLMRoBERTaClassifier(RoBERTaClassifier):
    """XLM-R that classifies texts."""

    name = f"{XLM}-classifier"
    types = (XLM,)
    architectures = ("XLMRobertaForSequenceClassification",)
    keys = make_keys(XLM, TEXTS)


class XLMRoBERTaTagger(RoBERTaTagger):
    """XLM-R that classifies tokens."""

    name = f"{XLM}-tagger"
    types = (XLM,)
    architectures = ("XLMRobertaForTokenClassification",)
    keys = make_keys(XLM, TOKENS)


class CamemBERT(RoBERTa):
    """CamemBERT (Martin et al., 2020) as a masked language model."""

    name = CAMEMBERT
    types = (CAMEMBERT,)
    architectures = ("CamembertForMaskedLM",)
    keys = make_keys(CAMEMBERT, MASKED)


class CamemBERTClassifier(RoBERTaClassifier):
    """CamemBERT that classifies texts."""

    name = f"{CAMEMBERT}-classifier"
    types = (CAMEMBERT,)
    architectures = ("CamembertForSequenceClassification",)
    keys = make_keys(CAMEMBERT, TEXTS)


class CamemBERTTagger(RoBERTaTagger):
    """CamemBERT that classifies tokens."""

    name = f"{CAMEMBERT}-tagger"
    types = (CAMEMBERT,)
    architectures = ("CamembertForTokenClassification",)
    keys = make_keys(CAMEMBERT, TOKENS)

"""Every task and the data module keep the contract of their kind."""

import pytest
from zoo_classic.classifiers import FastText, TextCNN
from zoo_classic.convolutional import ConvolutionalLM
from zoo_classic.elmo import ELMo
from zoo_classic.glove import GloVe
from zoo_classic.ngram import NGram
from zoo_classic.nnlm import NNLM
from zoo_classic.recurrent import RecurrentLM
from zoo_classic.reversal import Reversal
from zoo_classic.sentences import Sentences
from zoo_classic.translation import RNNSeq2Seq
from zoo_classic.word2vec import Word2Vec

from zoo.conformance import checks

PARTS = [
    *((NGram, {"smoothing": smoothing}) for smoothing in ("laplace", "kneser_ney")),
    (NNLM, {}),
    *((RecurrentLM, {"cell": cell}) for cell in ("rnn", "gru", "lstm")),
    (ConvolutionalLM, {}),
    *((Word2Vec, {"objective": o, "output": s}) for o in ("skipgram", "cbow") for s in ("negative", "softmax")),
    *((ELMo, {"input": read}) for read in ("tokens", "letters")),
    (GloVe, {}),
    (TextCNN, {}),
    *((FastText, {"ngrams": ngrams}) for ngrams in (1, 2)),
    (Sentences, {"size": 400}),
    *((RNNSeq2Seq, {"cell": cell, "score": score}) for cell, score in (("gru", "additive"), ("lstm", "none"))),
    (Reversal, {"size": 400}),
]
ONCE = ("clean_import", "documentation")  # whatever the options are
FIRST = dict(reversed(PARTS))
CHECKS = [
    check
    for part, options in PARTS
    for check in checks(part, **options)
    if options == FIRST[part] or check.name not in ONCE
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract(check):
    check()

"""Convolutions and bags of n-grams against loops over their formulas."""

import pytest
import torch
from classic_runs import trained
from zoo_classic.classifiers import FACTOR, ConvolutionalClassifier, NGramBag

from zoo.errors import UsageError

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0]])
LENGTHS = [6, 2, 1]
VALID = torch.arange(6) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.usefixtures("double")
def test_a_convolution_is_a_loop_over_windows_and_its_largest_value():
    net = ConvolutionalClassifier(10, 3, 6, dim=4, filters=5, widths=(2, 3)).eval()
    logits = net(TOKENS, VALID)
    for row, length in enumerate(LENGTHS):
        vectors = [net.embedding.weight[token] * 2.0 for token in TOKENS[row, :length].tolist()]
        features = []
        for width, layer in zip((2, 3), net.filters, strict=True):
            padded = vectors + [torch.zeros(4)] * max(0, width - length)
            outputs = []
            for start in range(len(padded) - width + 1):
                window = torch.cat(padded[start : start + width])
                outputs.append((layer.weight @ window + layer.bias).clamp(min=0))
            features.append(torch.stack(outputs).max(0).values)
        expected = net.head.weight @ torch.cat(features) + net.head.bias
        assert torch.allclose(logits[row], expected, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("ngrams", [1, 2, 3])
def test_a_bag_is_the_mean_of_the_vectors_of_tokens_and_hashed_n_grams(ngrams):
    net = NGramBag(10, 3, 6, dim=4, ngrams=ngrams, buckets=7)
    logits = net(TOKENS, VALID)
    assert net.embedding.num_embeddings == (10 if ngrams == 1 else 17)
    for row, length in enumerate(LENGTHS):
        text = TOKENS[row, :length].tolist()
        vectors = [net.embedding.weight[token] for token in text]
        for size in range(2, ngrams + 1):
            for start in range(length - size + 1):
                code = text[start]
                for token in text[start + 1 : start + size]:
                    code = (code * FACTOR + token) % 2**31
                vectors.append(net.embedding.weight[10 + code % 7])
        expected = net.head.weight @ torch.stack(vectors).mean(0) + net.head.bias
        assert torch.allclose(logits[row], expected, atol=1e-12)


@pytest.mark.parametrize("make", [ConvolutionalClassifier, NGramBag])
def test_padding_and_the_rest_of_the_batch_change_nothing(make):
    net = make(10, 3, 8).eval()
    together = net(TOKENS, VALID)
    alone = torch.cat([net(TOKENS[row : row + 1, :length]) for row, length in enumerate(LENGTHS)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_the_order_of_words_matters_to_n_grams_and_not_to_a_bag_of_words():
    one, other = torch.tensor([[1, 2, 3]]), torch.tensor([[3, 2, 1]])
    for ngrams, same in ((1, True), (2, False)):
        net = NGramBag(5, 3, 4, ngrams=ngrams)
        assert torch.allclose(net(one), net(other), atol=1e-6) is same


def test_options_that_cannot_be_are_refused():
    for make, options in ((ConvolutionalClassifier, {"widths": [0, 2]}), (ConvolutionalClassifier, {"widths": []})):
        with pytest.raises(UsageError, match="widths"):
            make(5, 3, 4, **options)
    with pytest.raises(UsageError, match="ngrams"):
        NGramBag(5, 3, 4, ngrams=0)


@pytest.mark.parametrize("recipe", ["topics-cnn", "topics-fasttext"])
def test_a_text_is_classified_by_the_command(tmp_path, recipe, capsys):
    from zoo.cli import main

    model = trained(
        tmp_path, recipe, "--trainer.max_steps", "4", "--trainer.val_check_interval", "4", "--data.topics", "3"
    )
    capsys.readouterr()
    assert main(["classify", recipe, "--runs", str(tmp_path), "--text", "Return the next element", "--top", "1"]) == 0
    best = model.classify("Return the next element", top=1)[0][0]
    assert capsys.readouterr().out == f"{best.label} {best.probability:.3f}\n"

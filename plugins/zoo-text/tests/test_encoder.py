"""Encoders of text and their heads: sizes of the paper, padding, pooling, and what a token sees."""

import pytest
import torch
from zoo_text.models.encoder import MaskedLanguageModel, TextClassifier, TokenClassifier, pooled
from zoo_text.models.pseudo_likelihood import pseudo_log_probabilities

from zoo.errors import UsageError
from zoo.parts.block import PostNorm
from zoo.parts.position import ALiBi, Learned, RoPE, Sinusoidal

TINY = {"dim": 16, "depth": 2, "heads": 2}


def test_bert_base_has_the_size_of_the_paper():
    with torch.device("meta"):
        net = MaskedLanguageModel(
            30522, 512, next_sentence=1.0, segments=2, embedding_norm=True, dim=768, depth=12, heads=12,
            position=Learned, block=PostNorm,
        )  # fmt: skip
    assert sum(p.numel() for p in net.parameters()) == 110_106_428  # with both heads


def padded(rows=3, length=9, vocab=40):
    valid = torch.arange(length) < torch.tensor([[length], [4], [6]])
    return torch.randint(vocab, (rows, length)), valid


@pytest.mark.parametrize("position", [RoPE, ALiBi, Sinusoidal, Learned])
def test_padding_changes_nothing(double, position):
    net = MaskedLanguageModel(40, 16, position=position, **TINY).eval()
    tokens, valid = padded()
    logits = net(tokens, valid)
    for row, count in enumerate(valid.sum(1).tolist()):
        torch.testing.assert_close(logits[row, :count], net(tokens[row : row + 1, :count])[0], atol=1e-10, rtol=0)


def test_a_token_sees_both_sides_unless_causal():
    tokens = torch.randint(40, (1, 8))
    other = tokens.clone()
    other[0, 6] = (tokens[0, 6] + 1) % 40
    for causal in (False, True):
        net = TokenClassifier(40, 3, 16, causal=causal, **TINY).eval()
        assert torch.equal(net(tokens)[0, 2], net(other)[0, 2]) == causal


@pytest.mark.parametrize("pool", ["first", "mean", "last"])
def test_pooling_reads_real_tokens_only(double, pool):
    states, valid = torch.randn(3, 9, 5), padded()[1]
    valid[2] = torch.tensor([False] * 3 + [True] * 6)  # padding on the left
    result = pooled(states, valid, pool)
    for row in range(3):
        real = [states[row, column] for column in range(9) if valid[row, column]]
        expected = {"first": real[0], "last": real[-1], "mean": sum(real) / len(real)}[pool]
        torch.testing.assert_close(result[row], expected)


def test_a_causal_classifier_does_not_read_its_first_token():
    with pytest.raises(UsageError, match="pool=first"):
        TextClassifier(40, 3, 16, pool="first", causal=True, **TINY)


def test_segments_tell_two_texts_apart():
    net = MaskedLanguageModel(40, 16, segments=2, **TINY).eval()
    tokens = torch.randint(40, (1, 6))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    assert torch.equal(net(tokens), net(tokens, segments=torch.zeros_like(segments)))
    assert not torch.allclose(net(tokens), net(tokens, segments=segments))


def test_the_embedding_is_the_output_matrix_unless_untied():
    tied, untied = (MaskedLanguageModel(40, 16, tie=tie, **TINY) for tie in (True, False))
    count = [sum(p.numel() for p in net.parameters()) for net in (tied, untied)]
    assert count[1] - count[0] == 40 * 16


def test_pseudo_log_probabilities_hide_one_token_at_a_time(double):
    net = MaskedLanguageModel(40, 16, **TINY).eval()
    tokens, valid = padded()
    selected = valid & (torch.rand(valid.shape) < 0.6)
    result = pseudo_log_probabilities(net, (tokens, valid, torch.zeros_like(tokens)), selected, 7)
    slow = []
    for row, column in selected.nonzero().tolist():
        hidden = tokens[row : row + 1].clone()
        hidden[0, column] = 7
        slow.append(net(hidden, valid[row : row + 1])[0, column].log_softmax(-1)[tokens[row, column]])
    torch.testing.assert_close(result, torch.stack(slow).detach().to(result), atol=1e-6, rtol=0)


def test_the_mean_of_one_real_token_is_that_token_and_of_none_is_zero():
    states = torch.tensor([[[1.0, 2.0], [30.0, 40.0]], [[5.0, 6.0], [7.0, 8.0]]])
    valid = torch.tensor([[True, False], [False, False]])
    assert pooled(states, valid, "mean").tolist() == [[1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("pool", ["first", "mean", "last", "late"])
def test_torch_export_takes_texts_of_any_number_and_length(pool):
    net = TextClassifier(40, 3, 16, pool=pool, pooler="tanh", **TINY).eval()

    def draw(rows, length):
        valid = torch.arange(length) < torch.randint(1, length + 1, (rows, 1))
        return torch.randint(40, (rows, length)), valid

    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=16)}
    program, inputs = torch.export.export(net, draw(2, 7), dynamic_shapes=(sizes, sizes)), draw(5, 12)
    assert torch.allclose(program.module()(*inputs), net(*inputs), atol=1e-5)

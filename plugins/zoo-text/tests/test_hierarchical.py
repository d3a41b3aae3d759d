"""A text in blocks: pooling against its formula, blocks that see nothing of each other, and padding."""

import pytest
import torch
from zoo_text.models.hierarchical import AttentionPool, HierarchicalClassifier

from zoo.errors import UsageError

SMALL = {"dim": 16, "depth": 1, "heads": 2}


def test_pooling_is_the_formula_of_yang():
    torch.manual_seed(0)
    pool, states = AttentionPool(4).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    valid = torch.arange(5) < torch.tensor([[5], [3]])
    pooled, weights = pool(states, valid), pool.weights(states, valid)
    for row, length in enumerate((5, 3)):
        hidden = [torch.tanh(pool.project.weight @ h + pool.project.bias) for h in states[row, :length]]
        scores = torch.stack([pool.context.weight[0] @ one for one in hidden])
        shares = scores.exp() / scores.exp().sum()
        expected = sum(share * h for share, h in zip(shares, states[row, :length], strict=True))
        assert torch.allclose(pooled[row], expected, atol=1e-12)
        assert torch.allclose(weights[row, :length], shares, atol=1e-12)
    assert weights[1, 3:].tolist() == [0, 0]
    assert pool(states, torch.zeros(2, 5, dtype=torch.bool)).tolist() == torch.zeros(2, 4).tolist()


def test_a_text_is_its_blocks_encoded_one_by_one_and_then_together():
    net = HierarchicalClassifier(30, 3, max_length=20, block_length=8, **SMALL).eval()
    tokens = torch.randint(1, 30, (1, 19))
    vectors = []
    for start in (0, 8, 16):
        block = tokens[:, start : start + 8]
        states = net.states(block)  # of the block alone
        vectors.append(net.token_pool(states, torch.ones_like(block, dtype=torch.bool)))
    document = net.document(torch.stack(vectors, 1))
    expected = net.head(net.block_pool(document, torch.ones(1, 3, dtype=torch.bool)))
    assert torch.allclose(net(tokens), expected, atol=1e-5)


def test_padding_and_longer_texts_beside_it_change_nothing():
    net = HierarchicalClassifier(30, 3, max_length=40, block_length=8, **SMALL).eval()
    tokens = torch.randint(1, 30, (2, 40))
    valid = torch.arange(40) < torch.tensor([[11], [40]])
    together, alone = net(tokens, valid), net(tokens[:1, :11])
    assert torch.allclose(together[:1], alone, atol=1e-5)
    changed = tokens.clone()
    changed[0, 11:] = 7
    assert torch.allclose(net(changed, valid), together, atol=1e-6)


def test_the_last_block_of_a_long_text_matters_and_blocks_have_an_order():
    net = HierarchicalClassifier(30, 3, max_length=40, block_length=8, **SMALL).eval()
    tokens = torch.randint(1, 30, (1, 40))
    other = tokens.clone()
    other[0, 39] = other[0, 39] % 29 + 1
    assert not torch.allclose(net(tokens), net(other), atol=1e-6)
    swapped = torch.cat([tokens[:, 8:16], tokens[:, :8], tokens[:, 16:]], 1)
    assert not torch.allclose(net(tokens), net(swapped), atol=1e-6)


@pytest.mark.parametrize("options", [{"block_length": 0}, {"document_depth": 0}, {"head_dropout": 2.0}])
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        HierarchicalClassifier(30, 3, **options, **SMALL)

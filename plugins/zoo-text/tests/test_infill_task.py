"""Fill in the middle: the loss of rearranged rows in training, and that of the text itself in evaluation."""

import pytest
import torch
from text_helpers import TINY, text_file
from zoo_text.data.infill import InfillText
from zoo_text.tasks.infill import FIM

from zoo.data.text import TextFiles
from zoo.tasks.lm import CausalLM


def data_of(folder, **options):
    text = TextFiles(text_file(folder), max_length=24, batch_size=6, seed=1)
    data = InfillText(lambda: text, **options)
    data.ready()
    return data


def tasks_of(data):
    torch.manual_seed(3)
    fim = FIM(**data.sizes(), max_length=24, **TINY).eval()
    causal = CausalLM(**data.sizes(), max_length=24, **TINY).eval()
    causal.load_state_dict(fim.state_dict(), strict=False)
    return fim, causal


def nats(net, tokens, first):
    """-log p of the tokens from ``first`` on, one at a time, each from those before it."""
    total = 0.0
    for place in range(first, len(tokens)):
        scores = net(torch.tensor([tokens[:place]]))[0, -1].detach().double()
        total -= float(scores.log_softmax(-1)[tokens[place]])
    return total


def test_training_sums_all_tokens_of_rearranged_rows_and_evaluation_those_of_the_text(tmp_path):
    data = data_of(tmp_path, rate=1.0)
    fim, causal = tasks_of(data)
    batch = next(iter(data.train_dataloader()))
    total, size = fim.loss(batch)
    rows = torch.cat([batch["infill_inputs"][:, :1], batch["infill_targets"]], 1)
    assert int(size) == int((rows[:, 1:] >= 0).sum()) == rows[:, 1:].numel()  # no place is lost
    expected = sum(nats(fim.net, row.tolist(), 1) for row in rows)
    assert float(total) == pytest.approx(expected, rel=1e-5)
    for one, other in zip(fim.evaluate(batch), causal.evaluate(batch), strict=True):
        torch.testing.assert_close(one, other)
    ours, theirs = fim.compute_metrics(1.0), causal.compute_metrics(1.0)
    shared = {name: value for name, value in theirs.items() if name in ours}
    assert shared == {name: ours[name] for name in ("perplexity", "bits_per_byte")}


def test_middle_loss_is_that_of_the_middles_and_their_ends(tmp_path):
    data = data_of(tmp_path, rate=1.0, spm=0.0)
    fim, _ = tasks_of(data)
    batch = data.datasets["val"].batch(torch.arange(4).numpy(), 0)
    fim.evaluate(batch)
    total, count, middle = 0.0, 0, data.number("<fim_middle>")
    for first, targets in zip(batch["infill_inputs"][:, 0], batch["infill_targets"], strict=True):
        row = [int(first), *targets[targets >= 0].tolist()]
        begin = row.index(middle) + 1  # a row is one document here: the text is one file
        total, count = total + nats(fim.net, row, begin), count + len(row) - begin
    assert fim.compute_metrics(1.0)["middle_loss"] == pytest.approx(total / count, rel=1e-5)


def test_both_tasks_say_what_they_are_compared_by():
    assert FIM.prediction == CausalLM.prediction
    assert [*FIM.monitored_metrics][:2] == [*CausalLM.monitored_metrics][:2]
    assert FIM.trained != CausalLM.trained

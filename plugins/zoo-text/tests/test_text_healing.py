"""Tasks of texts have as many logits as their loss has terms, or cannot be healed."""

import pytest
from zoo_text.tasks import embedding, infill, labelling, masked, preference

from zoo.errors import UsageError
from zoo.finetuning.finetune import owner_of_logits

SIZES = {"max_length": 16, "dim": 16, "depth": 1, "heads": 2}


@pytest.mark.parametrize("cls", [labelling.SequenceClassification, labelling.TokenClassification])
def test_tasks_with_labels_are_healed(cls):
    task = cls(vocab_size=20, num_classes=3, **SIZES)
    batch = task.sample(4)
    assert issubclass(cls, owner_of_logits(task))
    assert len(task.prediction_logits(task.net, batch)) == task.loss(batch).size


@pytest.mark.parametrize("cls", [preference.DPO, infill.FIM, masked.MaskedLM, embedding.TextEmbedding])
def test_tasks_with_a_loss_of_another_kind_are_refused_by_name(cls):
    with pytest.raises(UsageError, match=rf"tune\.heal: {cls.__name__} has a loss of its own"):
        owner_of_logits(cls(vocab_size=20, **SIZES))

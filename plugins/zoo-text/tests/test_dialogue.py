"""Conversations: their tokens, which of them are learned, and files of them."""

import json

import pytest
import torch
from zoo_text.data.dialogue import DialogueFiles

from zoo.data.conversation import Conversation, Turn, chat_tokens
from zoo.errors import UsageError

TURNS = Conversation(
    [Turn("user", "Who?"), Turn("assistant", "Me."), Turn("user", "<eos> is text"), Turn("assistant", "")]
)


def data(tmp_path, **options):
    return DialogueFiles(**DialogueFiles.sample_files(tmp_path, 1), vocab_size=400, **options)


def test_a_batch_predicts_every_token_of_every_answer_and_no_other(tmp_path):
    module = data(tmp_path)
    module.ready()
    batch = module.datasets["train"].batch(torch.arange(8).numpy(), 0)
    conversations = module.conversations()["train"]
    for row in range(8):
        real = batch["targets"][row] >= 0
        expected = [module.tokenizer.encode(turn.text) for turn in conversations[row] if turn.role == "assistant"]
        eos = module.tokenizer.eos
        assert batch["targets"][row][real].tolist() == [token for one in expected for token in (*one, eos)]
        assert torch.equal(real, batch["answers"][row] > 0)
        assert int(batch["bytes"][row]) == sum(
            len(turn.text) for turn in conversations[row] if turn.role == "assistant"
        )
        follows = batch["inputs"][row, 1:] == batch["targets"][row, :-1]
        assert follows[real[:-1]].all()  # what is predicted is the next input


def test_long_conversations_are_left_out_and_counted(tmp_path, caplog):
    module = data(tmp_path, max_length=64)
    lengths = [
        len(chat_tokens(module.tokenizer, one)[0]) for one in (module.ready(), module.conversations())[1]["train"]
    ]
    short = sum(length <= 64 for length in lengths)
    assert 0 < short < 60
    assert len(module.datasets["train"]) == short
    assert f"{60 - short} of 60 train conversations have more than max_length=64" in caplog.text
    with pytest.raises(UsageError, match="no conversation of at most max_length=4"):
        data(tmp_path, max_length=4, max_tokens=8).ready()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is no line of JSON"),
        ("[]", "is a list: a row is an object"),
        ('{"messages": [{"role": "user"}]}', "must have messages, a list of objects"),
        ('{"messages": []}', "must be the assistant's"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "must be the assistant's"),
        (
            '{"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "a"}]}',
            "message 1 is the assistant's",
        ),
        ('{"messages": [{"role": "user", "content": 1}, {"role": "assistant", "content": "a"}]}', "must be a text"),
    ],
)
def test_a_line_that_is_no_conversation_is_named(tmp_path, line, message):
    good = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    path = tmp_path / "turns.jsonl"
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(UsageError, match=f"turns.jsonl:2.*{message}"):
        DialogueFiles(str(path)).ready()


def test_without_a_validation_file_the_last_conversations_validate(tmp_path):
    options = DialogueFiles.sample_files(tmp_path, 1)
    splits = DialogueFiles(options["path"], val_fraction=0.2).conversations()
    assert [len(splits[name]) for name in ("train", "val")] == [48, 12]
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds no row"):
        DialogueFiles(str(tmp_path / "empty.jsonl")).ready()

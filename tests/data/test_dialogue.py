"""Conversations: their tokens, which of them are learned, and files of them."""

import json

import pytest
import torch

from zoo.data.conversation import CHAT_TEMPLATE, SPECIALS, Conversation, Turn, chat_tokens, has_chat_template
from zoo.data.dialogue import DialogueFiles
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError

TURNS = Conversation(
    [Turn("user", "Who?"), Turn("assistant", "Me."), Turn("user", "<eos> is text"), Turn("assistant", "")]
)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.bpe(["Who? Me. <user> is text"], 300, SPECIALS)


def test_a_conversation_is_marks_and_texts_and_only_answers_are_learned(tokenizer):
    eos, user, assistant = (tokenizer.specials[name] for name in SPECIALS)
    who, me, text = (tokenizer.encode(one) for one in ("Who?", "Me.", "<eos> is text"))
    tokens, answers = chat_tokens(tokenizer, TURNS)
    assert tokens == [user, *who, assistant, *me, eos, user, *text, assistant, eos]
    one, other = [0] * (len(who) + 2), [0] * (len(text) + 2)
    assert answers == [*one, *[1] * (len(me) + 1), *other, 2]
    assert text.count(eos) == 0  # what a user types is no special token
    assert chat_tokens(tokenizer, TURNS[:1])[0] == tokens[: len(who) + 2]  # a prompt is how the conversation begins
    assert chat_tokens(tokenizer, TURNS[:3])[0] == tokens[:-1]


def test_transformers_renders_the_chat_template_as_the_same_tokens(tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.inner, chat_template=CHAT_TEMPLATE)
    turns = [Turn("user", "Who is it?"), Turn("assistant", "Me."), Turn("user", "text")]
    for size in (1, 2, 3):
        messages = [{"role": turn.role, "content": turn.text} for turn in turns[:size]]
        is_open = turns[size - 1].role == "user"
        ids = theirs.apply_chat_template(messages, add_generation_prompt=is_open, return_dict=False)
        assert ids == chat_tokens(tokenizer, turns[:size])[0]


def test_a_tokenizer_without_turns_is_refused():
    bare = Tokenizer.bytes(["<eos>"])
    assert not has_chat_template(bare)
    with pytest.raises(UsageError, match="lacks <user>, <assistant> or <eos>"):
        chat_tokens(bare, TURNS)


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
        ("{", "is no JSON"),
        ("[]", "must be an object with messages"),
        ('{"messages": [{"role": "user"}]}', "must be an object with messages"),
        ('{"messages": []}', "must be the assistant's"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "must be the assistant's"),
        (
            '{"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "a"}]}',
            "message 1 has the role 'system'",
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
    with pytest.raises(UsageError, match="is empty"):
        DialogueFiles(str(tmp_path / "empty.jsonl")).ready()

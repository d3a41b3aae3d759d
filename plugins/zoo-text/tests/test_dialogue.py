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


LEARNS = ({"weight": 0}, {"loss": False}, {"train": False}, {"tool_calls": [{"id": 1}]}, {"function_call": {"a": 1}},
          {"reasoning": "because"}, {"weight": 0.5}, {"masked": True}, {"prefix": True}, {"mask": 1})  # fmt: skip
QUIET = (
    {"weight": 1},
    {"train": True},
    {"tool_calls": None},
    {"tool_calls": []},
    {"name": "bob"},
    {"id": 7},
    {"x": ""},
    {"masked": False},
    {"prefix": False},
    {"name": "Anna"},
)
ROWS = ({"weight": 0}, {"weight": 0.5}, {"tools": [{"name": "f"}]}, {"images": ["a.png"]}, {"label": False},
        {"chosen": [{"role": "assistant"}]}, {"rejected": "no"}, {"system": "Be brief."}, {"train": False},
        {"sample_weight": 2}, {"masked": True}, {"documents": ["d"]}, {"functions": [{"name": "f"}]})  # fmt: skip
QUIET_ROWS = ({"weight": 1.0}, {"tools": []}, {"tools": None}, {"images": []}, {"label": True}, {"label": "maths"},
              {"id": 7}, {"source": "web"}, {"prompt": "a"}, {"score": 0.5}, {"train": True},
              {"masked": False})  # fmt: skip


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("more", [*ROWS, *QUIET_ROWS], ids=str)
def test_what_a_row_says_beside_its_messages_is_refused_or_named(ending, more, tmp_path, caplog):
    column, path = next(iter(more)), tmp_path / f"{next(iter(more))}.{ending}"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [*[{"messages": turns, column: None}] * 9, {"messages": turns, **more}]
    if ending == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DialogueFiles(str(path), val_path=str(path))
    if more in QUIET_ROWS:
        assert len(data.conversations()["train"]) == 10
        assert f"not read are the columns {column}" in caplog.text
        return
    with pytest.raises(UsageError, match=rf"(:|row )10 has {column}: .*would change what is learned"):
        data.conversations()


def test_harmless_keys_of_messages_are_named_once(tmp_path, caplog):
    turns = [{"role": "user", "content": "a", "name": "Anna"}, {"role": "assistant", "content": "b", "id": 1}]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 9)
    DialogueFiles(str(tmp_path / "a.jsonl"), val_path=str(tmp_path / "a.jsonl")).conversations()
    assert caplog.text.count("of messages id, name is not read") == 1


@pytest.mark.parametrize("names", [("messages", "role", "content", "user", "assistant"),
                                   ("conversations", "from", "value", "human", "gpt")])  # fmt: skip
@pytest.mark.parametrize("more", [*LEARNS, *QUIET], ids=str)
def test_what_a_message_says_of_its_learning_is_refused_by_name_and_never_dropped(names, more, tmp_path):
    column, role, content, user, assistant = names
    good = [{role: user, content: "a"}, {role: assistant, content: "b"}]
    rows = [*[good] * 9, [good[0], {**good[1], **more}]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({column: row}) + "\n" for row in rows))
    data = DialogueFiles(str(tmp_path / "a.jsonl"), val_path=str(tmp_path / "a.jsonl"))
    if more in QUIET:
        assert len(data.conversations()["train"]) == 10
        return
    with pytest.raises(UsageError, match=rf":10: message 2 has {next(iter(more))}: "):
        data.conversations()


def test_without_a_validation_file_the_last_conversations_validate(tmp_path):
    options = DialogueFiles.sample_files(tmp_path, 1)
    splits = DialogueFiles(options["path"], val_fraction=0.2).conversations()
    assert [len(splits[name]) for name in ("train", "val")] == [48, 12]
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds no row"):
        DialogueFiles(str(tmp_path / "empty.jsonl")).ready()

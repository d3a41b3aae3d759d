"""Conversations as tokens."""

import pytest

from zoo.data.conversation import CHAT_TEMPLATE, SPECIALS, Conversation, Turn, chat_tokens, has_chat_template
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

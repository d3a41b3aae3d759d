"""Conversations of users and an assistant as tokens: what training and answering share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast, get_args

from zoo.data.tokenizer import EOS, Tokenizer
from zoo.errors import UsageError

Role = Literal["user", "assistant"]
USER, ASSISTANT = "<user>", "<assistant>"
SPECIALS = (EOS, USER, ASSISTANT)
# as transformers writes it: the same tokens as `chat_tokens`; what a system says first is the user's beginning
CHAT_TEMPLATE = (
    "{% set lead = namespace(text='') %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] == 'system' %}{% set lead.text = message['content'] + '\\n\\n' %}"
    "{% elif message['role'] in ['user', 'assistant'] %}"
    "{% set text = lead.text + message['content'] %}{% set lead.text = '' %}"
    "{{ '<' + message['role'] + '>' + text }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}"
    "{% else %}{{ raise_exception('only user and assistant speak, and system at the beginning') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


class Turn(NamedTuple):
    """What the user or the assistant says."""

    role: Role
    text: str


class Conversation(tuple[Turn, ...]):
    """The turns of a dialogue, from the first to the last."""

    __slots__ = ()


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has the special tokens of turns."""
    return all(tokenizer.special(name) is not None for name in SPECIALS)


def chat_tokens(
    tokenizer: Tokenizer, turns: Sequence[Turn], encode: Callable[[str], list[int]] | None = None
) -> tuple[list[int], list[int]]:
    """``<user> question <assistant> answer <eos> …`` as T tokens, and for each the number of its answer, 0 for none.

    The <eos> behind an answer belongs to it. Where the last turn is the user's, <assistant> follows, which a model
    continues with its answer. Special tokens that a text spells stay text. ``encode`` gives the tokens of a text as
    the tokenizer does. Raises UsageError for a tokenizer without the special tokens.
    """
    if not has_chat_template(tokenizer):
        raise UsageError(f"the tokenizer {tokenizer.source} lacks {USER}, {ASSISTANT} or {EOS}: it knows no turns.")
    marks = {name: cast(int, tokenizer.special(f"<{name}>")) for name in get_args(Role)}
    tokens: list[int] = []
    answers: list[int] = []
    count = 0
    for turn in turns:
        own = (encode or tokenizer.encode)(turn.text)
        is_answer = turn.role == "assistant"
        count += is_answer
        tokens += [marks[turn.role], *own, *([tokenizer.end_of_document()] if is_answer else [])]
        answers += [0, *([count] * (len(own) + 1) if is_answer else [0] * len(own))]
    if turns and turns[-1].role == "user":
        tokens.append(marks["assistant"])
        answers.append(0)
    return tokens, answers

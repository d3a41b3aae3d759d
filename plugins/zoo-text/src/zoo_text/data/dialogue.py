"""Dialogue data: conversations of users and an assistant, of which only the answers are learned."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch

from zoo.data.batches import BatchDataset, Plan, TokenPlan, generator, round_up, sample_sentence
from zoo.data.conversation import SPECIALS, Conversation, Role, Turn, chat_tokens
from zoo.data.data import at_least, log_once, require_fraction, split_by_content, tell_repeated
from zoo.data.source_files import tell_once
from zoo.data.table_files import USUAL, Tables, choose_columns, is_usual
from zoo.data.text import IGNORE, TokenizedData
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files

RECIPES = "dialogue-tiny"
SPLIT = 20180111  # fixed seed of the split
SAYS_NOTHING = ("id", "uuid", "name", "timestamp", "create_time", "model", "lang", "language")  # of a message
# columns that say what is learned of a row, or what a model is told beside the messages
REFUSED = (
    *(*USUAL, "label", "chosen", "rejected", "system", "system_prompt", "tools", "functions", "function_call"),
    *("documents", "image", "images", "audio", "audios", "video", "videos", "chat_template_kwargs"),
)
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
MOST_TEXTS = 2**16  # turns whose tokens are kept while conversations are encoded


class DialogueRows(BatchDataset):
    """Rows of a conversation each, with the answers as targets."""

    def __init__(self, rows: list[tuple[list[int], list[int]]], byte_lengths: np.ndarray, max_length: int) -> None:
        self.rows, self.byte_lengths, self.max_length = rows, byte_lengths, max_length

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        """The inputs of each row."""
        return np.array([len(tokens) - 1 for tokens, _ in self.rows])

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``inputs`` and ``targets`` (B, T), -100 where no answer is predicted, ``answers`` (B, T): the number of the
        answer that a target belongs to, 0 for none, and ``bytes`` (B,) of answers.
        """
        rows = [self.rows[index] for index in indices]
        width = int(round_up(max(len(tokens) for tokens, _ in rows) - 1, self.max_length))
        inputs, answers = (np.zeros((len(rows), width), np.int64) for _ in range(2))
        targets = np.full((len(rows), width), IGNORE)
        for row, (tokens, numbers) in enumerate(rows):
            size = len(tokens) - 1
            inputs[row, :size], answers[row, :size] = tokens[:-1], numbers[1:]
            targets[row, :size] = np.where(answers[row, :size] > 0, tokens[1:], IGNORE)
        sizes = (self.byte_lengths[np.maximum(targets, 0)] * (targets >= 0)).sum(1)
        columns = {"inputs": inputs, "targets": targets, "answers": answers, "bytes": sizes}
        return {name: torch.from_numpy(value) for name, value in columns.items()}


class Dialogues(TokenizedData):
    """Conversations in batches of like length; a language model learns the answers, and not the questions.

    The tokenizer is byte-level BPE learned from the training conversations, with ``<user>`` and ``<assistant>`` in
    front of turns and ``<eos>`` behind answers; or that of ``tokenizer``, which gets those that it lacks. A
    conversation of more than ``max_length`` tokens is left out.
    """

    gives = "texts"

    def __init__(
        self,
        tokenizer: str | None,
        vocab_size: int,
        max_tokens: int,
        max_length: int,
        num_workers: int,
        seed: int | None,
    ) -> None:
        """
        Args:
            tokenizer: a run's folder or a tokenizer.json whose tokenizer is used, instead of one that
                is learned here.
            vocab_size: size of the byte-level BPE vocabulary that is learned from the training conversations.
            max_tokens: tokens of a batch per process, padding included.
            max_length: most tokens of a conversation.
            seed: of the order; the run's unless given.
        """
        super().__init__(1, num_workers, seed)
        at_least(2, max_length=max_length)
        at_least(int(round_up(max_length)), max_tokens=max_tokens)
        self.tokenizer_path, self.vocab_size = tokenizer, vocab_size
        self.max_tokens, self.max_length = max_tokens, max_length

    @abstractmethod
    def conversations(self) -> dict[str, list[Conversation]]:
        """The conversations of "train", "val" and perhaps "test"."""

    def load(self) -> None:
        """Read the conversations, train the tokenizer, and encode the splits. Raises UsageError for an empty split."""
        splits = self.conversations()
        self.tokenizer = self._tokenizer([turn.text for one in splits["train"] for turn in one])
        sizes = self.tokenizer.byte_lengths()
        content = hashlib.sha256(json.dumps([self.tokenizer.identity(), self.max_length]).encode())
        rows: dict[str, BatchDataset] = {}
        encode = functools.lru_cache(MOST_TEXTS)(self.tokenizer.encode)  # many conversations have turns in common
        for split, members in sorted(splits.items()):
            content.update(json.dumps([split, members]).encode())
            encoded = [chat_tokens(self.tokenizer, one, encode) for one in members]
            fitting = [row for row in encoded if len(row[0]) <= self.max_length]
            if not fitting:
                raise UsageError(
                    f"the {split} split has no conversation of at most max_length={self.max_length} tokens."
                )
            if len(fitting) < len(encoded):
                log_once(
                    f"{len(encoded) - len(fitting)} of {len(encoded)} {split} conversations have more than "
                    f"max_length={self.max_length} tokens and are left out"
                )
            rows[split] = DialogueRows(fitting, sizes, self.max_length)
        self._fingerprint = content.hexdigest()
        self.datasets = {"test": rows["val"], **rows}

    def _tokenizer(self, texts: list[str]) -> Tokenizer:
        if self.tokenizer_path is None:
            return Tokenizer.bpe(texts, self.vocab_size, SPECIALS)
        return Tokenizer.of_run(self.tokenizer_path).extended(SPECIALS)

    def plan(self, split: str, world: int, seed: int | None) -> Plan:
        """Batches of conversations of similar lengths, up to ``max_tokens`` tokens each."""
        rows = cast(DialogueRows, self.datasets[split])
        return TokenPlan(rows.lengths, self.max_tokens * world, world, seed)


class DialogueFiles(Dialogues):
    """Conversations from JSON lines, ``{"messages": [{"role": "user", "content": …}, …]}`` each, or from tables.

    Roles are ``user`` and ``assistant``, in turn, and the last turn is the assistant's. What ``system`` says at the
    beginning stands in front of the user's first message, an empty line between them. ShareGPT's
    ``{"conversations": [{"from": "human", "value": …}, …]}`` is read, too. Without files that test, validation does.
    """

    def __init__(
        self,
        path: str,
        val_path: str | None = None,
        val_fraction: float = 0.1,
        tokenizer: str | None = None,
        vocab_size: int = 8000,
        max_tokens: int = 4096,
        max_length: int = 256,
        num_workers: int = 0,
        seed: int | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        """
        Args:
            path: a file of JSON lines, or a table with a column messages or conversations.
            val_path: a file that validates, instead of a share of the conversations.
            val_fraction: share of the conversations, equal ones together, that validates.
            columns: name of the column `messages` in tables, where it has another.
        """
        super().__init__(tokenizer, vocab_size, max_tokens, max_length, num_workers, seed)
        self.columns = columns
        require_fraction(val_fraction=val_fraction)
        self.paths, self.val_fraction = {"train": path, "val": val_path}, val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write a file of random conversations per split; the options that read them."""
        for number, split in enumerate(("train", "val")):
            lines = []
            for row in range(60):
                draw = generator(seed, number, row)
                roles = ("user", "assistant") * int(draw.integers(1, 4))
                messages = [{"role": role, "content": sample_sentence(draw, 8)} for role in roles]
                lines.append(json.dumps({"messages": messages}))
            atomic_files.write_text(folder / f"{split}.jsonl", "\n".join(lines) + "\n")
        return {"path": str(folder / "train.jsonl"), "val_path": str(folder / "val.jsonl")}

    def conversations(self) -> dict[str, list[Conversation]]:
        """Those of the files. Raises UsageError that names the first line which is none."""
        columns = choose_columns(self.columns, {"messages": ["messages", "conversations"]}, REFUSED)
        tables = Tables(self.paths, columns, RECIPES)
        splits = {split: read_conversations(tables, split) for split in tables.splits}
        if "val" not in splits:
            validates = split_by_content(splits["train"], self.val_fraction, [SPLIT])
            pairs = list(zip(splits["train"], validates, strict=True))
            parts = {name: [one for one, held_out in pairs if held_out == (name == "val")] for name in ("train", "val")}
            return splits | parts
        tell_repeated(splits, "conversations")
        return splits


def read_conversations(tables: Tables, split: str) -> list[Conversation]:
    """The conversation of every row. Raises UsageError that names a row which holds none."""
    conversations, unread = [], set[str]()
    for row in tables.rows(split):
        place = row.place
        try:
            messages = [
                message_of(one, f"{place}: message {count}") for count, one in enumerate(row.values["messages"], 1)
            ]
        except (TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{place} must have messages, a list of objects with role and content, or with from and value."
            ) from error
        unread |= {key for message in row.values["messages"] for key in message if key in SAYS_NOTHING}
        if wrong := [count for count, (_, text) in enumerate(messages, 1) if not isinstance(text, str)]:
            raise UsageError(f"{place}: the content of message {wrong[0]} must be a text.")
        instruction = ""
        if messages and messages[0][0] == "system":
            instruction, messages = f"{messages[0][1]}\n\n", messages[1:]
        turns = Conversation(Turn(cast(Role, role), text) for role, text in messages)
        for count, (turn, role) in enumerate(zip(turns, itertools.cycle(get_args(Role)), strict=False), 1):
            if turn.role not in get_args(Role):
                raise UsageError(
                    f"{place}: message {count} has the role {turn.role!r:.40}, and only user and assistant speak, and "
                    "system at the beginning.\nPut what it says in front of the user's next message, or leave it out."
                )
            if turn.role != role:
                raise UsageError(f"{place}: message {count} is the {turn.role}'s, and it is the {role}'s turn.")
        if len(turns) % 2 or not turns:
            raise UsageError(f"{place}: the last message must be the assistant's: only answers are learned.")
        conversations.append(Conversation((Turn("user", instruction + turns[0].text), *turns[1:])))
    if unread:
        tell_once(f"{tables.splits[split][0]}: of messages {', '.join(sorted(unread))} is not read")
    return conversations


def message_of(message: Any, place: str) -> tuple[str, Any]:
    """Role and content of a message, by these names, or by ``from`` and ``value`` as ShareGPT has them.

    Raises UsageError, which begins with ``place``, for another key that says something of what is learned.
    """
    names = ("role", "content") if "role" in message else ("from", "value")
    role, content = (message[name] for name in names)
    for key, value in message.items():
        if key not in (*names, *SAYS_NOTHING) and not is_usual(key, value):
            raise UsageError(
                f"{place} has {key}: {value!r:.40}, which is not read: every answer is learned alike, and its content "
                f"alone. Leave out {key}, or the conversation."
            )
    return SHAREGPT_ROLES.get(role, role) if names[0] == "from" else role, content

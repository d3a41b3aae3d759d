"""Dialogues without files: questions and follow-up questions about functions of Python's standard library."""

from __future__ import annotations

import ast
import json
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from zoo.data.batches import generator
from zoo.data.cache import cached_entry, write_json
from zoo.data.conversation import Conversation, Turn
from zoo.data.library_files import library_files
from zoo.data.stdlib import StdlibDocs
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most
from zoo_text.data.dialogue import Dialogues
from zoo_text.data.signatures import parameters_of

ORDER = 20150619  # fixed seed of which functions are drawn, and of the dialogues
LONGEST_PURPOSE, MOST_PARAMETERS, SHORTEST_NAME = 60, 6, 4
EVALUATION_SIZE = 500  # validation dialogues, and as many test dialogues
TRIES = 20  # per dialogue, before the functions count as exhausted
NEW_QUESTIONS = {  # questions that name their function
    "module": ("Which module has {f}?", "Where is {f} defined?"),
    "purpose": ("What does {f} do?", "What is {f} for?"),
    "parameters": ("What are the parameters of {f}?", "Which parameters does {f} have?"),
    "count": ("How many parameters does {f} have?", "How many parameters has {f}?"),
}
FOLLOW_UPS = {  # questions about the function of the turn before
    "module": ("Which module has it?", "And where is it defined?"),
    "purpose": ("What does it do?", "And what is it for?"),
    "parameters": ("What are its parameters?", "And its parameters?"),
    "count": ("How many parameters does it have?", "And how many parameters?"),
}
SAME_QUESTION = ("And {f}?", "What about {f}?")  # the question of the turn before, about another function
KINDS = tuple(NEW_QUESTIONS)
T = TypeVar("T")


class LibraryFunction(NamedTuple):
    """A function of the library, and what is asked about it."""

    name: str
    module: str
    parameters: list[str]
    purpose: str

    def answer(self, kind: str) -> str:
        """The answer to a question of one of the four kinds."""
        return {
            "module": self.module,
            "purpose": self.purpose,
            "parameters": ", ".join(self.parameters),
            "count": str(len(self.parameters)),
        }[kind]


class LibraryDialogues(Dialogues):
    """Dialogues about functions of the running Python's standard library: module, purpose, parameters, their number.

    Each turn but the first is a follow-up, which is understood from the turns before: another question about "it", the
    same question about another function ("And copytree?"), or a new question. The answers are facts that a model has
    to remember: no dialogue is in two splits, but every fact of validation is in the training data, in other
    dialogues.
    """

    twins: ClassVar[float] = 1.0  # pieces of a dialogue, which are facts, are in both splits

    def __init__(
        self,
        functions: int = 200,
        turns: int = 3,
        size: int = 20000,
        tokenizer: str | None = None,
        vocab_size: int = 1024,
        max_tokens: int = 2048,
        max_length: int = 128,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            functions: how many functions the dialogues are about, at least as many as turns.
            turns: questions of a dialogue.
            size: number of training dialogues.
        """
        super().__init__(tokenizer, vocab_size, max_tokens, max_length, num_workers, seed)
        at_least(1, turns=turns, size=size)
        at_least(max(2, turns), functions=functions)  # so that no turn runs out of functions
        at_most(MOST_SAMPLES, size=size)
        at_most(16, turns=turns)
        self.functions, self.turns, self.size = functions, turns, size

    def conversations(self) -> dict[str, list[Conversation]]:
        """Dialogues by split. Raises UsageError for more functions or dialogues than there are."""
        available = library_functions()
        if self.functions > len(available):
            raise UsageError(f"functions is {self.functions}, and the library has {len(available)} that fit.")
        some = [available[i] for i in generator(ORDER).permutation(len(available))[: self.functions]]

        def write(folder: Path) -> None:
            write_json(folder / "dialogues.json", self._draw(some))

        key = {"format": 1, "functions": some, "turns": self.turns, "size": self.size}
        content = json.loads((cached_entry("library-dialogues", key, write) / "dialogues.json").read_text("utf-8"))
        dialogues = [Conversation(Turn(*turn) for turn in one) for one in content]
        return {
            "test": dialogues[:EVALUATION_SIZE],
            "val": dialogues[EVALUATION_SIZE : 2 * EVALUATION_SIZE],
            "train": dialogues[2 * EVALUATION_SIZE :],
        }

    def _draw(self, some: list[LibraryFunction]) -> list[Conversation]:
        """Different dialogues about these functions, as many as all splits hold. Raises UsageError for too few."""
        draw, count = generator(ORDER, self.turns), self.size + 2 * EVALUATION_SIZE
        unique: dict[Conversation, None] = {}
        for _ in range(TRIES * count):
            unique.setdefault(draw_dialogue(some, self.turns, draw))
            if len(unique) == count:
                break
        if len(unique) < count:
            raise UsageError(
                f"{self.functions} functions and {self.turns} turns give about {len(unique)} different dialogues, "
                f"{count} are needed: size and 2 × {EVALUATION_SIZE}.\nChoose a smaller size or more functions."
            )
        return [*unique]


def draw_dialogue(functions: list[LibraryFunction], turns: int, draw: np.random.Generator) -> Conversation:
    """A random dialogue: the first turn names a function, and half of the others ask more about the same one."""

    def pick(choices: Sequence[T]) -> T:
        return choices[int(draw.integers(len(choices)))]

    dialogue: list[Turn] = []
    previous: set[tuple[str, str]] = set()  # functions and kinds of questions so far
    about, kind = pick(functions), pick(KINDS)
    question = pick(NEW_QUESTIONS[kind])
    for turn in range(turns):
        if turn:
            new_kinds = [one for one in KINDS if (about.name, one) not in previous]
            way = draw.random()
            if way < 0.5 and new_kinds:
                kind = pick(new_kinds)
                question = pick(FOLLOW_UPS[kind])
            else:
                kind = pick(KINDS) if way < 0.75 else kind
                about = pick([one for one in functions if (one.name, kind) not in previous])
                question = pick(NEW_QUESTIONS[kind] if way < 0.75 else SAME_QUESTION)
        previous.add((about.name, kind))
        dialogue += [Turn("user", question.format(f=about.name)), Turn("assistant", about.answer(kind))]
    return Conversation(dialogue)


def library_functions() -> list[LibraryFunction]:
    """The functions of public modules with a docstring and one to six parameters, whose name is in one module only."""

    def extract(folder: Path) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        homes: dict[str, list[LibraryFunction]] = {}
        for file in library_files():
            parts = file.relative_to(library).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not any(part.startswith("_") for part in module.split(".")):
                for one in functions_of(file.read_bytes(), module):
                    homes.setdefault(one.name, []).append(one)
        fitting = [some[0] for some in homes.values() if len(some) == 1 and _fits(some[0])]
        write_json(folder / "functions.json", fitting)

    entry = cached_entry("library-functions", {"format": 1, **StdlibDocs().source()}, extract)
    return [LibraryFunction(*one) for one in json.loads((entry / "functions.json").read_text("utf-8"))]


def functions_of(source: bytes, module: str) -> Iterator[LibraryFunction]:
    """The public functions at the top of a module's source; none where it cannot be parsed."""
    try:
        with warnings.catch_warnings():  # about invalid escapes in the library's own strings
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # the library ships a few files that are wrong on purpose
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            names = [name.lstrip("*") for name in parameters_of(node.args)]
            yield LibraryFunction(node.name, module, names, first_sentence(ast.get_docstring(node) or ""))


def first_sentence(docstring: str) -> str:
    """The first sentence of a docstring's first paragraph, on one line and without its period."""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"\.\s", paragraph + " ")[0].strip()


def _fits(one: LibraryFunction) -> bool:
    words = one.purpose.isascii() and "->" not in one.purpose and 0 < len(one.purpose) <= LONGEST_PURPOSE
    return words and 1 <= len(one.parameters) <= MOST_PARAMETERS and len(one.name) >= SHORTEST_NAME

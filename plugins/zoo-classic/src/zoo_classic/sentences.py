"""Sentences from a small grammar whose meanings are known: what word vectors and senses can be measured with."""

from __future__ import annotations

from itertools import product
from typing import Any

from zoo.data.batches import generator
from zoo.data.text import Corpus, Scheme, TextData
from zoo.value_checks import MOST_SAMPLES, at_least, at_most

SEED = 20130116
PEOPLE = {  # (gender, rank, age)
    "king": "m r o", "queen": "f r o", "prince": "m r y", "princess": "f r y",
    "man": "m c o", "woman": "f c o", "boy": "m c y", "girl": "f c y",
}  # fmt: skip
TRAITS = {  # what a person of this trait does, each independent of the other two
    "m": ["shaves his beard", "calls himself a son", "praises his brother", "wears his tie"],
    "f": ["braids her hair", "calls herself a daughter", "praises her sister", "wears her dress"],
    "r": ["sits on the throne", "wears a golden crown", "lives in the palace", "commands the royal guard"],
    "c": ["works in the field", "walks to the market", "lives in a cottage", "repairs the old fence"],
    "o": ["remembers the long war", "is wise and grey", "leads the council", "signs the letter"],
    "y": ["plays with toys", "goes to school", "climbs the small tree", "learns to read"],
}
CLASSES = {
    "animal": ["cat", "dog", "horse", "cow", "sheep", "goat"],
    "fruit": ["pear", "banana", "cherry", "orange", "plum", "apple"],
    "firm": ["nokia", "intel", "boeing", "siemens", "toyota", "apple"],
    "colour": ["red", "green", "yellow", "brown", "white", "black"],
    "city": ["paris", "london", "berlin", "madrid", "rome", "vienna"],
}
ABOUT = {
    "animal": ["the {w} sleeps in the barn", "a hungry {w} runs across the meadow", "the farmer feeds the {w}",
               "the {w} chases another {w}"],
    "fruit": ["she eats a ripe {w}", "he peels the sweet {w} with a knife", "the {w} hangs on the branch",
              "a juicy {w} falls from the tree"],
    "firm": ["the company {w} sells phones", "shares of {w} rise on the market", "engineers at {w} design new chips",
             "the directors of {w} hire a lawyer"],
    "colour": ["the house is painted {w}", "she buys a {w} coat", "the {w} flag waves in the wind"],
    "city": ["the train leaves for {w}", "tourists visit {w} in summer", "the museum of {w} is famous"],
}  # fmt: skip
FOOD = ["苹果", "香蕉", "米饭", "面包"]
FURNITURE = ["桌子", "椅子", "柜子", "书架"]
CHINESE = {"我喜欢吃{w}": FOOD, "他每天吃{w}": FOOD, "我喜欢擦{w}": FURNITURE, "他买了一张{w}": FURNITURE}


class Sentences(TextData):
    """Sentences about people, animals, fruit, firms, colours and cities, and a few Chinese ones, one document each.

    Who is royal, old or a woman shows only by what they do, so that king - man + woman can be queen; ``apple`` is a
    fruit in one half of its sentences and a firm in the other. Every sentence begins with a space, so that a word is
    the same token wherever it stands.
    """

    def __init__(
        self,
        size: int = 12000,
        tokenizer: Scheme = "bpe",
        vocab_size: int = 1024,
        max_length: int = 64,
        batch_size: int = 32,
        val_fraction: float = 0.1,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """`size` sentences in all; `vocab_size` is for bpe only, and at 1024 every word is one token."""
        super().__init__(tokenizer, vocab_size, max_length, batch_size, val_fraction, num_workers, seed)
        at_least(100, size=size)
        at_most(MOST_SAMPLES, size=size)
        self.size = size

    def source(self) -> dict[str, Any]:
        """The version of the sentences, their number and the seed."""
        return {"sentences": [1, self.size, SEED]}

    def documents(self) -> Corpus:
        """Random sentences by split."""
        kinds = everything()
        draw = generator(SEED)
        texts = []
        for _ in range(self.size):
            options = kinds[int(draw.integers(len(kinds)))]
            texts.append(options[int(draw.integers(len(options)))])
        val_size = max(1, round(self.size * self.val_fraction))
        return Corpus({"train": texts[:-val_size], "val": texts[-val_size:]}, separate=True)


def everything() -> list[list[str]]:
    """All sentences there are, by what they are about; each of these is as probable."""
    people = [
        [f" the {who} {deed}" for trait in traits.split() for deed in TRAITS[trait]] for who, traits in PEOPLE.items()
    ]
    other = [[" " + form.format(w=word) for form in ABOUT[kind] for word in words] for kind, words in CLASSES.items()]
    chinese = [" " + form.format(w=word) for form, words in CHINESE.items() for word in words]
    return [*people, *other, *other, chinese]


def pairs_of_classes() -> list[tuple[str, str, bool]]:
    """Every two words of the classes, and whether they are of one; ``apple`` is of two, and left out."""
    members = [(word, kind) for kind, words in CLASSES.items() for word in words if word != "apple"]
    return [(one, two, a == b) for (one, a), (two, b) in product(members, members) if one < two]

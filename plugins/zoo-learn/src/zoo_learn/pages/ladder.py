# %%
"""The ladder from counting words to the Transformer: n-grams, NNLM, Word2Vec, ELMo, attention."""

import itertools
import math
import re
from collections import Counter
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn
from zoo_learn.page import open_page

from zoo.models import LanguageModel
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern

LESSON = {
    "order": 4,
    "title": {"en": "The ladder to the Transformer", "zh": "通向 Transformer 的阶梯"},
    "summary": {
        "en": "counting words, smoothing, vectors of words, contexts, attention: each step cures a fault of the last",
        "zh": "数词、平滑、词向量、上下文、注意力：每一级解决上一级的一个问题",
    },
    "exercises": 3,
    "inputs": {
        "cats": {"default": 10, "least": 1, "most": 1_000_000, "en": 'how often "cat" occurs', "zh": "“cat”出现的次数"},
        "sits": {
            "default": 4,
            "least": 0,
            "most": 1_000_000,
            "en": 'how often "sits" follows it',
            "zh": "后面跟着“sits”的次数",
        },
        "vocabulary": {"default": 5, "least": 1, "most": 1_000_000, "en": "words of the vocabulary", "zh": "词表大小"},
        "scores": {
            "default": [112.0, 96.0],
            "least": -1e6,
            "most": 1e6,
            "en": 'dot products of "machine" with two keys',
            "zh": "“machine”与两个键的点积",
        },
        "head_dim": {"default": 64, "least": 1, "most": 65536, "en": "width of a key", "zh": "键的宽度"},
        "seed": {"default": 1, "least": 0, "most": 2147483647, "en": "of what is trained", "zh": "训练的种子"},
    },
}
page = open_page(LESSON)

# %% [markdown] lang="en"
# # The ladder to the Transformer
#
# ## Eating apples, eating tables
#
# A language model gives each sentence a probability: the product of each word's probability after the words before
# it. With a bigram, only the last word counts. Nine short sentences are enough to prefer apples to tables, although
# neither follows "I like eating" in them. One is added to every count, so that a pair that never occurred is improbable
# and not impossible.
# %% [markdown] lang="zh"
# # 通向 Transformer 的阶梯
#
# ## 吃苹果，吃桌子
#
# 语言模型给每句话一个概率：每个词在前文之后的概率，全部相乘。二元模型只看前一个词。九个短句就足以偏爱苹果而不是桌子，
# 尽管语料里“I like eating”后面两样都没有出现。每个计数都加一，这样没出现过的组合只是不太可能，而不是不可能。
# %%
corpus = """we eat apples . they eat apples . you eat apples . you like apples . they eat bread . I like eating bread .
we like eating apples . we carry tables . you buy tables .""".split()
pairs = Counter(itertools.pairwise(corpus))
starts = Counter(corpus)


def bigram(word: str, after: str) -> float:
    """P(word | after) with one added to each count (Laplace)."""
    return (pairs[after, word] + 1) / (starts[after] + len(starts))


def chain(sentence: str) -> list[float]:
    """The probability of each word of a sentence after the word before it."""
    words = [".", *sentence.split()]
    return [bigram(word, after) for after, word in itertools.pairwise(words)]


chances = {}
for sentence in ("I like eating apples", "I like eating tables"):
    factors = chain(sentence)
    chances[sentence] = math.prod(factors)
    page.show(f"{sentence}: P(wᵢ | wᵢ₋₁)", factors)
page.bars(
    ("probability × 1,000,000", "概率 × 1000000"), {name: 1e6 * chance for name, chance in chances.items()}, digits=1
)

# %% [markdown] lang="en"
# ## Counting
#
# "cat" occurs 10 times, 4 of them before "sits". With add-one smoothing and a vocabulary of 5 words it is 5/15.
# %% [markdown] lang="zh"
# ## 数数
#
# “cat”出现 10 次，其中 4 次后面是“sits”。加一平滑、词表 5 个词时，是 5/15。
# %%
page.compare("P(sits | cat)", "0.4", page["sits"] / page["cats"], of="cats sits", rows="W29")
page.show(
    ("smoothed: numerator, denominator", "平滑后：分子、分母"),
    [page["sits"] + 1, page["cats"] + page["vocabulary"]],
    rows="W29",
)
page.show(("smoothed", "平滑后"), (page["sits"] + 1) / (page["cats"] + page["vocabulary"]))
page.show(
    ("the denominator is 10 plus the vocabulary", "分母是 10 加词表大小"),
    [page["cats"], page["vocabulary"]],
    rows="W29",
)

# %% [markdown] lang="en"
# ## One-hot vectors
#
# Any two of them have the dot product 0 and the distance √2: "good" is as far from "great" as from "banana". Times a
# matrix Q they select a row, the vector of the word, and rows can be near each other.
# %% [markdown] lang="zh"
# ## 独热向量
#
# 任意两个独热向量点积为 0、距离为 √2：“good” 到 “great” 与到 “banana” 一样远。乘以矩阵 Q 就取出一行，即词向量，而行与
# 行可以远近不同。
# %%
hot = torch.eye(3)
Q = torch.tensor([[0.2, 0.5], [0.7, -0.1], [-0.3, 0.8]])
page.compare(("[0, 1, 0] × Q", "[0, 1, 0] × Q"), "0.7 -0.1", hot[1] @ Q, rows="W30")
page.show(("dot product, distance", "点积、距离"), [float(hot[0] @ hot[1]), float((hot[0] - hot[1]).norm())])

# %% [markdown] lang="en"
# ## A neural model of four words (NNLM)
#
# The vectors of four words stand side by side as C. Right is W₂ tanh(W₁C + b₁) + b₂: a hidden layer, then scores of
# the vocabulary. In the first formula of the notes the bracket puts b₂ inside, so that it needs the hidden width and
# the scores have no bias. Their second formula is right.
# %% [markdown] lang="zh"
# ## 看四个词的神经模型（NNLM）
#
# 四个词的向量拼成 C。正确的是 W₂ tanh(W₁C + b₁) + b₂：先是隐藏层，然后是词表上的分数。讲义的第一个公式把 b₂ 放进了括
# 号，于是它必须有隐藏层的宽度，而分数没有偏置。第二个公式是对的。
# %%
torch.manual_seed(page["seed"])
C, W1, b1, W2, b2 = torch.randn(8), torch.randn(6, 8), torch.randn(6), torch.randn(4, 6), torch.randn(4)
inside = tanh_layer = torch.tanh(W1 @ C + b1)
correct_scores = W2 @ tanh_layer + b2
try:
    agrees = bool(torch.allclose(W2 @ (tanh_layer + b2), correct_scores))
except RuntimeError:
    agrees = False
page.show(
    ("widths: b₂ as it must be, b₂ as the bracket needs it", "b₂ 应有的宽度，按括号需要的宽度"),
    [len(b2), len(tanh_layer)],
    rows="W31",
)
page.claim(
    ("softmax(U [tanh(WC + b₁) + b₂])", "softmax(U [tanh(WC + b₁) + b₂])"),
    agrees,
    ("softmax(W₂ tanh(W₁C + b₁) + b₂)", "softmax(W₂ tanh(W₁C + b₁) + b₂)"),
    rows="W31",
)
page.show(("a distribution over four words sums to", "四个词上的分布，和为"), correct_scores.softmax(0).sum())

# %% [markdown] lang="en"
# ## Vectors of words (Word2Vec)
#
# Skip-gram predicts the neighbours of a word: five words with two neighbours on each side make 14 pairs. Vectors that
# are trained so hold features that add up. With the features royal, male and female, king − man + woman is nearest to
# queen. `zoo fit word2vec` (plugin zoo-classic) trains such vectors.
# %% [markdown] lang="zh"
# ## 词向量（Word2Vec）
#
# Skip-gram 预测一个词的邻居：五个词、每侧两个邻居，共 14 对。这样训练出的向量带有可以相加的特征。用“王室、男、女”三个
# 特征，king − man + woman 最接近 queen。`zoo fit word2vec`（插件 zoo-classic）训练这样的向量。
# %%
words = "the red apple tastes good".split()
contexts = [
    (word, words[other])
    for place, word in enumerate(words)
    for other in range(max(0, place - 2), min(5, place + 3))
    if other != place
]
page.show(("pairs", "词对数"), len(contexts))
vectors = {
    "king": [1.0, 1.0, 0.0],
    "queen": [1.0, 0.0, 1.0],
    "man": [0.0, 1.0, 0.0],
    "woman": [0.0, 0.0, 1.0],
    "apple": [0.0, 0.1, 0.1],
}
tensors = {word: torch.tensor(numbers) for word, numbers in vectors.items()}
target = tensors["king"] - tensors["man"] + tensors["woman"]
page.bars(
    ("cosine with king − man + woman", "与 king − man + woman 的余弦"),
    {word: float(F.cosine_similarity(vector, target, dim=0)) for word, vector in tensors.items() if word != "king"},
)

# %% [markdown] lang="en"
# ## Vectors in a context (ELMo)
#
# A table gives "apple" one vector, fruit or company. A recurrent network in both directions gives it one for each
# sentence. Below: how far the two vectors of the same word lie apart in two sentences, in the table and behind an
# LSTM.
# %% [markdown] lang="zh"
# ## 随上下文而变的向量（ELMo）
#
# 查表时 “apple” 只有一个向量，不管是水果还是公司。双向循环网络为每句话给它一个向量。下面是同一个词在两句话里的两个向
# 量之间的距离：在表里，以及在 LSTM 之后。
# %%
torch.manual_seed(page["seed"])
vocabulary = {word: number for number, word in enumerate("an apple a day apple sells phones".split())}
lookup, lstm = nn.Embedding(len(vocabulary) + 1, 16), nn.LSTM(16, 8, batch_first=True, bidirectional=True)
with torch.no_grad():
    first, second = (
        lookup(torch.tensor([[vocabulary[word] for word in sentence.split()]]))
        for sentence in ("a apple a day", "a apple sells phones")
    )
    page.show(("in the table", "在表里"), (first[0, 1] - second[0, 1]).norm())
    page.show(
        ("behind the LSTM", "LSTM 之后"), (lstm(first)[0][0, 1] - lstm(second)[0][0, 1]).norm(), digits=2, measured=True
    )

# %% [markdown] lang="en"
# ## Attention: "machine learning"
#
# The query of "machine" has the dot products 112 and 96 with the keys of both words. Divided by √64 = 8 they are 14
# and 12, and their softmax is .8808 and .1192. Without the division the second weight would be 10⁻⁷. Try `--set
# head_dim=4`.
# %% [markdown] lang="zh"
# ## 注意力：“machine learning”
#
# “machine” 的查询与两个键的点积是 112 和 96。除以 √64 = 8 得 14 和 12，softmax 是 .8808 和 .1192。不除的话第二个权重
# 只有 10⁻⁷。试试 `--set head_dim=4`。
# %%
products = torch.tensor(page["scores"], dtype=torch.float64)
root = math.sqrt(page["head_dim"])
page.show(("dot products, width, root", "点积、宽度、根"), [*page["scores"], float(page["head_dim"]), root], rows="W32")
page.compare(("weights", "权重"), "0.88 0.12", (products / root).softmax(0), of="scores head_dim", rows="W32")
page.show(("without the root", "不除以根"), products.softmax(0))

# %% [markdown] lang="en"
# ## Queries, keys and values are not equal
#
# In self-attention they come from the same tokens, but by different matrices. The largest difference of zoo's at the
# start:
# %% [markdown] lang="zh"
# ## Q、K、V 并不相等
#
# 自注意力里它们来自同一串词，但经过不同的矩阵。zoo 的注意力在初始时，它们的最大差别：
# %%
torch.manual_seed(page["seed"])
q, k, v = MultiHead(16, 2, Naive()).project(torch.randn(1, 5, 16), None, Pattern(), None, None)
page.show(
    ("Q − K, K − V: largest", "Q − K、K − V 的最大值"),
    [float((q - k).abs().max().detach()), float((k - v).abs().max().detach())],
    digits=2,
    rows="W37",
    measured=True,
)

# %% [markdown] lang="en"
# ## A sentence and its loss
#
# 我是一个学生。 has 7 tokens in the notes; their list of seven numbers is the sentence as ids, not the vocabulary,
# which is every word that there is. Its translation has 5. The notes compute a loss of 你多大了？ (5 tokens) against
# these 7: a loss needs a target for each place, of the same pair of sentences. They also train from Chinese to
# English and then translate in the other direction; a model knows only the direction that it was trained for.
# %% [markdown] lang="zh"
# ## 一个句子和它的损失
#
# “我是一个学生。”在讲义里有 7 个词元；那七个数字是这句话的编号，不是词表（词表是所有的词）。它的译文有 5 个。讲义用“
# 你多大了？”（5 个词元）去和这 7 个算损失：损失要求每个位置有一个目标，而且属于同一对句子。另外，讲义训练时从中文到英
# 文，推理时却反过来；模型只会它训练过的方向。
# %%
chinese, english = [123, 34, 2, 13, 6, 231, 3], [2, 3, 4, 11, 35]
page.show(("ids of the sentence", "句子的编号"), chinese, rows="W33")
page.show(("ids of the translation", "译文的编号"), english, rows="W33")
page.show(("tokens", "词元个数"), [len(chinese), len(english)], rows="W33 W35")
try:
    F.cross_entropy(torch.zeros(5, 300), torch.tensor(chinese))
    computes = True
except ValueError:
    computes = False
page.claim(
    (
        "the loss of 你多大了？ (5 tokens) against 我是一个学生。 (7 tokens)",
        "“你多大了？”（5 个）对“我是一个学生。”（7 个）的损失",
    ),
    computes,
    ("as many predictions as targets, of the same sentence", "预测与目标一样多，并且是同一句话"),
    rows="W34",
    numbers=[5, 7],
)
page.show(
    ("loss of 7 guesses among 300 words: ln 300", "7 个位置、300 个词随便猜的损失：ln 300"),
    [float(F.cross_entropy(torch.zeros(7, 300), torch.tensor(chinese))), math.log(300)],
)

# %% [markdown] lang="en"
# ## What a mask is for
#
# It hides the future, so that training cannot copy the answer. It does not remove exposure bias: trained on right
# prefixes, a model continues its own, wrong ones included. Below, masked scores of an untrained zoo model after a
# right prefix and after its own: equal where the prefixes are equal, different behind the first error.
# %% [markdown] lang="zh"
# ## 掩码是做什么的
#
# 它遮住未来，使训练不能抄答案。它并不消除曝光偏差（exposure bias）：模型在正确的前文上训练，却要接着自己写的、可能有
# 错的前文往下写。下面比较 zoo 的一个未训练的模型（有掩码）在正确前文和自己写的前文之后的分数：前文相同时相等，第一个
# 错误之后就不同。
# %%
net = LanguageModel(11, 16, dim=16, depth=1, heads=2).eval()
truth, message = torch.tensor([[1, 2, 3, 4, 5, 6]]), [1]
with torch.no_grad():
    forced = net(truth)
    for _ in range(5):
        message.append(int(net(torch.tensor([message]))[0, -1].argmax()))
    own = net(torch.tensor([message]))
error = next(place for place in range(6) if message[place] != truth[0, place])
page.show(
    ("largest difference before the first error", "第一个错误之前的最大差别"),
    round(float((own - forced)[0, :error].abs().max()), 4),
)
page.show(("behind it", "之后"), (own - forced)[0, error:].abs().max(), digits=2, measured=True)
page.claim(
    ("the mask avoids exposure bias", "掩码避免了 Exposure Bias"),
    bool((own - forced).abs().max() < 1e-3),
    (
        "the mask hides the future; teacher forcing causes exposure bias, masked or not",
        "掩码遮住未来；曝光偏差来自 teacher forcing，有没有掩码都一样",
    ),
    rows="W36",
)

# %% [markdown] lang="en"
# ## The whole ladder on one text
#
# Letters of Python's help texts, bits a letter on text that was not trained on. Models that count need no training,
# and the longer the context, the better. The networks train for a few seconds here and are far from their best: they
# come near the 3-gram, which has counted all of the text, although they could use more of what stands before a
# letter. `zoo fit lm-tiny` and `zoo compare` take the time that a fair answer needs.
# %% [markdown] lang="zh"
# ## 同一段文字上的整个阶梯
#
# Python 帮助文本的字母，在没有训练过的文字上每个字母的比特数。数数的模型不需要训练，看得越长越好。网络在这里只训练几
# 秒，远没有到最好：虽然能利用更长的前文，也只是接近数完全文的 3-gram。公平的答案需要更多时间：`zoo fit lm-tiny`、`zoo
# compare`。
# %% tags=["slow"]
text = re.sub("[^a-z]+", " ", " ".join(topics[name] for name in sorted(topics)).lower())[:160_000]
ids = torch.tensor([" abcdefghijklmnopqrstuvwxyz".index(letter) for letter in text])
train, held_out = ids[:150_000], ids[150_000:]
bits: dict[str, float] = {}
for order, name in ((0, "1-gram"), (1, "2-gram"), (2, "3-gram")):
    counts = torch.ones(27**order, 27)
    context = sum(
        (train[place : len(train) - order + place] * 27 ** (order - 1 - place) for place in range(order)),
        torch.zeros(len(train) - order, dtype=torch.long),
    )
    counts.view(-1).index_add_(0, context * 27 + train[order:], torch.ones(len(context)))
    context = sum(
        (held_out[place : len(held_out) - order + place] * 27 ** (order - 1 - place) for place in range(order)),
        torch.zeros(len(held_out) - order, dtype=torch.long),
    )
    shares = counts / counts.sum(1, keepdim=True)
    bits[name] = float(-shares[context, held_out[order:]].log2().mean())


class WindowModel(nn.Module):
    """The next letter from four: W2 tanh(W1 C + b1) + b2."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.hidden, self.output = nn.Embedding(27, 16), nn.Linear(64, 96), nn.Linear(96, 27)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Letters (B, T) to scores (B, T - 3, 27) of the letters after the fourth and later ones."""
        windows = self.rows(letters).unfold(1, 4, 1).transpose(2, 3).flatten(2)
        return self.output(torch.tanh(self.hidden(windows)))


class RecurrentModel(nn.Module):
    """The next letter from a state of all letters so far."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.cells, self.output = (
            nn.Embedding(27, 64),
            nn.LSTM(64, 64, batch_first=True),
            nn.Linear(64, 27),
        )

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Letters (B, T) to scores (B, T - 3, 27) of the letters after the fourth and later ones."""
        return self.output(self.cells(self.rows(letters))[0])[:, 3:]


class AttentionModel(LanguageModel):
    """zoo's language model, scored from the fourth letter on as the others."""

    def forward(self, letters: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Letters (B, T) to scores (B, T - 3, 27) of the letters after the fourth and later ones."""
        return super().forward(letters)[:, 3:]


models = {
    "NNLM": WindowModel,
    "LSTM": RecurrentModel,
    "Transformer": lambda: AttentionModel(27, 48, dim=64, tie=False, depth=2, heads=4, seed=page["seed"]),
}
for name, build in models.items():
    torch.manual_seed(page["seed"])
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), 0.002 if name == "Transformer" else 0.005)
    for _ in range(160):
        batch = torch.stack([train[start : start + 49] for start in torch.randint(len(train) - 49, (32,)).tolist()])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 4:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    windows = held_out.unfold(0, 49, 49)
    with torch.no_grad():
        final = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 4:].flatten())
    bits[name] = float(final) / math.log(2)
page.bars(("bits a letter", "每个字母的比特数"), bits, digits=2, measured=True)

# %% [markdown] lang="en"
# ## Exercises
# %% [markdown] lang="zh"
# ## 练习
# %%
page.exercise(
    (
        '"dog" occurs 7 times, 3 of them before "barks". The vocabulary has 10 '
        "words. What is P(barks | dog) with add-one "
        "smoothing? (three digits)",
        "“dog”出现 7 次，其中 3 次后面是“barks”，词表 10 个词。加一平滑后 P(barks | dog) 是多少？（三位小数）",
    ),
    (3 + 1) / (7 + 10),
    (
        "Add 1 to the count of the pair. What is added below, so that all words sum to 1?",
        "分子加 1。要使所有词的概率之和为 1，分母该加多少？",
    ),
    tolerance=0.0006,
)
page.exercise(
    (
        "Dot products 100 and 84, keys of width 16: which are the two weights? (three digits)",
        "点积 100 和 84，键宽 16：两个权重各是多少？（三位小数）",
    ),
    (torch.tensor([100.0, 84.0]) / 4).softmax(0),
    (
        "Divide by the root of the width first; only the difference of the two matters then.",
        "先除以宽度的平方根；之后只有两个数的差起作用。",
    ),
    tolerance=0.0006,
)
page.exercise(
    (
        "How many skip-gram pairs has a sentence of six words with one neighbour on each side?",
        "六个词的句子、每侧一个邻居，有多少个 skip-gram 词对？",
    ),
    sum(abs(one - other) == 1 for one in range(6) for other in range(6)),
    ("The first and the last word have one neighbour, all others two.", "首尾两个词各有一个邻居，其余各有两个。"),
)

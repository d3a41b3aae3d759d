# %%
"""Attention by itself: a mean by weights, the root of the width, masks, and what more parameters buy."""

import math
import re
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from zoo_learn.page import open_page

from zoo.models import LanguageModel
from zoo.parts.attention import Additive, Gaussian
from zoo.parts.backend import Naive
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, Learned, Sinusoidal

LESSON = {
    "order": 2,
    "title": {"en": "Attention by itself", "zh": "注意力本身"},
    "summary": {
        "en": "a mean by weights, rows and columns, why scores are divided by √D, masks, loss against size",
        "zh": "按权重求平均、行与列、为什么除以 √D、掩码、损失与模型大小",
    },
    "exercises": 3,
    "inputs": {
        "sigma": {
            "default": 0.5,
            "least": 0.001,
            "most": 1000.0,
            "en": "width of the Gaussian kernel",
            "zh": "高斯核的宽度",
        },
        "scores": {
            "default": [1.0, 0.5, 1.0, 2.0, 1.0, -0.5, 0.3, 0.2, 0.1],
            "least": -50.0,
            "most": 50.0,
            "en": "three rows of scores that are masked",
            "zh": "要加掩码的三行分数",
        },
        "seed": {
            "default": 1,
            "least": 0,
            "most": 2147483647,
            "en": "of samples and weights",
            "zh": "抽样与权重的种子",
        },
    },
}
page = open_page(LESSON)

# %% [markdown] lang="en"
# # Attention by itself
#
# ## A mean by weights
#
# Attention existed before neural networks: predict a value at x as the mean of known values, weighted by how near
# their places are (Nadaraya and Watson, 1964). With a Gaussian kernel the weights are a softmax of −(x − xᵢ)²/2σ². A
# wide kernel averages everything, a narrow one takes the nearest. Try `--set sigma=0.1`. zoo has it as
# `--model.attention gaussian`.
# %% [markdown] lang="zh"
# # 注意力本身
#
# ## 按权重求平均
#
# 注意力比神经网络更早：x 处的预测是已知值的平均，权重由距离决定（Nadaraya 与 Watson，1964）。用高斯核时，权重是 −(x −
# xᵢ)²/2σ² 的 softmax。核宽就是对所有值取平均，核窄就只取最近的。试试 `--set sigma=0.1`。在 zoo 里是
# `--model.attention gaussian`。
# %%
places, values = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0.0, 0.8, 0.9, 0.1])
weights = (-((1.2 - places) ** 2) / (2 * page["sigma"] ** 2)).softmax(0)
page.bars(
    ("weights at x = 1.2 of the values at 0, 1, 2, 3", "x = 1.2 处，位于 0、1、2、3 的各值的权重"),
    {f"{place:g}": float(weight) for place, weight in zip(places, weights, strict=True)},
)
page.show(("the values", "各值"), values)
page.show(("prediction: the sum of weights times values", "预测：权重乘以值，求和"), weights @ values)
page.show(
    ("sums of the weights of zoo's Gaussian and Additive", "zoo 的 Gaussian 与 Additive 的权重之和"),
    [
        float(part(8, 2).weights(torch.ones(1, 3, 8), pattern=Pattern()).sum(-1).mean().detach())
        for part in (Gaussian, Additive)
    ],
)

# %% [markdown] lang="en"
# ## Rows or columns
#
# With tokens as rows, Q is (queries, D) and K is (keys, D): weights are softmax(QKᵀ/√D) along rows, the result is
# weights × V. With tokens as columns everything is transposed: V softmax(KᵀQ/√D) along columns. The notes take the
# scores of the second form and the order of the first. With 4 queries and 6 keys such shapes do not even fit.
# %% [markdown] lang="zh"
# ## 行还是列
#
# 词作为行：Q 是（查询数, D），K 是（键数, D），权重是沿行的 softmax(QKᵀ/√D)，结果是权重 × V。词作为列：全部转置，V
# softmax(KᵀQ/√D)，沿列。讲义用了第二种的分数、第一种的次序；4 个查询、6 个键时形状根本对不上。
# %%
torch.manual_seed(page["seed"])
q, k, v = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6, 5)
by_rows = (q @ k.T / 8**0.5).softmax(1) @ v
q_columns, k_columns, v_columns = q.T, k.T, v.T
by_columns = v_columns @ (k_columns.T @ q_columns / 8**0.5).softmax(0)
page.show(("both forms agree", "两种写法结果一致"), bool(torch.allclose(by_rows, by_columns.T, atol=1e-6)), rows="W12")
page.show(
    ("and zoo's backend", "与 zoo 的后端一致"),
    bool(torch.allclose(by_rows, Naive()(q[None, None], k[None, None], v[None, None], Pattern())[0, 0], atol=1e-6)),
    rows="W12",
)
try:
    mixed = (k_columns.T @ q_columns / 8**0.5).softmax(0) @ v
    fits = bool(torch.allclose(mixed, by_rows))
except RuntimeError:
    fits = False
page.claim(
    ("softmax(KᵀQ/√D) V, normalised by columns", "softmax(KᵀQ/√D) V，按列归一化"),
    fits,
    (
        "V softmax(KᵀQ/√D) for tokens as columns, softmax(QKᵀ/√D) V for tokens as rows",
        "词作为列时是 V softmax(KᵀQ/√D)；词作为行时是 softmax(QKᵀ/√D) V",
    ),
    rows="W12",
)

# %% [markdown] lang="en"
# ## Why scores are divided by √D
#
# Numbers with mean 0 and variance 1: their dot product over D places has mean 0 and variance D, so it is typically √D
# large (not D: that is the variance). Without the root the softmax of wide vectors gives nearly everything to one
# key, where it has no gradient. The last two columns are the mean largest share among 64 keys.
# %% [markdown] lang="zh"
# ## 为什么分数要除以 √D
#
# 均值 0、方差 1 的数，D 位的点积均值是 0，方差是 D，所以典型大小是 √D（不是 D，D 是方差）。不除的话，宽向量的 softmax
# 几乎把一切都给了一个键，那里没有梯度。最后两列是 64 个键里最大份额的平均。
# %%
torch.manual_seed(page["seed"])
lines = []
for width in (16, 64, 256, 1024):
    q, k = torch.randn(2, 1500, width)
    products = q @ k.T
    raw, scaled = ((products[:, :64] * factor).softmax(1).amax(1).mean() for factor in (1.0, width**-0.5))
    lines.append(
        [width, *(float(one) for one in (products.mean(), products.var(), (products / width**0.5).var(), raw, scaled))]
    )
page.table(
    [
        "D",
        ("mean", "均值"),
        ("variance", "方差"),
        ("variance of q·k/√D", "q·k/√D 的方差"),
        ("largest share", "最大份额"),
        ("of q·k/√D", "除以 √D 后"),
    ],
    lines,
    digits=2,
    rows="W13",
    measured=range(1, 6),
)

# %% [markdown] lang="en"
# ## Masks
#
# A word must not see the words behind it. Setting their weights to 0 after the softmax leaves rows that do not sum to
# 1; −∞ before the softmax does. The sums below are those of the wrong way; then the weights of the right way by zoo.
# %% [markdown] lang="zh"
# ## 掩码
#
# 一个词不能看到后面的词。如果在 softmax 之后把那些权重置零，行和就不再是 1；在 softmax 之前设为 −∞ 才对。下面先是错误
# 做法的行和，然后是 zoo 用正确做法得到的权重。
# %%
scores = torch.tensor(page["scores"]).view(3, 3)
page.show(("scores", "分数"), scores)
page.show(("sums of rows with zeros after the softmax", "softmax 之后置零的行和"), scores.softmax(1).tril().sum(1))
masked = Naive().weights(scores[None, None], torch.eye(3)[None, None], Pattern(causal=True), scale=1.0)[0, 0]
page.show(("weights with the mask in front", "先加掩码的权重"), masked)
page.heat(("who sees whom", "谁能看谁"), masked, ["1", "2", "3"], ["1", "2", "3"])

# %% [markdown] lang="en"
# ## Places, fixed or learned
#
# The original positions are a formula without parameters. Later models learn a table, with a row for each place.
# %% [markdown] lang="zh"
# ## 位置：固定还是学习
#
# 最初的位置编码是一个没有参数的公式；后来的模型学习一张表，每个位置一行。
# %%
for part in (Sinusoidal, Learned):
    count = sum(one.numel() for one in part(512, 8, Extent((1024,))).parameters())
    page.show(
        (f"parameters of {part.__name__}, 1,024 places of width 512", f"{part.__name__} 的参数，1024 个位置，宽 512"),
        count,
        rows="W14",
    )

# %% [markdown] lang="en"
# ## Larger models, lower loss
#
# Language models of letters, one block, on Python's help texts: 120 steps each, the same text in the same order, and
# a learning rate that falls with the width. The loss on letters that were not trained on, in bits a letter, falls
# with the size. `zoo compare` does this fairly, over several seeds.
# %% [markdown] lang="zh"
# ## 模型越大，损失越低
#
# 在 Python 帮助文本上训练按字母的语言模型，一个块，各 120 步，文本与顺序相同，学习率随宽度减小。在没有训练过的字母
# 上，每个字母的损失（比特）随模型变大而下降。公平、多种子的比较用 `zoo compare`。
# %% tags=["slow"]
text = re.sub("[^a-z]+", " ", " ".join(topics[name] for name in sorted(topics)).lower())
letters = torch.tensor([" abcdefghijklmnopqrstuvwxyz".index(letter) for letter in text[:160_000]])
train, held_out = letters[:150_000], letters[150_000:].unfold(0, 49, 49)
sizes = {}
for dim in (4, 8, 16, 32, 64):
    torch.manual_seed(page["seed"])
    model = LanguageModel(27, 48, tie=False, dim=dim, depth=1, heads=max(1, dim // 16), seed=page["seed"])
    optimizer = torch.optim.Adam(model.parameters(), 0.05 / dim**0.75)
    for _ in range(120):
        batch = torch.stack([train[start : start + 49] for start in torch.randint(len(train) - 49, (24,)).tolist()])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        final = F.cross_entropy(model(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten())
    sizes[f"{sum(one.numel() for one in model.parameters()):,}"] = float(final) / math.log(2)
page.bars(
    ("bits a letter by number of parameters", "每个字母的比特数，按参数个数"),
    sizes,
    digits=2,
    measured=True,
    name="sizes",
)

# %% [markdown] lang="en"
# ## Exercises
# %% [markdown] lang="zh"
# ## 练习
# %%
page.exercise(
    (
        "Vectors of width 400 with random numbers of variance 1: what is the standard deviation of their dot product?",
        "宽 400、各分量方差为 1 的随机向量，点积的标准差是多少？",
    ),
    math.sqrt(400),
    (
        "The variances of the products add up; the standard deviation is the root of the sum.",
        "各项乘积的方差相加；标准差是这个和的平方根。",
    ),
    tolerance=0.01,
)
page.exercise(
    (
        "A query may see two keys and not the third. Its scores are 2, 1 and −0.5. "
        "Which are its three weights? (three digits)",
        "一个查询可以看两个键，不能看第三个。分数是 2、1、−0.5。三个权重各是多少？（三位小数）",
    ),
    torch.tensor([2.0, 1.0, -math.inf]).softmax(0),
    (
        "Replace the score that must not be seen by −∞. Its weight is then e^(−∞).",
        "把不能看的分数换成 −∞，它的权重就是 e^(−∞)。",
    ),
    tolerance=0.0006,
)
page.exercise(
    (
        "Weights of 4 queries over 6 keys: what is the sum of all 24 numbers?",
        "4 个查询、6 个键的权重，24 个数的总和是多少？",
    ),
    float((q[:4] @ k[:6].T).softmax(1).sum().round()),
    ("Which direction sums to 1, and how many of these are there?", "哪个方向的和是 1？这样的有几个？"),
    tolerance=1e-6,
)

# %%
"""The Transformer in its original sizes: embedding, positions, heads, feed-forward, norms, and the published models."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from zoo_learn.page import open_page

from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, Sinusoidal

LESSON = {
    "order": 5,
    "title": {"en": "The Transformer in its sizes", "zh": "Transformer 的各个尺寸"},
    "summary": {
        "en": "sinusoids, order, heads, initial weights, positions added or concatenated, "
        "parameters of published models",
        "zh": "正弦位置、词序、多头、初始权重、位置相加还是拼接、发表模型的参数量",
    },
    "exercises": 3,
    "inputs": {
        "position": {
            "default": 1,
            "least": 0,
            "most": 1_000_000,
            "en": "whose sinusoids are computed",
            "zh": "计算正弦编码的位置",
        },
        "width": {
            "default": 512,
            "least": 8,
            "most": 4096,
            "multiple": 8,
            "en": "of the model, divisible by 8",
            "zh": "模型宽度，8 的倍数",
        },
        "vector": {
            "default": [2.0, 4.0, 6.0, 8.0],
            "least": -1000.0,
            "most": 1000.0,
            "en": "four numbers that are normalised",
            "zh": "要归一化的四个数",
        },
        "seed": {
            "default": 1,
            "least": 0,
            "most": 2147483647,
            "en": "of what is trained or random",
            "zh": "训练与随机数的种子",
        },
    },
}
page = open_page(LESSON)
width = page["width"]

# %% [markdown] lang="en"
# # The Transformer in its sizes
#
# ## Embedding
#
# A vocabulary of 30,000 words at width 512. Rows are multiplied by √512, so that they are as large as the positions.
# %% [markdown] lang="zh"
# # Transformer 的各个尺寸
#
# ## 嵌入
#
# 30000 个词，宽度 512。取出的行乘以 √512，使它的大小与位置编码相当。
# %%
page.show(("vocabulary × width", "词表 × 宽度"), [30_000, width], rows="W38")
page.compare(("parameters", "参数个数"), "15,360,000", 30_000 * width, of="width", rows="W38")
page.show("√512", math.sqrt(512), digits=2)

# %% [markdown] lang="en"
# ## Sinusoids
#
# The angle of feature pair i is the place divided by 10000^(2i/512). For the second pair this divisor is 1.0366, not
# nearly 1, so its sine and cosine at place 1 are not those of the first pair. The first features turn fast and the
# last ones hardly move: a step changes feature 0 by 0.61 on average and feature 510 by 0.0001. Rows below are places
# 0 to 15, columns features of a table of width 32.
# %% [markdown] lang="zh"
# ## 正弦编码
#
# 第 i 对特征的角度是位置除以 10000^(2i/512)。第二对的除数是 1.0366，并不接近 1，所以位置 1 上它的正弦余弦与第一对不
# 同。前面的特征转得快，后面的几乎不动：走一步，第 0 个特征平均变化 0.61，第 510 个只变化 0.0001。下图的行是位置 0 到
# 15，列是宽 32 的特征。
# %%
place = page["position"]
wave = Sinusoidal(width, 8, Extent((place + 1,))).embed(
    torch.zeros(1, 1, width, dtype=torch.float64), torch.tensor([place])
)[0, 0]
page.compare(f"PE({place}, 0), PE({place}, 1)", "0.841 0.540", wave[:2], of="position width")
divisor = 10000 ** (2 / width)
page.show(f"10000^(2/{width})", divisor, rows="W39")
page.show(
    ("printed angle, and its sine and cosine", "讲义的角度及其正弦、余弦"),
    [0.9999, math.sin(0.9999), math.cos(0.9999)],
    rows="W39",
)
page.compare(
    f"PE({place}, 2), PE({place}, 3)",
    "0.841 0.540",
    wave[2:4],
    of="position width",
    rows="W39",
    why=("the angle is 1/1.0366 = 0.9647 and not 0.9999", "角度是 1/1.0366 = 0.9647，不是 0.9999"),
)
table = Sinusoidal(512, 8, Extent((200,))).embed(torch.zeros(1, 200, 512), torch.arange(200))[0]
steps = (table[1:] - table[:-1]).abs().mean(0)
page.show(("mean change a step of feature 0", "第 0 个特征每步的平均变化"), steps[0], digits=2, rows="W40")
page.show(("and of feature 510", "第 510 个特征"), round(float(steps[510]), 4), rows="W40")
page.claim(
    ("the first features vary slowly, the last ones fast", "低维变化慢，高维变化快"),
    bool(steps[0] < steps[510]),
    ("the other way round: fast in front, slow behind", "正相反：前面快，后面慢"),
    rows="W40",
)
small = Sinusoidal(32, 1, Extent((16,))).embed(torch.zeros(1, 16, 32), torch.arange(16))[0]
page.heat(("sinusoids", "正弦编码"), small, [str(one) for one in range(16)])

# %% [markdown] lang="en"
# ## Does attention know the order?
#
# Without positions, moving the tokens moves the results in the same way: that is equivariance. Invariant, the same
# whatever the order, is only what forgets which result is whose, such as the mean. Two blocks of zoo's stack, seven
# tokens.
# %% [markdown] lang="zh"
# ## 注意力知道顺序吗
#
# 没有位置编码时，词换了位置，结果也跟着换到相应的位置：这叫等变。不管顺序如何结果都一样的（不变），只有忘掉了“谁是谁”
# 的量，例如平均值。下面是 zoo 的两个块、七个词。
# %%
torch.manual_seed(page["seed"])
x, order = torch.randn(1, 7, 16), torch.tensor([3, 0, 6, 1, 5, 2, 4])
for position, name in ((NoPosition, ("without positions", "没有位置")), (Sinusoidal, ("with sinusoids", "有正弦编码"))):
    net = Stack(Extent((7,)), dim=16, depth=2, heads=2, position=position).eval()
    with torch.no_grad():
        original, moved = net(x), net(x[:, order])
    equivariant, same = (bool(torch.allclose(moved, one, atol=1e-5)) for one in (original[:, order], original))
    same_mean = bool(torch.allclose(moved.mean(1), original.mean(1), atol=1e-5))
    page.table(
        [name, ("moves along", "跟着移动"), ("is the same", "不变"), ("its mean is the same", "平均值不变")],
        [["", str(equivariant), str(same), str(same_mean)]],
        rows="W41",
    )
    if position is NoPosition:
        page.claim(
            ("self-attention is invariant to the order", "自注意力是排列不变的"),
            same,
            ("it is equivariant; its mean is invariant", "它是排列等变的；不变的是它的平均值"),
            rows="W41",
        )


# %% [markdown] lang="en"
# ## Added or concatenated?
#
# A place can be added to the word, or stand beside it and take some of the width. The task: write the sequence
# backwards, 8 to 12 letters, one block of width 32, 250 steps with Adam. Without places it cannot be learned. Then
# the same models on 24 letters: sinusoids exist there, but that does not make a model right there.
# %% [markdown] lang="zh"
# ## 相加还是拼接
#
# 位置可以加到词向量上，也可以放在旁边、占用一部分宽度。任务：把 8 到 12 个字母倒着写出来，一个宽 32 的块，Adam 训练
# 250 步。没有位置就学不会。然后让同样的模型处理 24 个字母：正弦编码在那里有定义，但这不等于模型在那里正确。
# %% tags=["slow"]
class Reverser(nn.Module):
    """Letters (B, T) to scores of the reversed letters (B, T, 10); places from the end and the start are features."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.join = join
        self.letters = nn.Embedding(10, 16 if join == "concatenated" else 32)
        self.stack = Stack(Extent((64,)), dim=32, depth=1, heads=2, hidden=64, position=NoPosition)
        self.output = nn.Linear(32, 10)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Letters (B, T) to scores (B, T, 10) of the reversed letters."""
        length = letters.size(1)
        wide = 16 if self.join == "concatenated" else 32
        half = Sinusoidal(wide // 2, 1, Extent((64,)))
        empty = torch.zeros(1, length, wide // 2)
        ahead = torch.arange(length)
        places = torch.cat([half.embed(empty, ahead), half.embed(empty, ahead.flip(0))], -1).expand(
            len(letters), -1, -1
        )
        words = self.letters(letters)
        if self.join == "concatenated":
            words = torch.cat([words, places], -1)
        elif self.join == "added":
            words = words + places
        return self.output(self.stack(words))


reversal_lines = []
for join, name in (
    ("none", ("no position", "没有位置")),
    ("added", ("added", "相加")),
    ("concatenated", ("concatenated", "拼接")),
):
    torch.manual_seed(page["seed"])
    model = Reverser(join)
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    for _ in range(250):
        letters = torch.randint(10, (32, int(torch.randint(8, 13, ()))))
        loss = F.cross_entropy(model(letters).flatten(0, 1), letters.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracies = []
    with torch.no_grad():
        for length in (12, 24):
            letters = torch.randint(10, (200, length))
            accuracies.append(float((model(letters).argmax(-1) == letters.flip(1)).float().mean()))
    reversal_lines.append([name, sum(one.numel() for one in model.parameters()), *accuracies])
page.table(
    [("position", "位置"), ("parameters", "参数"), ("12 letters", "12 个字母"), ("24 letters", "24 个字母")],
    reversal_lines,
    digits=2,
    name="positions",
    rows="W47",
    measured=[2, 3],
)

# %% [markdown] lang="en"
# ## Shapes and heads
#
# Ten tokens at width 512 become 8 heads of 10 × 64. More heads are narrower heads: 1 and 8 heads have equally many
# parameters and operations, because width / heads times heads is the width.
# %% [markdown] lang="zh"
# ## 形状与多头
#
# 10 个词、宽 512，变成 8 个 10 × 64 的头。头多了，每个头就窄：1 个头和 8 个头的参数与运算一样多，因为“宽度 / 头数”乘
# 以头数还是宽度。
# %%
with torch.device("meta"):
    attentions = {heads: MultiHead(width, heads, Naive(), bias=False) for heads in (1, 8)}
    heads_of_q = attentions[8].project(torch.empty(1, 10, width), None, Pattern(), None, None)[0]
    four = attentions[1].project(torch.empty(1, 4, width), None, Pattern(), None, None)[0]
    inner = MLP(width, 4 * width).up(torch.empty(4, width))
page.show(("Q of four tokens, one head", "4 个词、1 个头的 Q"), list(four.shape[2:]), rows="W43")
page.show(("ten tokens", "10 个词"), [10, width], rows="W43")
page.show(("their heads: number, tokens, width", "它们的头：个数、词数、宽度"), list(heads_of_q.shape[1:]), rows="W43")
page.show(("inside of the feed-forward, four tokens", "4 个词在前馈网络里面"), list(inner.shape), rows="W43")
totals = {heads: sum(one.numel() for one in part.parameters()) for heads, part in attentions.items()}
for heads, total in totals.items():
    page.show((f"parameters with {heads} head(s)", f"{heads} 个头的参数"), total, rows="W42")
page.claim(
    ("several heads have more parameters", "多头增加了参数"),
    totals[8] > totals[1],
    ("as many: each head is narrower by their number", "一样多：头数越多，每个头越窄"),
    rows="W42",
)

# %% [markdown] lang="en"
# ## Feed-forward network
#
# 512 to 2048 and back, with biases. It is widest inside, so it is the opposite of a bottleneck (an inverted one).
# %% [markdown] lang="zh"
# ## 前馈网络
#
# 512 到 2048 再回来，带偏置。它中间最宽，所以与“瓶颈”正相反（叫倒置瓶颈）。
# %%
with torch.device("meta"):
    network = MLP(width, 4 * width)
total = sum(one.numel() for one in network.parameters())
page.show(("widths", "宽度"), [width, 4 * width, width], rows="W44 W48")
page.compare(("parameters, in 10,000", "参数（万）"), "210", total / 10_000, digits=1, of="width", rows="W44")
page.show(("parameters", "参数个数"), total, rows="W44")

# %% [markdown] lang="en"
# ## Normalisation
#
# LayerNorm of [2, 4, 6, 8], and what ε is for: it keeps a constant token finite. One note prints 1e-6, another 1e-5,
# which is torch's default and an option of zoo's norm (`--model.norm.eps`).
# %% [markdown] lang="zh"
# ## 归一化
#
# [2, 4, 6, 8] 的 LayerNorm，以及 ε 的用处：让各分量相同的词不会除以零。一份讲义印 1e-6，另一份印 1e-5；后者是 torch
# 的默认值，在 zoo 里是归一化的一个选项（`--model.norm.eps`）。
# %%
vector = torch.tensor(page["vector"])
page.show(("vector", "向量"), vector, rows="W45")
page.compare(
    "LayerNorm",
    "-1.342 -0.447 0.447 1.342",
    LayerNorm(4, eps=1e-12)(vector).detach(),
    digits=3,
    of="vector",
    rows="W45",
)
for eps in (1e-6, 1e-5):
    page.show(
        (f"of a vector 1000 times smaller, ε = {eps:g}", f"缩小 1000 倍之后，ε = {eps:g}"),
        LayerNorm(4, eps=eps)(vector / 1000).detach(),
        digits=3,
        rows="W46",
    )

# %% [markdown] lang="en"
# ## Initial weights
#
# Fifteen layers of width 256 with tanh, fed with random tokens: the spread of what arrives, by layer. Weights that
# are too small fade the signal and its gradient; too large ones drive tanh to ±1, and gradients explode. Xavier's
# rule, variance 2/(in + out), keeps both in range. `--model.init xavier` chooses it; zoo's default is 1/(3·in),
# because norms follow.
# %% [markdown] lang="zh"
# ## 初始权重
#
# 十五层宽 256 的 tanh 网络，输入随机的词：每层输出的离散程度。权重太小，信号和梯度逐层消失；太大，tanh 被推到 ±1，梯
# 度爆炸。 Xavier 规则（方差 2/(入 + 出)）让两者都保持在合适的范围。用 `--model.init xavier` 选择；zoo 默认用 1/(3·
# 入)，因为后面有归一化。
# %%
torch.manual_seed(page["seed"])
inputs = torch.randn(200, 256, dtype=torch.float64)
limit = math.sqrt(6 / 512)
spread_lines = []
for name_, scale in (
    (("a quarter of Xavier", "Xavier 的四分之一"), 0.25),
    (("Xavier", "Xavier"), 1.0),
    (("four times", "四倍"), 4.0),
):
    signal = inputs.clone().requires_grad_()
    state = signal
    spreads = []
    for depth in range(1, 16):
        matrix = nn.init.xavier_uniform_(torch.empty(256, 256, dtype=torch.float64)) * scale
        state = torch.tanh(state @ matrix)
        if depth in (1, 5, 15):
            spreads.append(float(state.detach().std()))
    state.sum().backward()
    assert signal.grad is not None
    spread_lines.append([name_, *spreads, float(signal.grad.std())])
page.table(
    [
        ("weights", "权重"),
        ("layer 1", "第 1 层"),
        ("layer 5", "第 5 层"),
        ("layer 15", "第 15 层"),
        ("gradient", "梯度"),
    ],
    spread_lines,
    digits=4,
    name="initial weights",
    measured=range(1, 5),
)
page.show(("Xavier's limit at 256 by 256", "256 × 256 的 Xavier 界限"), limit, digits=3)


# %% [markdown] lang="en"
# ## Parameters of published models
#
# Each count follows from a few matrices: an attention has 4D², a feed-forward 8D², vectors for norms and biases.
# Tying, biases and norms decide the last digit. `zoo recipes` has most of these models, and tests build them at these
# sizes.
# %% [markdown] lang="zh"
# ## 发表模型的参数量
#
# 每个数都由几个矩阵决定：注意力 4D²，前馈 8D²，再加归一化和偏置的向量。权重是否共享、有没有偏置，决定了最后一位数字。
# 这些模型大多在 `zoo recipes` 里，测试会按这些尺寸把它们搭出来。
# %%
def encoder_block(dim: int, hidden: int = 0) -> int:
    """A block with biases and two norms."""
    hidden = hidden or 4 * dim
    return 4 * dim**2 + 4 * dim + 2 * dim * hidden + hidden + dim + 4 * dim


def original_transformer(dim: int, vocabulary: int) -> int:
    """Encoder and decoder of six blocks each, with one embedding for all (Vaswani et al., 2017)."""
    return vocabulary * dim + 6 * (12 * dim**2 + 9 * dim) + 6 * (16 * dim**2 + 11 * dim)


def gpt(dim: int, depth: int, vocabulary: int = 50_257, places: int = 1024, last_norm: bool = True) -> int:
    """A decoder with learned positions whose embedding is also its output (Radford et al., 2019)."""
    return (vocabulary + places) * dim + depth * encoder_block(dim) + (2 * dim if last_norm else 0)


def bert(dim: int, depth: int, vocabulary: int = 30_522, places: int = 512, segments: int = 2) -> int:
    """An encoder with positions, segments and a pooler (Devlin et al., 2019)."""
    return (vocabulary + places + segments + 2) * dim + depth * encoder_block(dim) + dim**2 + dim


def deberta(dim: int, depth: int) -> int:
    """An encoder with projected relative positions in each block (He et al., 2021)."""
    return (50_265 + 2 + 2 * 512) * dim + depth * (14 * dim**2 + 13 * dim)


def t5(dim: int, depth: int, heads: int, hidden: int, vocabulary: int = 32_128, gated: bool = False) -> int:
    """An encoder and a decoder without biases, with relative positions (Raffel et al., 2020)."""
    inside = 64 * heads
    feed = (3 if gated else 2) * dim * hidden
    encoder = depth * (4 * dim * inside + feed + 2 * dim)
    decoder = depth * (8 * dim * inside + feed + 3 * dim)
    return (2 if gated else 1) * vocabulary * dim + encoder + decoder + 2 * 32 * heads + 2 * dim


def bart(dim: int, depth: int) -> int:
    """An encoder and a decoder of half the depth each, with biases (Lewis et al., 2020)."""
    return (50_265 + 2 * 1026 + 4) * dim + depth * (encoder_block(dim) + 16 * dim**2 + 19 * dim)


def llama(dim: int, depth: int, hidden: int) -> int:
    """A decoder with RMSNorm and SwiGLU, without biases (Touvron et al., 2023)."""
    return 2 * 32_000 * dim + depth * (4 * dim**2 + 3 * dim * hidden + 2 * dim) + dim


def palm(dim: int, depth: int, heads: int) -> int:
    """A decoder with one head of keys and values and parallel blocks (Chowdhery et al., 2022)."""
    return 256_000 * dim + depth * (dim * (2 * 256 * heads + 2 * 256) + 12 * dim**2 + dim) + dim


def vit(dim: int, depth: int, class_token: bool = True) -> int:
    """An encoder of 196 patches (Dosovitskiy et al., 2021)."""
    tokens = 197 if class_token else 196
    return 768 * dim + dim + tokens * dim + class_token * dim + depth * encoder_block(dim) + 2 * dim + 1000 * dim + 1000


def swin(dim: int, depths: tuple[int, ...], heads: tuple[int, ...]) -> int:
    """Four levels of windows, each half as long and twice as wide (Liu et al., 2021)."""
    total = 48 * dim + dim + 2 * dim
    for level, (depth, count) in enumerate(zip(depths, heads, strict=True)):
        wide = dim * 2**level
        total += depth * (encoder_block(wide) + 13**2 * count)
        total += 8 * wide**2 + 8 * wide if level < len(depths) - 1 else 2 * wide + 1000 * wide + 1000
    return total


def clip() -> int:
    """An image and a text encoder with a projection each (Radford et al., 2021)."""
    image = 3 * 32**2 * 768 + 51 * 768 + 4 * 768 + 12 * encoder_block(768) + 768 * 512
    text = (49_408 + 77) * 512 + 12 * encoder_block(512) + 2 * 512 + 512**2
    return image + text + 1


page.show(
    ("Transformer base and big (37,000 words), millions", "Transformer base 与 big（37000 词），百万"),
    [original_transformer(512, 37_000) / 1e6, original_transformer(1024, 37_000) / 1e6],
    digits=2,
    rows="anchors",
)
heads_of_bert = (768**2 + 768) + 2 * 768 + 30_522 + 2 * 768 + 2
published: list[tuple[str, int]] = [
    ("GPT-1", gpt(768, 12, 40_478, 512, last_norm=False)),
    ("GPT-2 S", gpt(768, 12)),
    ("GPT-2 M", gpt(1024, 24)),
    ("GPT-2 L", gpt(1280, 36)),
    ("GPT-2 XL", gpt(1600, 48)),
    ("GPT-3", gpt(12_288, 96, places=2048)),
    ("BERT base", bert(768, 12)),
    ("BERT large", bert(1024, 24)),
    ("BERT base + MLM + NSP", bert(768, 12) + heads_of_bert),
    ("RoBERTa base", bert(768, 12, 50_265, 514, 1)),
    ("DeBERTa base", deberta(768, 12)),
    ("T5 small", t5(512, 6, 8, 2048)),
    ("T5 base", t5(768, 12, 12, 3072)),
    ("T5 large", t5(1024, 24, 16, 4096)),
    ("mT5 small", t5(512, 8, 6, 1024, 250_112, gated=True)),
    ("BART base", bart(768, 6)),
    ("BART large", bart(1024, 12)),
    ("LLaMA 7B", llama(4096, 32, 11_008)),
    ("LLaMA 13B", llama(5120, 40, 13_824)),
    ("LLaMA 30B", llama(6656, 60, 17_920)),
    ("LLaMA 65B", llama(8192, 80, 22_016)),
    ("ViT-Ti/16", vit(192, 12)),
    ("ViT-S/16", vit(384, 12)),
    ("ViT-B/16", vit(768, 12)),
    ("ViT-L/16", vit(1024, 24)),
    ("ViT-B/16, mean of patches", vit(768, 12, class_token=False)),
    ("Swin T", swin(96, (2, 2, 6, 2), (3, 6, 12, 24))),
    ("Swin S", swin(96, (2, 2, 18, 2), (3, 6, 12, 24))),
    ("Swin B", swin(128, (2, 2, 18, 2), (4, 8, 16, 32))),
    ("CLIP ViT-B/32", clip()),
]
page.table([("model", "模型"), ("parameters", "参数")], [list(line) for line in published], rows="anchors")
page.show(
    ("PaLM 8B and 540B, billions", "PaLM 8B 与 540B，十亿"),
    [palm(4096, 32, 16) / 1e9, palm(18_432, 118, 48) / 1e9],
    digits=2,
    rows="anchors",
)

# %% [markdown] lang="en"
# ## Exercises
# %% [markdown] lang="zh"
# ## 练习
# %%
page.exercise(
    (
        "How many parameters has a feed-forward network 768 → 3072 → 768 with both biases?",
        "带两个偏置的前馈网络 768 → 3072 → 768 有多少参数？",
    ),
    2 * 768 * 3072 + 3072 + 768,
    ("Two matrices, and a bias as long as the output of each.", "两个矩阵，各有一个与其输出一样长的偏置。"),
)
page.exercise(
    (
        "What are the sine and the cosine of the second feature pair at place 2, at "
        "width 512? Two numbers with a comma, three digits.",
        "宽度 512 时，位置 2 的第二对特征的正弦和余弦是多少？两个数，用逗号分隔，三位小数。",
    ),
    [math.sin(2 / 10000 ** (2 / 512)), math.cos(2 / 10000 ** (2 / 512))],
    (
        "The divisor is 10000^(2/512). Divide the place by it first; angles are in radians.",
        "除数是 10000^(2/512)。先用位置除以它；角度用弧度。",
    ),
    tolerance=0.0006,
)
page.exercise(
    (
        "Shuffle the words of a sentence: is the mean of self-attention without "
        "positions invariant, equivariant or neither?",
        "打乱一句话的词序：没有位置编码的自注意力，其结果的平均值是不变、等变，还是都不是？",
    ),
    "invariant",
    (
        "Results move along with their words. What does a mean make of numbers in another order?",
        "结果跟着词移动。换了顺序的数，平均值会怎样？",
    ),
    synonyms=("不变", "排列不变"),
)

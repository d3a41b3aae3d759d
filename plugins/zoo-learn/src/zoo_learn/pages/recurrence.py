# %%
"""From recurrent networks to attention: what recurrence costs, what attention costs, and how large models became."""

import math
import time
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from zoo_learn.page import open_page

from zoo.explain.trace import trace
from zoo.models import LanguageModel, Seq2Seq
from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive, Tiled
from zoo.parts.block import PostNorm
from zoo.parts.ffn import MLP, MoE, SwiGLU
from zoo.parts.norm import LayerNorm, RMSNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, Learned, Sinusoidal
from zoo.system.torch_internals import TorchDispatchMode

LESSON = {
    "order": 1,
    "title": {"en": "From recurrence to attention", "zh": "从循环到注意力"},
    "summary": {
        "en": "gradients over distance, the cost of three kinds of layers, memory of scores, sizes of models",
        "zh": "梯度能传多远，三种层各花多少，分数矩阵占多少内存，模型有多大",
    },
    "exercises": 3,
    "inputs": {
        "tokens": {
            "default": 100_000,
            "least": 1,
            "most": 10_000_000,
            "en": "tokens of the sequence whose scores are counted",
            "zh": "计算分数矩阵内存时的序列长度",
        },
        "heads": {"default": 64, "least": 1, "most": 4096, "en": "heads of its attention", "zh": "头数"},
        "seed": {"default": 1, "least": 0, "most": 2147483647, "en": "of the measurements", "zh": "测量用的随机种子"},
    },
}
page = open_page(LESSON)

# %% [markdown] lang="en"
# # From recurrence to attention
#
# ## A context for each word
#
# A recurrent translator packs the source into one vector. Attention builds one for each word that it writes: a mean
# of the encoder's states by weights that sum to 1. For "vediamo" (we see) the weights of "we see the sky" may look
# like this. `zoo fit reverse-rnn --model.score none` trains the variant with the single vector.
# %% [markdown] lang="zh"
# # 从循环到注意力
#
# ## 每个词有自己的上下文
#
# 循环网络的翻译器把整个源句压成一个向量。注意力则为每个要写的词另算一个：对编码器状态求加权平均，权重之和为 1。写
# “vediamo”（我们看见）时，“we see the sky” 四个词的权重可能如下。只有一个向量的版本：`zoo fit reverse-rnn
# --model.score none`。
# %%
weights = torch.tensor([0.45, 0.45, 0.05, 0.05], dtype=torch.float64)
page.bars(
    ("weights of the source words", "源句各词的权重"),
    dict(zip(("we", "see", "the", "sky"), weights.tolist(), strict=True)),
    rows="W1",
)
page.show(("sum", "和"), weights.sum(), rows="W1")
states = torch.eye(4, dtype=torch.float64)
page.show(
    ("context of states that are unit vectors: the weights", "状态是单位向量时，上下文就是权重本身"),
    weights @ states,
    rows="W1",
)

# %% [markdown] lang="en"
# ## How far a gradient reaches
#
# The last state must learn from the first word. Measured below: the gradient that reaches the first word, divided by
# the one that reaches the last word but one, with torch's recurrent layers of width 16 and zoo's attention, before any
# training. A tanh network forgets by a constant factor a step (vanishing gradient); with matrices six times as large
# the factor is above 1 (exploding). An LSTM forgets more slowly the wider its forget gates stand open. Attention has
# no steps between.
# %% [markdown] lang="zh"
# ## 梯度能传多远
#
# 最后的状态必须能从第一个词学到东西。下面测量：传到第一个词的梯度除以传到倒数第二个词的梯度，使用 torch 宽度为 16 的
# 循环层和 zoo 的注意力，都未训练。tanh 网络每走一步就乘上一个固定的因子而衰减（梯度消失）；矩阵放大六倍，因子就大于
# 1（梯度爆炸）。 LSTM 的遗忘门开得越大，衰减越慢。注意力在两个词之间没有步数。
# %% tags=["slow"]
width = 16


class Recurrence(nn.Module):
    """The states of a recurrent layer at all tokens."""

    def __init__(self, layer: nn.RNNBase, factor: float = 1.0, gate: float = 0.0) -> None:
        """The matrix W_hh of the layer is multiplied by ``factor``, its forget gates are biased by ``gate``."""
        super().__init__()
        self.layer = layer
        with torch.no_grad():
            layer.get_parameter("weight_hh_l0").mul_(factor)
            if gate:
                layer.get_parameter("bias_hh_l0")[width : 2 * width] += gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.layer(x)[0]


def recurrent(layer: type[nn.RNN] | type[nn.LSTM], factor: float = 1.0, gate: float = 0.0) -> Recurrence:
    """A recurrent layer in float64."""
    return Recurrence(layer(width, width, batch_first=True).double(), factor, gate)


def gradient_ratio(network: nn.Module, length: int, **options: object) -> float:
    """The gradient of the last output at the first token, divided by that at the last one."""
    x = (0.3 * torch.randn(16, length, width, dtype=torch.float64)).requires_grad_()
    network(x, **options)[:, -1].square().sum().backward()
    assert x.grad is not None
    return float(x.grad[:, 0].norm() / x.grad[:, -2].norm())


lengths = [4, 8, 16, 32, 64]
torch.manual_seed(page["seed"])
networks: dict[tuple[str, str], tuple[nn.Module, dict[str, object]]] = {
    ("tanh RNN", "tanh RNN"): (recurrent(nn.RNN), {}),
    ("tanh RNN, matrix × 6", "tanh RNN，矩阵 × 6"): (recurrent(nn.RNN, 6.0), {}),
    ("LSTM", "LSTM"): (recurrent(nn.LSTM), {}),
    ("LSTM, forget gates open", "LSTM，遗忘门打开"): (recurrent(nn.LSTM, gate=5.0), {}),
    ("attention", "注意力"): (MultiHead(width, 4, Naive()).double(), {"pattern": Pattern(causal=True)}),
}
lines = [
    [name, *(gradient_ratio(network, length, **options) for length in lengths)]
    for name, (network, options) in networks.items()
]
page.table([("length", "长度"), *map(str, lengths)], lines, digits=3, measured=range(1, 6), name="gradients")

# %% [markdown] lang="en"
# ## Why scores are divided by √D
#
# Two vectors of ones of width 10 have the dot product 10, at width 100 it is 100. Divided by √D these are still √10
# and 10, so vectors of ones do not show what the root is for. The reason is the variance of random vectors: the next
# lesson has it.
# %% [markdown] lang="zh"
# ## 为什么分数要除以 √D
#
# 两个全 1 向量，宽度 10 时点积是 10，宽度 100 时是 100。除以 √D 之后仍是 √10 和 10，还在增长，所以全 1 向量说明不了问
# 题。真正的理由是随机向量点积的方差，见下一课。
# %%
for dim in (10, 100):
    ones = torch.ones(dim)
    page.show(f"1·1, 1·1/√D  (D = {dim})", [int(ones @ ones), float(ones @ ones / dim**0.5)], digits=2, rows="W2")

# %% [markdown] lang="en"
# ## Which sums are 1
#
# Scores E have a row for each query and a column for each key. softmax(E, dim=1) runs along a row: the shares that a
# query gives to all keys sum to 1. Columns sum to anything.
# %% [markdown] lang="zh"
# ## 哪个方向的和是 1
#
# 分数 E 的每一行对应一个查询，每一列对应一个键。softmax(E, dim=1) 沿着一行进行：一个查询分给所有键的份额之和为 1，列
# 的和可以是任意数。
# %%
scores = torch.arange(6.0).view(2, 3) ** 2 / 4
shares = scores.softmax(1)
page.show(
    ("softmax(E, dim=1) of two queries and three keys", "两个查询、三个键的 softmax(E, dim=1)"), shares, rows="W10"
)
page.show(("sums of rows", "行的和"), shares.sum(1), rows="W10")
page.show(("sums of columns", "列的和"), shares.sum(0), rows="W10")
page.claim(
    ("it normalises each column", "它对每一列做归一化"),
    bool(torch.allclose(shares.sum(0), torch.ones(3))),
    (
        "it normalises each row: one distribution over keys for each query",
        "它对每一行做归一化：每个查询得到一个键上的分布",
    ),
    rows="W10",
)

# %% [markdown] lang="en"
# ## Memory of the scores
#
# 64 heads of 100,000 tokens have one score for each pair of tokens. With 2 bytes each they take 1.28 TB, which is
# 1.164 TiB. The printed figure is the number of GiB divided by 1,000: two bases in one unit. Change it: `--set
# tokens=8192`.
# %% [markdown] lang="zh"
# ## 分数要多少内存
#
# 64 个头、10 万个词，每一对词有一个分数。每个 2 字节，共 1.28 TB，也就是 1.164 TiB。印出来的数是 GiB 数除以 1000：一
# 个单位里混了两种进制。换个长度：`--set tokens=8192`。
# %%
count = page["heads"] * page["tokens"] ** 2
size = 2 * count
page.show(("tokens, heads", "词数、头数"), [page["tokens"], page["heads"]], rows="W3")
page.show(("scores", "分数个数"), count, rows="W3")
page.compare(
    ("terabytes in 16 bits", "16 位，TB"),
    "1.192",
    size / 1e12,
    of="tokens heads",
    rows="W3",
    why=("GiB divided by 1,000 is neither TB nor TiB", "GiB 除以 1000 既不是 TB 也不是 TiB"),
)
page.show("TiB", size / 2**40, digits=3, rows="W3")
page.show("GiB", size / 2**30, digits=2, rows="W3")
page.show("GiB / 1000", size / 2**30 / 1000, digits=3, rows="W3")
page.show(("terabytes in 32 bits", "32 位，TB"), 2 * size / 1e12, digits=2, rows="W3")


# %% [markdown] lang="en"
# The largest tensor while attention with 4 heads runs: with the textbook's algorithm it grows with the square of the
# length, with tiles (flash attention, zoo's `Tiled`) with the length. The exponent is that of the last doubling.
# %% [markdown] lang="zh"
# 4 个头的注意力运行时最大的张量：教科书算法随长度的平方增长，分块算法（flash attention，zoo 的 `Tiled`）随长度增长。
# 指数由最后一次翻倍得到。
# %%
class Largest(TorchDispatchMode):
    """Finds the number of elements of the largest tensor that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel())
        return result


def largest_tensor(network: nn.Module, length: int, dim: int, **options: object) -> int:
    """The number of elements of the largest tensor that a network computes for one text."""
    x = torch.zeros(1, length, dim)
    with Largest() as largest, torch.no_grad():
        network(x, **options)
    return largest.size


memory_lines = []
for backend, sizes in ((Naive(), (128, 256, 512)), (Tiled(), (2048, 4096))):
    elements = [largest_tensor(MultiHead(16, 4, backend), length, 16, pattern=Pattern()) for length in sizes]
    memory_lines.append([str(backend), ", ".join(map(str, sizes)), elements, math.log2(elements[-1] / elements[-2])])
page.table(
    [("backend", "后端"), ("lengths", "长度"), ("elements", "元素个数"), ("exponent", "指数")], memory_lines, rows="W11"
)


# %% [markdown] lang="en"
# ## Three kinds of layers
#
# Width 64, lengths 256 and 512. Operations grow with the exponent given (attention: the products of scores and values
# alone have exponent 2; its projections have 1). The path is the number of layers or steps between the first and the
# last word: n − 1 steps of a recurrence, many layers of a convolution of width 3, one layer of attention. "In a row"
# counts, at length 512, the operations that must follow each other because each reads the result of the one before:
# a recurrence cannot compute its steps at the same time. Times are of this machine.
# %% [markdown] lang="zh"
# ## 三种层
#
# 宽度 64，长度 256 与 512。运算次数按所示指数增长（注意力：只有分数与求和这两个乘积的指数是 2，投影是 1）。 “路径”是
# 第一个词到最后一个词之间的步数或层数：循环是 n − 1 步，宽度 3 的卷积要叠很多层，注意力只要一层。“依次执行”是长度 512
# 时必须一个接一个执行的运算个数（每个都要读前一个的结果）：循环网络的各步不能同时计算。时间是在本机测的。
# %% tags=["slow"]
class Convolution(nn.Module):
    """A convolution of width 3 over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, 64) to (B, T, 64)."""
        return self.layer(x.mT).mT


def operations(network: nn.Module, length: int, **options: object) -> int:
    """The FLOPs of a forward pass over one text."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), torch.device("meta"):
        network.to("meta")(torch.empty(1, length, 64), **options)
    return int(counter.get_total_flops())


def longest_chain(network: nn.Module, length: int, **options: object) -> int:
    """The operations that must follow each other: the longest chain in which each reads the result of the last."""
    x, chains = torch.empty(1, length, 64, device="meta"), list[int]()
    network.to("meta")
    for operation in trace(network, x, call=lambda: network(x, **options)).operations:
        chains.append(1 + max((chains[number] for number in operation.inputs if number >= 0), default=0))
    return max(chains)


def seconds(network: nn.Module, length: int, **options: object) -> float:
    """The seconds of a forward pass over one text."""
    x = torch.randn(1, length, 64)
    with torch.no_grad():
        network(x, **options)
        start = time.perf_counter()
        for _ in range(5):
            network(x, **options)
    return (time.perf_counter() - start) / 5


layers = {
    ("recurrence (GRU)", "循环 (GRU)"): (lambda: Recurrence(nn.GRU(64, 64, batch_first=True)), {}, 511),
    ("convolution, width 3", "卷积，宽度 3"): (Convolution, {}, math.ceil(511 / 2)),
    ("attention, 4 heads", "注意力，4 个头"): (lambda: MultiHead(64, 4, Naive()), {"pattern": Pattern()}, 1),
}
layer_lines = []
for label, (build, options, path) in layers.items():
    short, long = (operations(build(), length, **options) for length in (256, 512))
    if path == 1:
        short, long = (total - 8 * length * 64**2 for total, length in ((short, 256), (long, 512)))
    elements = [largest_tensor(build(), length, 64, **options) for length in (256, 512)]
    layer_lines.append(
        [
            label,
            long,
            math.log2(long / short),
            math.log2(elements[1] / elements[0]),
            path,
            longest_chain(build(), 512, **options),
            1000 * seconds(build(), 512, **options),
        ]
    )
page.table(
    [
        ("layer", "层"),
        ("operations", "运算次数"),
        ("exponent", "指数"),
        ("of memory", "内存指数"),
        ("path", "路径"),
        ("in a row", "依次执行"),
        ("ms", "毫秒"),
    ],
    layer_lines,
    digits=1,
    timed=[6],
    name="layers",
)

# %% [markdown] lang="en"
# ## Parts that came later
#
# A picture of 224 × 224 has 14 × 14 patches of 16 × 16 × 3 numbers. SwiGLU has three matrices of width 8D/3 in place
# of two of 4D: as many parameters where D is divisible by 3, nearly as many elsewhere; LLaMA rounds the width up to a
# multiple of 256. A mixture of experts multiplies parameters by the number of experts E and computing by the number
# that work, A. That is true of the feed-forward network alone: attention is as it was, so a whole block grows less.
# %% [markdown] lang="zh"
# ## 后来的部件
#
# 224 × 224 的图片有 14 × 14 个块，每块 16 × 16 × 3 个数。SwiGLU 用三个宽 8D/3 的矩阵代替两个宽 4D 的矩阵：D 能被 3 整
# 除时参数一样多，否则差一点；LLaMA 把宽度向上取到 256 的倍数。专家混合把参数乘以专家数 E，把计算乘以工作的专家数 A。
# 这只对前馈网络成立：注意力没有变，所以整个块增长得少一些。
# %%
patches = F.unfold(torch.zeros(1, 3, 224, 224), 16, stride=16)
page.show(
    ("patches of 224² by 16, numbers of a patch", "224² 按 16 切：块数，每块的数"),
    [224, 16, patches.size(2), patches.size(1)],
    rows="W7",
)


def parameters(module: nn.Module) -> int:
    """The number of parameters of a module."""
    return sum(one.numel() for one in module.parameters())


with torch.device("meta"):
    swiglu = {dim: (parameters(SwiGLU(dim, 4 * dim)), parameters(MLP(dim, 4 * dim, bias=False))) for dim in (512, 768)}
for dim, (gated, classic) in swiglu.items():
    page.show(
        (f"SwiGLU against MLP at D = {dim}, percent", f"D = {dim} 时 SwiGLU 比 MLP 多出的百分比"),
        100 * (gated / classic - 1),
        digits=3,
        rows="W8",
    )
page.show(
    ("LLaMA's width: 8D/3, rounded up, percent", "LLaMA 的宽度：8D/3，取整后，百分比"),
    [8 * 4096 / 3, 11008.0, 100 * (11008 / (8 * 4096 / 3) - 1)],
    digits=2,
    rows="W8",
)
page.show("8D/3", round(8 * 4096 / 3, 1), digits=1, rows="W8")


def cost(module: nn.Module, dim: int, length: int = 64) -> tuple[int, int]:
    """Parameters, and FLOPs of a forward pass over one text."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        module.to("meta").eval()(torch.empty(1, length, dim))
    return parameters(module), int(counter.get_total_flops())


one, eight = cost(SwiGLU(64, 256), 64), cost(MoE(64, 256, 8, 2), 64)
page.show(
    ("8 experts, 2 work: parameters of the feed-forward ×", "8 个专家、2 个工作：前馈网络的参数 ×"),
    eight[0] / one[0],
    digits=1,
    rows="W9",
)
page.show(("its computing ×", "前馈网络的计算 ×"), eight[1] / one[1], digits=3, rows="W9")
page.show(
    ("parameters and computing of a block, by its matrices ×", "按矩阵计算，整个块的参数与计算 ×"),
    [(4 + 8 * 8) / (4 + 8), (4 + 2 * 8) / (4 + 8)],
    digits=2,
    rows="W9",
)
with torch.device("meta"):
    stacks = [Stack(Extent((64,)), dim=512, depth=1, heads=8, ffn=ffn, norm=RMSNorm) for ffn in (SwiGLU, MoE)]
one, eight = (cost(stack, 512) for stack in stacks)
page.show(
    ("of zoo's block of width 512 with 64 tokens ×", "zoo 宽 512 的块、64 个词 ×"),
    [eight[0] / one[0], eight[1] / one[1]],
    digits=2,
    rows="W9",
)

# %% [markdown] lang="en"
# ## The same architecture, larger
#
# zoo builds the published sizes without memory, as shapes alone. The original large model has six blocks on each
# side, and those of the decoder also look at the source; twelve equal blocks would be 25 million parameters fewer.
# %% [markdown] lang="zh"
# ## 同一种结构，越来越大
#
# zoo 只按形状搭出这些发表过的尺寸，不占内存。最初的大模型两侧各六个块，解码器的块还要看源句；十二个相同的块会少 2500
# 万个参数。
# %%
BIG = {
    "dim": 1024,
    "heads": 16,
    "hidden": 4096,
    "position": Sinusoidal,
    "norm": LayerNorm,
    "ffn": MLP,
    "attention": partial(MultiHead, bias=False),
    "block": PostNorm,
}
with torch.device("meta"):
    pairs = {size: parameters(Seq2Seq(size, size, 512, tie="all", depth=6, **BIG)) for size in (37_000, 32_000)}  # type: ignore[arg-type]
    twelve = parameters(LanguageModel(37_000, 512, depth=12, **BIG))  # type: ignore[arg-type]
page.show(("printed: blocks, D, H, N", "讲义：块数、D、H、N"), [12, 1024, 16, 512], rows="W4")
for size, total in pairs.items():
    page.show(
        (f"6 + 6 blocks, vocabulary {size:,}, millions", f"6 + 6 个块，词表 {size:,}，百万"),
        total / 1e6,
        digits=2,
        rows="W4",
    )
page.compare(
    ("12 equal blocks with the embedding (37,000), millions", "12 个相同的块加嵌入 (37,000)，百万"),
    "213",
    (12 * 12 * 1024**2 + 37_000 * 1024) / 1e6,
    digits=1,
    rows="W4",
    why=(
        "213 M are 6 encoder and 6 decoder blocks with cross-attention, and N is not stated in the paper",
        "2.13 亿是 6 个编码器块加 6 个带交叉注意力的解码器块；论文里没有写 N",
    ),
)
page.show(("12 blocks as zoo builds them, millions", "zoo 搭出的 12 个块，百万"), twelve / 1e6, digits=1)
GPT: dict[str, Any] = {"norm": LayerNorm, "ffn": MLP, "position": Learned}
with torch.device("meta"):
    gpt2 = parameters(LanguageModel(50_257, 1024, dim=1600, depth=48, heads=25, **GPT))
    gpt3 = parameters(LanguageModel(50_257, 2048, dim=12288, depth=96, heads=96, **GPT))
for name, shape, printed, total, row in (
    ("GPT-2", [48, 1600, 25, 1024], "1.5", gpt2, "W5"), ("GPT-3", [96, 12288, 96, 2048], "175", gpt3, "W6"),
):  # fmt: skip
    page.show((f"{name}: blocks, D, H, N", f"{name}: 块数、D、H、N"), shape, rows=row)
    page.compare(
        (f"{name}, billions", f"{name}，十亿"), printed, total / 1e9, tolerance=0.5 if row == "W6" else 0.06, rows=row
    )
    page.show(
        (f"{name}, parameters, width of a head", f"{name} 的参数个数、头宽"), [total, shape[1] // shape[2]], rows=row
    )

# %% [markdown] lang="en"
# ## Exercises
# %% [markdown] lang="zh"
# ## 练习
# %%
page.exercise(
    (
        "How many GiB do the scores of 32 heads and 8,192 tokens take, with 2 bytes each?",
        "32 个头、8192 个词的分数，每个 2 字节，一共多少 GiB？",
    ),
    32 * 8192**2 * 2 / 2**30,
    ("Heads times tokens squared times bytes; a GiB is 2³⁰ bytes.", "头数 × 词数的平方 × 字节数；1 GiB 是 2³⁰ 字节。"),
    tolerance=0.005,
)
page.exercise(
    (
        "A block has 4D² parameters in attention and 8D² in its feed-forward network. "
        "With 4 experts in place of one network, "
        "how many times as many parameters has the block? (two digits)",
        "一个块的注意力有 4D² 个参数，前馈网络有 8D² 个。换成 4 个专家之后，整个块的参数是原来的多少倍？（两位小数）",
    ),
    (4 + 4 * 8) / 12,
    ("Attention is as it was: only the 8D² are multiplied.", "注意力不变，只有 8D² 被乘。"),
    tolerance=0.006,
)
page.exercise(
    (
        "How many layers of a convolution of width 5 does it take until the last of 101 words can see the first?",
        "宽度 5 的卷积要叠几层，101 个词中的最后一个才能看到第一个？",
    ),
    math.ceil(100 / 2),
    ("A layer reaches (width − 1) / 2 words to each side.", "一层向每一侧延伸（宽度 − 1）/ 2 个词。"),
)

# %%
"""The cat: one token from its row of the embedding to its new vector, number by number."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from zoo_learn.page import open_page

from zoo.models.stack import Stack
from zoo.parts.attention import MultiHead
from zoo.parts.backend import Naive
from zoo.parts.block import PreNorm
from zoo.parts.ffn import MLP
from zoo.parts.norm import LayerNorm
from zoo.parts.pattern import Pattern
from zoo.parts.position import Extent, NoPosition, Sinusoidal
from zoo.system.torch_internals import TorchDispatchMode

LESSON = {
    "order": 3,
    "title": {"en": "One token, number by number", "zh": "一个词的旅程"},
    "summary": {
        "en": "a cat from its row of the embedding through normalisation, queries, keys, values and residuals",
        "zh": "“猫”从嵌入矩阵的一行出发，经过归一化、Q、K、V 与残差，变成新的向量",
    },
    "exercises": 3,
    "inputs": {
        "sentence": {
            "default": [0, 3, 2],
            "least": 0,
            "most": 3,
            "en": "rows of the embedding: 0 cat, 1 dog, 2 fish, 3 eats",
            "zh": "嵌入矩阵的行号: 0 猫, 1 狗, 2 鱼, 3 吃",
        },
        "cat": {
            "default": [0.5, 1.2, -0.3, 0.8],
            "least": -1000.0,
            "most": 1000.0,
            "en": "the four numbers of the cat that are normalised",
            "zh": "要归一化的“猫”的四个数",
        },
        "score": {
            "default": 3.58,
            "least": -50.0,
            "most": 50.0,
            "en": "score of 苹 (ap-) for the query of 果 (-ple); all others score 0",
            "zh": "“果”的查询给“苹”打的分，其余为 0",
        },
    },
}
page = open_page(LESSON)
near: dict[str, Any] = {"digits": 5}

# %% [markdown] lang="en"
# # One token, number by number
#
# ## Who looks at whom
#
# The sentence 我爱吃苹果 ("I love eating apples") has five characters. Each one offers a key, asks with a query and
# carries a value. The last character, 果, asks; 苹 answers with the highest score, because both together are the word
# "apple". The softmax turns scores into shares, and the new vector of 果 is the mean of all values by these shares.
# %% [markdown] lang="zh"
# # 一个词的旅程
#
# ## 谁看谁
#
# “我爱吃苹果”有五个字。每个字用键（K）介绍自己，用查询（Q）提问，用值（V）携带内容。最后的“果”来提问，“苹”的键最匹
# 配，因为两个字合起来才是一个词。softmax 把分数变成份额，“果”的新向量就是按份额对所有值求的平均。
# %%
characters = ["我", "爱", "吃", "苹", "果"]
keys = torch.eye(5)
query = torch.tensor([0.0, 0.0, 0.0, page["score"], 0.0])
shares = Naive().weights(query.expand(1, 1, 1, 5), keys[None, None], Pattern(), scale=1.0)[0, 0, 0]
page.bars(
    ("shares of the values in the new 果", "新的“果”里各个值的份额"),
    dict(zip(characters, shares.tolist(), strict=True)),
)
values = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
page.show(("values: (is a character, is a fruit)", "值（两个特征）"), values)
page.show(("new vector of 果", "“果”的新向量"), shares @ values)

# %% [markdown] lang="en"
# ## From a word to a row
#
# An embedding is a table with a row for each word. "cat eats fish" selects rows 0, 3 and 2. A product of one-hot
# vectors with the table gives the same rows, only slower.
# %% [markdown] lang="zh"
# ## 从词到一行数字
#
# 嵌入就是一张表，每个词占一行。“猫 吃 鱼”取出第 0、3、2 行。用独热向量去乘这张表会得到同样的结果，只是更慢。
# %%
table = torch.arange(1, 17).view(4, 4) / 10
ids = torch.tensor(page["sentence"])
embedded = F.embedding(ids, table)
page.show(("rows", "行号"), ids, rows="W15")
page.show(("embedded sentence", "嵌入后的句子"), embedded, rows="W15")
page.show(("shape", "形状"), list(embedded.shape), rows="W15")
page.show(
    ("one-hot × table gives the same", "独热 × 表 结果相同"),
    bool(torch.equal(F.one_hot(ids, 4).float() @ table, embedded)),
)

# %% [markdown] lang="en"
# ## Where a word stands
#
# Attention alone does not know the order, so a vector for the place is added. Sinusoids are a fixed table and nothing
# in it is learned; zoo's `Learned` is the variant that is. Below: places 1 and 2 at width 4, then the first word with
# its place.
# %% [markdown] lang="zh"
# ## 词在哪里
#
# 单靠注意力不知道顺序，所以要加上一个表示位置的向量。正弦编码是固定的表，没有任何可学习的参数；可学习的版本是 zoo 的
# `Learned`。下面是宽度为 4 时位置 1、2 的编码，然后是第一个词加上它的位置。
# %%
sinusoids = Sinusoidal(4, 1, Extent((3,))).embed(torch.zeros(1, 3, 4), torch.arange(3))[0]
page.compare("PE(1)", "0.84 0.54 0.01 1.0", sinusoids[1], digits=5, rows="W16")
page.compare("PE(2)", "0.91 -0.42 0.02 1.0", sinusoids[2], digits=5, rows="W16")
page.show("PE(1), PE(2)", sinusoids[1:], digits=4, rows="W16")
placed = embedded + sinusoids
page.compare(("cat at place 0", "位置 0 的猫"), "0.1 1.2 0.3 1.4", placed[0], of="sentence", rows="W17")

# %% [markdown] lang="en"
# ## Normalisation
#
# LayerNorm subtracts the mean of a token and divides by its standard deviation. The notes go on with another vector
# of the cat than the one they have just computed; change it with `--set cat=…`. torch and zoo take the root of
# variance + ε.
# %% [markdown] lang="zh"
# ## 归一化
#
# LayerNorm 减去该词各分量的均值，再除以标准差。讲义从这里起换了另一个“猫”向量，与上一步算出的不同；可用 `--set cat=…`
# 改变它。 torch 与 zoo 的做法是对“方差 + ε”开方。
# %%
cat = torch.tensor(page["cat"])
normal = LayerNorm(4, eps=1e-12)(cat).detach()
page.show(("the cat", "猫"), cat, rows="W18")
page.compare(("mean", "均值"), "0.55", cat.mean(), of="cat", rows="W18")
page.compare(("standard deviation", "标准差"), "0.55", cat.std(correction=0), of="cat", rows="W18")
page.compare(("normalised", "归一化后"), "-0.0909 1.1818 -1.5455 0.4545", normal, of="cat", rows="W18")
page.show(("with five digits", "五位小数"), normal, digits=5, rows="W18")

# %% [markdown] lang="en"
# ## Query, key and value
#
# Three matrices of four rows and two columns read the normalised cat. zoo's `MultiHead` holds them in one fused
# matrix; here it has two heads with the same three matrices. Printed numbers come from rounded inputs, so that the
# fifth digit differs. The value in print belongs to no step of this computation.
# %% [markdown] lang="zh"
# ## 查询、键与值
#
# 三个 4×2 的矩阵读取归一化后的猫。zoo 的 `MultiHead` 把它们存成一个合并的矩阵；这里用两个完全相同的头。印出来的数来自
# 舍入过的输入，所以第五位不同。而印出来的 V 在这个计算里根本不会出现。
# %%
w_q = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
w_k = w_q.flip(1)
w_v = w_q + 0.2
attention = MultiHead(4, 2, Naive(), bias=False)
attention.qkv.weight.data = torch.cat([w.T for w in (w_q, w_q, w_k, w_k, w_v, w_v)])
attention.out.weight.data = torch.eye(4)
q, k, v = (part[0, 0, 0].detach() for part in attention.project(normal[None, None], None, Pattern(), None, None))
rounded = torch.tensor([round(number, 4) for number in normal.tolist()])
page.compare("Q", "-0.10915 -0.10916", q, tolerance=1e-4, of="cat", rows="W19", **near)
page.show(("Q from the rounded cat", "由舍入的猫算出的 Q"), rounded @ w_q, rows="W19", **near)
page.compare("K", "-0.10915 -0.10916", k, tolerance=1e-4, of="cat", rows="W20", **near)
page.show(
    ("K from the rounded cat: the two change places", "由舍入的猫算出的 K: 两个数对调"),
    rounded @ w_k,
    rows="W20",
    **near,
)
page.compare(
    "V",
    "0.0546 0.0728",
    v,
    of="cat",
    rows="W21",
    why=(
        "the cat times W_V; the printed pair does not follow from any vector with sum 0",
        "V 应为猫乘以 W_V；任何分量和为 0 的向量都得不到印出来的两个数",
    ),
)
page.show(("V from the rounded cat", "由舍入的猫算出的 V"), rounded @ w_v, rows="W21")

# %% [markdown] lang="en"
# ## Keys that cannot be
#
# The columns of W_K differ by −0.1 in every row, those of W_V by 0.1. The difference of a token's two key numbers is
# therefore 0.1 times the sum of the token, and a normalised token sums to 0. All keys and values of normalised tokens
# have two equal numbers. The printed ones do not, and the sums that they imply even contradict each other.
# %% [markdown] lang="zh"
# ## 不可能的键
#
# W_K 的两列每行都相差 −0.1，W_V 的两列相差 0.1。所以一个词的两个键分量之差等于 0.1 乘以该词各分量之和，而归一化后的和
# 是 0：归一化后的词，键和值的两个分量必然相等。印出来的不相等，而且由键和值倒推出的“和”还互相矛盾。
# %%
printed_keys = torch.tensor([[-0.10915, -0.10916], [0.6273, 0.4818], [-0.8182, -0.6545]])
printed_values = torch.tensor([[0.0546, 0.0728], [1.0455, 1.2727], [-0.8182, -0.9091]])
page.show(("printed K of eats, fish", "印出的 K_吃、K_鱼"), printed_keys[1:], rows="W22")
page.show(("printed V of eats, fish", "印出的 V_吃、V_鱼"), printed_values[1:], rows="W22")
page.show(
    ("difference of W_K's columns, of W_V's", "W_K、W_V 两列之差"),
    [float(w[0, 1] - w[0, 0]) for w in (w_k, w_v)],
    rows="W22",
)
sums_of_keys = (printed_keys[1:, 0] - printed_keys[1:, 1]) / 0.1
sums_of_values = (printed_values[1:, 1] - printed_values[1:, 0]) / 0.1
page.show(("sum of the token that the keys imply", "由键倒推的分量和"), sums_of_keys, digits=3, rows="W22")
page.show(("and the values", "由值倒推的分量和"), sums_of_values, digits=3, rows="W22")
page.claim(
    ("these are keys and values of normalised tokens", "这些是归一化后的词的键和值"),
    bool(sums_of_keys.abs().max() < 1e-3 and sums_of_values.abs().max() < 1e-3),
    (
        "impossible: a normalised token has sum 0, and keys and values disagree about the sum",
        "不可能：归一化后各分量之和为 0，而键与值给出的和也不一致",
    ),
    rows="W22",
)

# %% [markdown] lang="en"
# ## Scores, shares, the new vector
#
# Taking the printed keys and values as given, zoo's `Naive` backend gives the printed shares. The new vector is right
# up to rounding on the way, but it inherits the wrong value of the cat; the last line has the true one.
# %% [markdown] lang="zh"
# ## 分数、份额、新向量
#
# 姑且采用印出的键和值，zoo 的 `Naive` 后端算出的份额与讲义一致。新向量只有中途舍入的差别，但沿用了错误的 V；最后一行
# 用的是正确的 V。
# %%
printed_query = torch.tensor([-0.10915, -0.10916])
heads = (printed_query[None, None, None], printed_keys[None, None], printed_values[None, None])
shares = Naive().weights(*heads[:2], Pattern())[0, 0, 0]
page.show(("scores", "点积"), printed_keys @ printed_query)
page.show(("scores by the root of 2", "除以 √2"), printed_keys @ printed_query / 2**0.5)
page.compare(("shares of cat, eats, fish", "猫、吃、鱼的份额"), "0.333 0.300 0.367", shares, rows="W23")
new = shares @ printed_values
page.compare(("new cat", "新的猫"), "0.0316 0.0723", new, tolerance=1e-3, digits=5, rows="W24")
true_values = torch.cat([(rounded @ w_v)[None], printed_values[1:]])
page.show(("new cat with its true value", "用正确的 V 得到的新猫"), shares @ true_values, rows="W24")

# %% [markdown] lang="en"
# ## Heads
#
# The printed sum has four numbers, the new vector two. It comes out if two equal heads stand side by side and the
# output matrix changes nothing, which is not stated. A head does not read a slice of the token either: each projects
# all of it.
# %% [markdown] lang="zh"
# ## 多头
#
# 印出的残差有四个数，而新向量只有两个。只有当两个完全相同的头并排、输出矩阵又是单位矩阵时才得到这个结果，讲义没有说
# 明。另外，每个头读的不是词向量的一段：它投影的是整个向量。
# %%
head = torch.tensor([0.0316, 0.0723])
page.compare(
    ("cat + two equal heads", "猫 + 两个相同的头"),
    "0.5316 1.2723 -0.2684 0.8723",
    torch.tensor(LESSON["inputs"]["cat"]["default"]) + head.repeat(2),  # type: ignore[index]
    rows="W25",
)
page.show(
    ("shape of a head's matrix: width of the token, width of a head", "一个头的矩阵形状：词宽、头宽"),
    list(w_q.shape),
    rows="W26",
)
moved = [
    attention.project((normal + 0.5 * unit)[None, None], None, Pattern(), None, None)[0][0, 0, 0]
    for unit in torch.eye(4)
]
changes = torch.stack([(one.detach() - q).abs().sum() for one in moved])
page.show(
    ("change of the first head's query, by place of the token", "改动词的每一位，第一个头的查询的变化"),
    changes,
    rows="W26",
)
page.claim(
    ("the token is cut, and each head reads its slice", "先把词向量切开，每个头读自己的一段"),
    bool((changes[2:] == 0).all()),
    (
        "each head projects the whole token to its width; cut is the result",
        "每个头把整个词投影到自己的宽度；切分的是投影的结果",
    ),
    rows="W26",
)

# %% [markdown] lang="en"
# ## The feed-forward network and its residual
#
# ReLU replaces negative numbers by 0. Then comes the residual: with the norm in front (pre-norm), the stream is added
# as it was before the norm, x + f(norm(x)). zoo's `PreNorm` with a silent feed-forward returns x itself.
# %% [markdown] lang="zh"
# ## 前馈网络与残差
#
# ReLU 把负数变成 0。然后是残差：归一化在前（pre-norm）时，加回去的是归一化之前的流，x + f(norm(x))。让前馈网络不输出
# 任何东西，zoo 的 `PreNorm` 返回的就是 x 本身。
# %%
inner = torch.tensor([0.2, -0.5, 1.3, 0.8, -0.1, 0.4, 0.9, 0.2])
page.show(("before ReLU", "ReLU 之前"), inner, rows="W27")
page.compare("ReLU", "0.2 0 1.3 0.8 0 0.4 0.9 0.2", inner.relu(), rows="W27")
stream = torch.tensor([0.5316, 1.2723, -0.2684, 0.8723])
output = torch.tensor([0.4, 0.9, -0.2, 0.7])
net = Stack(Extent((1,)), dim=4, depth=1, heads=2, block=PreNorm, norm=LayerNorm, ffn=MLP, position=NoPosition).eval()
for matrix in (net.blocks[0].attend.part.out, net.blocks[0].ffn.part.down):  # type: ignore[attr-defined]
    torch.nn.init.zeros_(matrix.weight)
    torch.nn.init.zeros_(matrix.bias)
results: list[torch.Tensor] = []
net.blocks[0].register_forward_hook(lambda module, arguments, result: results.append(result.detach()))
net(stream[None, None])
page.claim(
    ("the normalised token is added to the output of the network", "把归一化后的词加到前馈网络的输出上"),
    bool(torch.allclose(results[0][0, 0], LayerNorm(4)(stream), atol=1e-3)),
    ("the stream before the norm is added", "加的是归一化之前的流"),
    rows="W28",
)
page.show(("output of the network", "前馈网络的输出"), output, rows="W28")
page.show(("with the stream, right", "加上流（正确）"), stream + output, rows="W28")
page.show(
    ("with the normalised token, as printed", "加上归一化后的词（讲义）"),
    LayerNorm(4)(stream).detach() + output,
    rows="W28",
)

# %% [markdown] lang="en"
# ## The whole walk, consistently
#
# The same sentence, from its rows to the stream behind attention, with the two equal heads of above and without any
# number taken from print. Change it with `--set sentence=1,3,2`.
# %% [markdown] lang="zh"
# ## 前后一致地走一遍
#
# 同一个句子，从表里取行，一直到注意力之后的流，使用上面两个相同的头，不借用任何印出来的数。用 `--set sentence=1,3,2`
# 改变句子。
# %%
with torch.no_grad():
    tokens = LayerNorm(4)(placed)
    weights = attention.weights(tokens[None], pattern=Pattern())[0, 0]
    mixed = attention(tokens[None], pattern=Pattern())[0]
names = [(("cat", "猫"), ("dog", "狗"), ("fish", "鱼"), ("eats", "吃"))[row] for row in ids.tolist()]
page.show(("normalised tokens", "归一化后的词"), tokens)
page.heat(("who looks at whom: rows ask, columns answer", "谁看谁：行提问，列回答"), weights, names, names)
page.show(("shares", "份额"), weights)
page.show(("new vector of the first word", "第一个词的新向量"), mixed[0])
page.show(("stream of the first word", "第一个词的流"), placed[0] + mixed[0])


# %% [markdown] lang="en"
# ## What a compiler sees
#
# Self-attention is four matrix products: one for queries, keys and values together, one for scores, one for the sum
# of values, one for the output. A block has two more for its feed-forward network. Counted here while zoo's block
# runs, with operations per byte that move in 32 bits: above the ratio of a machine (10 to 300) a product is bound by
# computing, below it by moving them.
# %% [markdown] lang="zh"
# ## 编译器看到的
#
# 自注意力一共四次矩阵乘：Q、K、V 合并一次，分数一次，对值求和一次，输出一次。一个块再加前馈网络的两次。下面在 zoo 的
# 块运行时数出来，并给出每搬动一个字节（32 位）的运算次数：高于机器的比值（10 到 300）就受计算限制，否则受访存限制。
# %%
class Products(TorchDispatchMode):
    """Collects the shapes of every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[list[int], list[int]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            first, second = args[-2:]
            self.shapes.append((list(first.shape), list(second.shape)))
        return func(*args, **(kwargs or {}))


def products_of(module: torch.nn.Module, x: torch.Tensor, **options: object) -> list[tuple[list[int], list[int]]]:
    """The shapes of both factors of each matrix product that ``module(x)`` computes."""
    with Products() as counter, torch.no_grad():
        module(x, **options)
    return counter.shapes


width, length = 512, 64
block = Stack(
    Extent((length,)),
    dim=width,
    depth=1,
    heads=8,
    block=PreNorm,
    norm=LayerNorm,
    ffn=MLP,
    hidden=4 * width,
    position=NoPosition,
    backend=Naive,
).eval()
x = torch.zeros(1, length, width)
shapes = products_of(block, x)
names_of_products = ["Q K V", "Q Kᵀ", "A V", "W_O", "W_1", "W_2"]
lines = []
for name, (first, second) in zip(names_of_products, shapes, strict=True):
    rows_, inner_, columns = first[-2], first[-1], second[-1]
    count = first[0] if len(first) == 3 else 1
    flops = 2 * count * rows_ * inner_ * columns
    moved_bytes = 4 * count * (rows_ * inner_ + inner_ * columns + rows_ * columns)
    lines.append([name, "×".join(map(str, first)), "×".join(map(str, second)), flops, round(flops / moved_bytes, 1)])
page.table(
    [("product", "矩阵乘"), ("left", "左"), ("right", "右"), ("operations", "运算次数"), ("per byte", "每字节")],
    lines,
    digits=1,
)
page.show(
    ("products of self-attention", "自注意力的矩阵乘次数"),
    len(products_of(MultiHead(width, 8, Naive()).eval(), x, pattern=Pattern())),
)
page.show(("products of a block", "一个块的矩阵乘次数"), len(shapes))
with FlopCounterMode(display=False) as flop_counter, torch.no_grad():
    block(x)
page.show(("operations by torch's counter", "torch 计数器的运算次数"), int(flop_counter.get_total_flops()))

# %% [markdown] lang="en"
# ## Exercises
# %% [markdown] lang="zh"
# ## 练习
# %%
page.exercise(
    (
        "Which score of 苹 gives it a share of 90 %, if the four other characters score 0? (two digits)",
        "如果其余四个字的分数都是 0，“苹”的分数是多少时份额为 90%？（两位小数）",
    ),
    float(torch.log(torch.tensor(36.0))),
    (
        "Write the share as eˢ / (eˢ + 4) and solve for s; the natural logarithm helps.",
        "把份额写成 eˢ / (eˢ + 4)，解出 s；要用自然对数。",
    ),
    tolerance=0.006,
)
page.exercise(
    (
        "What is LayerNorm of [1, 3, 5, 7]? Four numbers with commas, two digits.",
        "[1, 3, 5, 7] 做 LayerNorm 的结果是什么？四个数，用逗号分隔，两位小数。",
    ),
    LayerNorm(4)(torch.tensor([1.0, 3.0, 5.0, 7.0])).detach(),
    (
        "Subtract the mean first. Then divide by the root of the mean of the squares of these differences.",
        "先减去均值，再除以“剩下的数的平方的均值”的平方根。",
    ),
    tolerance=0.006,
)
page.exercise(
    (
        "Keys of a normalised token have two equal numbers under W_K = [[.2, .1], "
        "[.4, .3], [.6, .5], [.8, .7]]. By how much "
        "do they differ (first minus second) for a token that is not normalised, [1, "
        "2, 3, 4]?",
        "在 W_K = [[.2, .1], [.4, .3], [.6, .5], [.8, .7]] 下，归一化的词的两个键分量"
        "相等。没有归一化的词 [1, 2, 3, 4]，"
        "两个键分量（第一减第二）相差多少？",
    ),
    float((torch.tensor([1.0, 2.0, 3.0, 4.0]) @ w_k) @ torch.tensor([1.0, -1.0])),
    (
        "The two columns differ by the same number in every row. What is multiplied with it?",
        "两列每一行的差都相同。这个差与什么相乘？",
    ),
    tolerance=0.006,
)

"""The papers' formulas in plain loops, one number at a time. Nothing here calls zoo code."""

import math

import torch


def coordinates(pos, sizes):
    """(position,) for text, (row, column) on a grid; special tokens stand before 0 and count as the origin."""
    if len(sizes) == 1:
        return (max(pos, 0),)
    return divmod(max(pos, 0), sizes[1])


def sinusoid(pos, sizes, dim, base=10000.0):
    """Vaswani et al. (2017), 3.5, with a share of the features for each axis."""
    row, width = [], dim // len(sizes)
    for place in coordinates(pos, sizes):
        for i in range(width // 2):
            angle = place / base ** (2 * i / width)
            row += [math.sin(angle), math.cos(angle)]
    return row


def turned(x, pos, sizes, base=10000.0):
    """Su et al. (2021): feature i and feature i + D/2 are one plane; each axis of a grid turns its share of planes."""
    planes, out = len(x) // 2, list(x)
    share = planes // len(sizes)
    for i in range(planes):
        angle = coordinates(pos, sizes)[i // share] * base ** (-(i % share) / share)
        out[i] = x[i] * math.cos(angle) - x[i + planes] * math.sin(angle)
        out[i + planes] = x[i] * math.sin(angle) + x[i + planes] * math.cos(angle)
    return out


def alibi_slopes(heads):
    """Press et al. (2022), the function published with the paper."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(closest) + alibi_slopes(2 * closest)[0::2][: heads - closest]


def alibi(head, query, key, sizes, heads):
    if query < 0 or key < 0:
        return 0.0
    distance = sum(abs(a - b) for a, b in zip(coordinates(query, sizes), coordinates(key, sizes), strict=True))
    return -alibi_slopes(heads)[head] * distance


def t5_bucket(gap, sided, buckets, reach):
    """Raffel et al. (2020), in whole numbers: bucket n begins where (distance/exact)^span >= (reach/exact)^n."""
    if sided:
        start, distance = 0, max(-gap, 0)
    else:
        buckets //= 2
        start, distance = (buckets if gap > 0 else 0), abs(gap)
    exact = buckets // 2
    if distance < exact:
        return start + distance
    span, n = buckets - exact, 0
    while n < span - 1 and distance**span * exact ** (n + 1) >= exact**span * reach ** (n + 1):
        n += 1
    return start + exact + n


def layer_norm(row, weight, bias, eps):
    mean = sum(row) / len(row)
    root = math.sqrt(sum((x - mean) ** 2 for x in row) / len(row) + eps)
    return [(x - mean) / root * w + b for x, w, b in zip(row, weight, bias, strict=True)]


def rms_norm(row, weight, eps):
    root = math.sqrt(sum(x * x for x in row) / len(row) + eps)
    return [x / root * w for x, w in zip(row, weight, strict=True)]


ACT = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + math.exp(-x)),
    "none": lambda x: x,
}


def affine(matrix, bias, row):
    bias = bias or [0.0] * len(matrix)
    return [sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(matrix, bias, strict=True)]


def mlp(row, up, down, activation):
    return affine(*down, [ACT[activation](x) for x in affine(*up, row)])


def gated(row, up, down, activation):
    """W3 (act(W1 x) * W2 x); W1 is the upper half of ``up``."""
    both = affine(*up, row)
    width = len(both) // 2
    return affine(*down, [ACT[activation](both[i]) * both[width + i] for i in range(width)])


def softmax(scores):
    peak = max(scores)
    weights = [math.exp(s - peak) for s in scores]
    return [w / sum(weights) for w in weights]


def mixture(row, router, experts, active):
    """The ``active`` most probable experts, weighted by their probabilities made to sum to one; also who was chosen."""
    probability = softmax(affine(router, None, row))
    best = sorted(range(len(experts)), key=lambda e: -probability[e])[:active]
    total = sum(probability[e] for e in best)
    outputs = [[probability[e] / total * y for y in experts[e](row)] for e in best]
    return [sum(column) for column in zip(*outputs, strict=True)], best, probability


def sees(query, key, causal=False, window=None):
    """May a query at this position look at a key at that one?"""
    if causal and key > query:
        return False
    return window is None or query - window < key < query + window


def attend(q, k, v, score, allowed, bias=None):
    """softmax(score + bias) v for (B, H, T, D), (B, G, S, D): one head and one query at a time, and the weights.

    ``score(h, q, k)`` takes two vectors; ``allowed(b, t, s)`` and ``bias(h, t, s)`` take row numbers.
    """
    B, H, T = q.shape[:3]
    S, share = k.size(2), H // k.size(1)
    weights = []
    for b in range(B):
        for h in range(H):
            for t in range(T):
                row = [q.new_zeros(())] * S
                keys = [s for s in range(S) if allowed(b, t, s)]
                if keys:
                    scores = [score(h, q[b, h, t], k[b, h // share, s]) for s in keys]
                    if bias is not None:
                        scores = [number + bias(h, t, s) for number, s in zip(scores, keys, strict=True)]
                    peak = max(number.item() for number in scores)
                    powers = [torch.exp(number - peak) for number in scores]
                    total = sum(powers)
                    for s, power in zip(keys, powers, strict=True):
                        row[s] = power / total
                weights.append(torch.stack(row))
    weights = torch.stack(weights).view(B, H, T, S)
    out = [
        sum(weights[b, h, t, s] * v[b, h // share, s] for s in range(S))
        for b in range(B)
        for h in range(H)
        for t in range(T)
    ]
    return torch.stack(out).view(B, H, T, -1), weights


def dot(scale):
    return lambda head, q, k: (q * k).sum() * scale


def kernel(sigma):
    """Nadaraya (1964), Watson (1964) with a Gaussian kernel: exp of this is the weight before normalising."""
    return lambda head, q, k: -((q - k) ** 2).sum() / (2 * sigma**2)


def additive(table):
    """Bahdanau et al. (2015)."""
    return lambda head, q, k: (table[head] * torch.tanh(q + k)).sum()


def deberta_row(distance, span, reach=None):
    """He et al. (2021), equation 3, and the logarithmic rows of their version 2: which row of a table of 2 span."""
    if reach is not None and abs(distance) > span // 2:
        near = span // 2
        steps = 0  # the fewest with near * ((reach - 1) / near)^(steps / (near - 1)) >= |distance|, in whole numbers
        while near * ((reach - 1) / near) ** (steps / (near - 1)) < abs(distance) * (1 - 1e-9):
            steps += 1
        distance = (near + steps) * (1 if distance > 0 else -1)
    if distance <= -span:
        return 0
    return 2 * span - 1 if distance >= span else distance + span


def disentangled(q, k, keys, queries, span, reach=None):
    """He et al. (2021), equation 4, for one head: scores of lists of vectors; a term without rows is left out."""

    def dot(x, y):
        return sum(a * b for a, b in zip(x, y, strict=True))

    terms = 1 + (keys is not None) + (queries is not None)
    scores = [[0.0] * len(k) for _ in q]
    for i, query in enumerate(q):
        for j, key in enumerate(k):
            row = deberta_row(i - j, span, reach)
            score = dot(query, key)
            score += dot(query, keys[row]) if keys is not None else 0
            score += dot(key, queries[row]) if queries is not None else 0
            scores[i][j] = score / math.sqrt(terms * len(query))
    return scores


def shaw(q, k, v, keys, values, most, visible):
    """Shaw et al. (2018), equations 3 and 4, for one head: weights and results of lists of vectors.

    ``visible(i, j)`` says which keys a query sees; ``values`` is None where distances have keys alone.
    """
    weights, results = [[0.0] * len(k) for _ in q], [[0.0] * len(v[0]) for _ in q]
    for i, query in enumerate(q):
        places = [j for j in range(len(k)) if visible(i, j)]
        rows = [max(-most, min(most, j - i)) + most for j in places]
        scores = [
            sum(x * (y + a) for x, y, a in zip(query, k[j], keys[row], strict=True)) / math.sqrt(len(query))
            for j, row in zip(places, rows, strict=True)
        ]
        for j, row, share in zip(places, rows, softmax(scores) if places else [], strict=True):
            weights[i][j] = share
            for d, number in enumerate(v[j]):
                results[i][d] += share * (number + (0.0 if values is None else values[row][d]))
    return weights, results

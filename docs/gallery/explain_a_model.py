"""
Explain a model
===============

``zoo explain`` counts what a model computes, without computing it: the model is traced on torch's meta device, so that
7 billion parameters need no memory. Every command is also a call of ``zoo.cli.main``.
"""

from zoo.cli import main

main(["explain", "gpt2-small"])

# %%
# Two models at one length, and what differs between them, part by part:

main(["explain", "llama-7b", "mistral-7b", "--model.max_length", "2048"])

# %%
# The same from Python, as values. The scores of attention and the values weighted by them are two products of batches
# of matrices (``bmm``). Their share of the work grows with the length, because every token meets every other.

import matplotlib.pyplot as plt

from zoo.explain import ceilings, costs
from zoo.explain.subjects import find_subject, with_options

machine = ceilings.this_machine()
lengths, shares = (256, 1024, 4096, 16384), []
for length in lengths:
    subject = find_subject(["gpt2-small"], with_options([f"model.max_length={length}"]))
    explained = costs.explain(subject, machine)
    attention = sum(one.flops for one in explained.traced.operations if one.name == "bmm")
    shares.append(100 * attention / explained.total.flops)
    per_token = explained.total.flops / explained.units
    print(f"{length:6,} tokens: {per_token / 1e6:,.0f} MFLOP per token, {shares[-1]:.0f} % of them in scores")

plt.plot(lengths, shares, marker="o")
plt.xscale("log", base=2)
plt.ylim(0)
plt.xlabel("tokens")
plt.ylabel("% of FLOPs")
plt.title("Share of scores and weighted values in the FLOPs of GPT-2 by length")
plt.show()

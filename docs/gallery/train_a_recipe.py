"""
Train a recipe and use the model
================================

``zoo fit`` trains a recipe, with any part replaced by an option. ``zoo.load`` opens the run. Here a Vision Transformer
learns drawn digits for some seconds; in the recipe's full minute it reaches 93 %.
"""

import tempfile

import numpy as np

import zoo
from zoo.cli import main
from zoo.data.glyphs import Glyphs
from zoo.logging.attention_figures import over_images
from zoo.logging.attention_maps import patch_attention

runs = tempfile.mkdtemp()
words = "--data.size 2000 --trainer.max_steps 120 --trainer.val_check_interval 60 --model.schedule.warmup 20"
code = main(["fit", "vit-glyphs", "--runs", runs, *words.split(), "--trainer.enable_progress_bar", "false"])
print("exit code", code)

# %%
# The trained model classifies images that it has not seen.

model = zoo.load("vit-glyphs", runs=runs)
splits, names = Glyphs(size=2000).read()
images = splits["test"].pixels.fetch(np.arange(4))
for number, guesses in enumerate(model.classify([image[0].numpy() for image in images], top=2)):
    digit = names[splits["test"].labels[number]]
    print(digit, "→", ", ".join(f"{guess.label} {guess.probability:.0%}" for guess in guesses))

# %%
# Where its last layer looks: the mean attention of all patches, by head.

shares = images / 255
mean, std = (value.view(-1, 1, 1) for value in (model.mean, model.std))
weights, _ = patch_attention(model.net, (shares - mean) / std)
picture = over_images([(shares[n], weights[n], f"image {n + 1}") for n in range(2)], "Attention of the last layer")
# Two drawn digits, and the patches that four heads attend to, in orange
picture

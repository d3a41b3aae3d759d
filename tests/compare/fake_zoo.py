"""A `zoo fit` that can be asked what it would run, and costs that are formulas: neither needs torch."""

from collections import namedtuple

from zoo.compare.plan import Point
from zoo.errors import UsageError

Cost = namedtuple("Cost", "parameters flops")
JUDGED = {
    "Toy": ("a token", {"loss": "min", "rate": "max"}), "Far": ("a token", {"rate": "max", "loss": "min"}),
    "Image": ("a class", {"loss": "min"}), "Score": ("a token", {"loss": "max", "rate": "min"}),
}  # fmt: skip
USUAL = {"model.position": "rope", "model.ffn": "plain", "model.lr": "0.1", "trainer.max_steps": "100"}


class Fits:
    """Variants are named after the options that differ from USUAL, as run folders are."""

    def __init__(self, root, changed=()):
        self.root, self.changed, self.requests = root, list(changed), []

    def point(self, words):
        self.requests.append(tuple(words))
        options, task = dict(USUAL), "Toy"
        for word in words[1:]:
            key, _, value = word.removeprefix("--").partition("=")
            if key == "model":
                task = value
                continue
            if not key.startswith(("model.", "trainer.", "data.")):
                raise UsageError(f"unknown key {key!r}.")
            options[key] = value.lower()
        differing = {key: value for key, value in options.items() if USUAL.get(key) != value}
        display = {
            key.rpartition(".")[2]: value for key, value in differing.items() if key != "trainer.log_every_n_steps"
        }
        display |= {"model": task.lower()} if task != "Toy" else {}
        variant = ",".join(f"{key}={value}" for key, value in sorted(display.items())) or "default"
        model = {key.removeprefix("model."): value for key, value in options.items() if key.startswith("model.")}
        model["dim"] = 8
        model["hidden"] = int(options["model.hidden"]) if "model.hidden" in options else None
        trainer = {"max_steps": int(options["trainer.max_steps"]), "max_epochs": options.get("trainer.max_epochs")}
        config = {"model": {"class_path": f"x.{task}", "init_args": model}, "data": {}, "trainer": trainer}
        notes = ("Far lacks model.near of Toy: dropped",) if task == "Far" else ()
        return Point(self.root, words[0], variant, config, notes, {**differing, "model": task})

    def task_options(self, words):
        own = {"position", "ffn", "lr", "hidden"}
        return frozenset({*own, "ahead"} if "--model=Far" in words else own)

    def changes(self, point, folder):
        return self.changed if folder.is_dir() else []

    def code(self, point):
        return {"zoo": {"version": "1.0", "source": "new"}}


class Costs:
    """A gated feed-forward has three matrices of two thirds of the width, a learned position a table."""

    refuses = ()

    def goals(self, config):
        return JUDGED[config["model"]["class_path"].removeprefix("x.")]

    def check(self, config):
        for key, value in self.refuses:
            if config["model"]["init_args"][key] == value:
                raise UsageError(f"{key} {value} cannot be built.\nmore")

    def cost(self, config):
        options = config["model"]["init_args"]
        hidden = options["hidden"] or 4 * options["dim"]
        ffn = 3 * 8 * max(1, 2 * hidden // 3) if options["ffn"] == "glu" else 2 * 8 * hidden + hidden + 8
        return Cost(1000 + ffn + (500 if options["position"] == "learned" else 0), 2.0 * (1000 + ffn))

    def tokens_per_step(self, config):
        return 40.0

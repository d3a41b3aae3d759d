"""The options of `zoo compare`, as data. Needs no torch."""

from __future__ import annotations

from dataclasses import replace

from zoo.command_line import Option
from zoo.config import fit_options
from zoo.config.fit_options import ALLOW_IMPORT, COMPILE, CONFIG, RUNS, SETTINGS, TRUST


def _for_runs(name: str, help: str, **fields: object) -> Option:
    return Option(name, help, **{"heading": "How it runs", **fields})  # type: ignore[arg-type]


FIXED, EQUAL, ANSWER = "What is compared", "What is held equal (the recipe's steps, unless a budget is named)", "Answer"
COMPARE_OPTIONS = (
    Option("vary", "an option of zoo fit and its values; again for a grid", metavar="OPTION=VALUE,VALUE",
           repeats=True, heading=FIXED),
    Option("seeds", "5: seeds 1 to 5; or 1,2,7", metavar="N", heading=FIXED),
    Option("until", "run seed after seed until every variant is decided, at most --seeds (30)", choices=("decided",),
           heading=FIXED),
    Option("looks", "5,10: look after these numbers of seeds, named before the first look", metavar="N,N",
           heading=FIXED),
    Option("baseline", "what the others are compared with; the recipe itself unless named", metavar="OPTION=VALUE",
           heading=FIXED),
    Option("design", "each option alone, or all combinations (default for few)",
           choices=("one-at-a-time", "grid"), heading=FIXED),
    Option("budget", "tokens=2M, flops=1e15 (3 forwards a step), time=10m; with --scale: flops", metavar="KIND=SIZE",
           heading=EQUAL),
    Option("match", "params or flops: solve for the model.hidden that gives the baseline's",
           metavar="WHAT", heading=EQUAL),
    Option("tune", "model.lr=1e-3,3e-3: choose for each variant, on --tune-seeds N (2) apart",
           metavar="OPTION=VALUE,VALUE", heading=EQUAL),
    Option("tune-seeds", "seeds of --tune, for each value and variant (2)", int, metavar="N", above=0, most=100,
           heading=""),
    _for_runs("jobs", "runs at once, each in its own process with its share of cores and GPUs", type=int, metavar="N",
              default=1, above=0, most=1024),
    _for_runs("shard", "only every Nth seed, from the Ith, with all its variants: for a SLURM array", metavar="I/N"),
    _for_runs("executor", "who does the runs: processes (here), dask, submitit, … (zoo list executor)",
              metavar="NAME[:ADDRESS]", kind="executor"),
    _for_runs("resources", "of each run: gpus=1,cpus=4,memory=16G; gpus=0.25: four share a GPU", metavar="NAME=VALUE"),
    _for_runs("dry-run", "show the runs, their state and an estimate of the time, and stop", type=bool),
    _for_runs("runs", RUNS.help, metavar="DIR", default="runs"),
    *(replace(option, heading="How it runs") for option in (CONFIG, ALLOW_IMPORT, TRUST)),
    Option(COMPILE.name, COMPILE.help, COMPILE.type, heading=""),  # as any other option of zoo fit
    Option("goal", "the figure that decides; the task's first unless named", metavar="NAME", heading=ANSWER),
    Option("at", "last (the default), last:3 (mean of three), test (untouched split), best",
           metavar="WHEN", heading=ANSWER),
    Option("to", "loss=4.2: how many steps until a validation first reaches it decide", metavar="GOAL=TARGET",
           heading=ANSWER),
    Option("margin", "a variant within it, in the unit of the figure, is as good as the baseline", float,
           metavar="SIZE", above=0, heading=ANSWER),
    Option("test", "t, dunnett (several variants that scatter alike) or permutation", metavar="NAME", default="t",
           choices=("t", "dunnett", "permutation"), heading=ANSWER),
    Option("series", "an error budget for all comparisons naming this file, of --tries N variants",
           metavar="FILE", heading=ANSWER),
    Option("tries", "variants that a new series may try (100)", int, metavar="N", above=0, most=1_000_000, heading=""),
    Option("exit-code", "10 better, 11 worse, 12 as good, 13 undecided, 14 not comparable", bool, heading=ANSWER),
    Option("json", "one JSON document", bool, heading=ANSWER),
    Option("out", "where the report goes", metavar="DIR", heading=ANSWER),
)  # fmt: skip
# options of one run, which a comparison decides itself, and what to write instead
DECIDED_BY_COMPARISON = {
    "seed": "--seeds", "name": "nothing: variants are named after what differs",
    "overwrite": "nothing: remove a run's folder to run it again", "resume": "nothing: runs go on by themselves",
    "requeue": "nothing: runs go on by themselves", "accept-changes": "nothing: every run has its own folder",
    "save-every": "nothing: runs go on by themselves", "save": "nothing: one file each",
    "on-nonfinite": "nothing: a run that fails is reported",
    "ckpt_path": "nothing: every run starts from its seed", "print_config": "--dry-run",
    "trackers": "the variable ZOO_TRACKERS, such as ZOO_TRACKERS=csv,mlflow zoo compare",
    "help-all": "zoo fit --help-all",
}  # fmt: skip
REFUSED = tuple(
    Option(option.name, "", option.type, aliases=option.aliases, choices=option.choices, heading="")
    for option in fit_options.OPTIONS
    if option.name in DECIDED_BY_COMPARISON
)
HIDDEN_SETTINGS = tuple(
    Option(option.name, option.help, key=option.key, kind=option.kind, heading="")
    for option in SETTINGS
    if option.name != "model.dim"
)

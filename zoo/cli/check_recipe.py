"""`zoo check RECIPE`: train and validate one batch of a recipe, in a folder that is removed."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time

from zoo.cli import tables
from zoo.config import fit_options

FAST = ("trainer.fast_dev_run", "1", "--trainer.fast_dev_run 1")


def run(argv: list[str]) -> int:
    """Plan as `zoo fit` does, build model and data, and take one step. Raises what `zoo fit` would raise."""
    from zoo.cli import doctor, warning_filters
    from zoo.config import run_config

    json = "--json" in argv
    parsed = fit_options.parse("fit", [word for word in argv if word != "--json"])
    parsed.options.append(FAST)
    draft = run_config.read_draft(parsed)
    doctor.check_torch()
    warning_filters.filter_warnings(parsed.debug)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        parsed.runs = folder  # nobody's run is in the way, and nothing is left
        schema = run_config.schema()
        config_plan = run_config.make_plan(parsed, draft, schema)
        from zoo.cli import fit as runner

        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = runner.run_plan(config_plan, schema)
    if code:
        return code
    classes = config_plan.resolved.classes
    task, data, seconds = classes["model"].__name__, classes["data"].__name__, time.monotonic() - begun
    if json:
        tables.as_json({"recipe": parsed.recipe, "task": task, "data": data, "seconds": round(seconds, 2)})
    else:
        # the first line names the folder, which is gone
        print("\n".join(output.getvalue().splitlines()[1:]))
        took = f"{task} trained and validated on one batch of {data} in {seconds:.1f} s"
        print(f"recipe ok: {parsed.recipe}: {took}; no run was kept")
    return 0

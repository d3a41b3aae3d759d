"""`zoo check RECIPE`: train and validate one batch of a recipe, in a folder that is removed."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time

from zoo.cli import args, output

FAST = ("trainer.fast_dev_run", "1", "--trainer.fast_dev_run 1")


def run(argv: list[str]) -> int:
    """Plan as `zoo fit` does, build model and data, and take one step. Raises what `zoo fit` would raise."""
    from zoo.cli import doctor, plan, quiet

    json = "--json" in argv
    parsed = args.parse("fit", [word for word in argv if word != "--json"])
    parsed.options.append(FAST)
    draft = plan.draft(parsed)
    doctor.check_torch()
    quiet.quiet(parsed.debug)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-check-") as folder:
        parsed.runs = folder  # nobody's run is in the way, and nothing is left
        schema = plan.schema()
        made = plan.plan(parsed, draft, schema)
        from zoo.cli import run as runner

        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = runner.execute(made, schema)
    if code:
        return code
    classes = made.resolved.classes
    task, data, seconds = classes["model"].__name__, classes["data"].__name__, time.monotonic() - begun
    if json:
        output.as_json({"recipe": parsed.recipe, "task": task, "data": data, "seconds": round(seconds, 2)})
    else:
        # the first line names the folder, which is gone
        print("\n".join(said.getvalue().splitlines()[1:]))
        took = f"{task} trained and validated on one batch of {data} in {seconds:.1f} s"
        print(f"recipe ok: {parsed.recipe}: {took}; no run was kept")
    return 0

"""`zoo compare A B C --vary …`: one comparison in each of several recipes, and one scoreboard over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zoo import recipe_files, registry
from zoo.command_line import ParsedOptions
from zoo.compare import error_budget, looks, plan, run_comparison, run_records
from zoo.compare.design import Procedure, check_target
from zoo.compare.plan import Arm, Choice, Comparison
from zoo.compare.run_records import Record
from zoo.errors import UsageError
from zoo.registry import suggest
from zoo_designs import designs, scoreboard, scoreboard_folder
from zoo_designs.scoreboard import RecipeTask, Scoreboard

SEVERAL = designs.Scoreboard()

# options that do not go with several recipes, and why
REFUSED = {
    "attribute": "it takes two recipes and no --vary",
    "until": "each recipe would stop at another number of seeds, and intervals over tasks need a fixed one",
    "looks": "a verdict over all tasks needs a fixed number of seeds",
    "margin": "figures of different tasks have different units",
    "probe": "it is for language models on text: probe one recipe at a time",
    "series": "its tries are those of one recipe's comparison",
    "scale": "sizes differ between recipes: scale one recipe at a time",
}


def check_recipes(options: ParsedOptions) -> None:
    """Raise UsageError for words that name no recipe, for one that is named twice, and for options of one recipe."""
    for index, word in enumerate(options.words):
        if recipe_files.packaged_recipe(word) is None and not Path(word).is_file():
            hint = suggest(word, [recipe.name for recipe in recipe_files.recipes()])
            before = options.words[index - 1]
            also = f"one recipe at a time, or several: after {before!r}, " if index else ""
            raise UsageError(
                f"{also}{word!r} is no recipe.{hint} Values of --vary are separated by commas, without spaces: "
                "--vary model.position=rope,alibi"
            )
        if word in options.words[:index]:
            raise UsageError(f"{word!r} is named twice.")
    for name, why in REFUSED.items():
        if name in options.values:
            raise UsageError(f"--{name} does not go with several recipes: {why}.")
    check_target(options.get("at") or "", SEVERAL)


def variant_name(arm: Arm, comparison: Comparison) -> str:
    """What a variant is called in all recipes: the value if one option varies, else ``norm=RMSNorm,ffn=MLP``."""
    choices = []
    for choice in sorted(arm.variant, key=lambda choice: choice.key):
        # a part as it is registered, whatever the case on the command line; other values as they are
        kind = choice.key.removeprefix("model.")
        names = [part.name for part in registry.parts(kind)] if kind in registry.KINDS else []
        value = next((name for name in names if name.lower() == choice.value.lower()), choice.value)
        choices.append(Choice(choice.key, value))
    if len(comparison.vary) == 1 and len(choices) == 1:
        return choices[0].value
    return plan.variant_text(tuple(choices))


def show(
    members: Mapping[Path, Mapping[str, str]], command: str, options: ParsedOptions, home: Path, place: Path | None
) -> int:
    """Answer every recipe's comparison, print the scoreboard, and write all reports if ``place`` is set."""
    from zoo.compare import tensorboard_summary
    from zoo.compare.report import write_report

    tasks, reports = [], {}
    for home_of_recipe, names in members.items():
        record = run_records.load_record(home_of_recipe)
        if record is None:
            raise UsageError(
                f"{home_of_recipe} is no folder of a comparison any more. Run the command again: {command}"
            )
        record = replace(record, at=options.get("at") or record.at)
        check_target(record.at or "", SEVERAL)
        answer, own_place = error_budget.look_and_record(record, options, home_of_recipe)
        tasks.append(RecipeTask(answer, names))
        if place is not None:
            write_report(answer, own_place)
            tensorboard_summary.write_summary(own_place, answer)
            reports[answer.recipe] = own_place
    board = look_at_scoreboard(tasks, home, command)
    report = scoreboard.describe(board)
    in_text = replace(report, sections=report.sections[::-1])
    code = run_comparison.print_report(
        board.outcome, board.comparability_errors, in_text, lambda: scoreboard.as_json(board), options
    )
    if place is not None:
        files = scoreboard.write_report(board, reports, Path(options.get("out") or place))
        scoreboard_folder.write_summary(home, board)
        run_comparison.print_places(files, reports, home, scoreboard_folder.pinned_scores(board), options)
    return code


def look_at_scoreboard(tasks: Sequence[RecipeTask], home: Path, command: str) -> Scoreboard:
    """The scoreboard with what earlier looks at it have left to spend; records the look.

    The test over all tasks has an error probability of its own, which all looks at it share.
    """
    first_board = scoreboard.make_scoreboard(tasks)
    seeds = {row.name: _seeds(tasks, row.name) for row in first_board.rows}
    goal = ", ".join(f"{task.recipe} {task.answer.goal}" for task in tasks)
    with error_budget.hold_lock(home / looks.FILE):
        past = looks.load_looks(home, seeds, beside=scoreboard_folder.same_recipes(home))
        question = looks.Question(goal, first_board.baseline, tasks[0].answer.at, None, "permutation")
        look = past.next_look(question, seeds)
        board = scoreboard.make_scoreboard(tasks, past.plan(look), [command])
        new = past.with_look(look, {row.name: row.verdict.word for row in board.rows[1:]})
        if new != past:
            error_budget.save_or_warn(home, lambda: looks.save_looks(home, new))
    return replace(board, looks=new.looks)


def _seeds(tasks: Sequence[RecipeTask], name: str) -> tuple[int, ...]:
    return tuple(sorted({seed for task in tasks for seed in scoreboard.common_seeds(task, name)}))


class ScoreboardProcedure(Procedure):
    """Runs a plain comparison in each recipe, and puts their answers on one scoreboard."""

    def run(self, options: ParsedOptions, comparison: Comparison, usual: object) -> int:
        """Run what is missing of every recipe, then print and write the scoreboard.

        ``comparison`` is what is compared in each recipe. Without --baseline it is with the first value of every
        --vary, because what the recipes themselves have may differ.
        """
        check_recipes(options)
        if comparison.base is None:
            comparison = replace(comparison, base=",".join(str(factor.choices()[0]) for factor in comparison.vary))
        comparisons = [replace(comparison, recipe=word) for word in options.words]
        finished, code = run_comparison.run_comparisons(options, comparisons)
        if len(finished) < len(comparisons):  # a dry run, or runs of other shards are missing
            return code
        members = {
            result.place: {arm.name: variant_name(arm, comparison) for arm in result.arms} for result in finished
        }
        recipes = [folder.parents[1].name for folder in members]
        home = scoreboard_folder.scoreboard_path(Path(options.get("runs")), recipes, finished[0].place.name)
        command = run_comparison.command_line(options)
        scoreboard_folder.save_members(home, members, command)
        answer_code = show(members, command, options, home, home)
        return answer_code if options.get("exit_code") else code or answer_code

    def answer_folder(self, folder: Path, options: ParsedOptions) -> int:
        """`zoo compare FOLDER` of a scoreboard, without torch."""
        members, command = scoreboard_folder.load_members(folder)
        for name in ("baseline", "goal", *REFUSED):
            if options.values.get(name):
                why = REFUSED.get(name, "name it in the command that compares, or read one recipe's folder")
                raise UsageError(f"--{name} does not go with a scoreboard: {why}.")
        return show(members, command, options, folder, Path(options.get("out")) if options.get("out") else None)

    def views(self, folder: Path) -> tuple[dict[str, Record | None], str, tuple[str, ...]]:
        """For TensorBoard: the comparison of each recipe, and the tag and the first charts of the scoreboard."""
        members, _ = scoreboard_folder.load_members(folder)
        records = {home.parents[1].name: run_records.load_record(home) for home in members}
        return records, scoreboard_folder.TAG, scoreboard_folder.SCOREBOARD_TAGS

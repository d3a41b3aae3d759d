"""Which options of the command line are to blame where a model cannot be built: those without which it could be."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace

from jsonargparse import ArgumentParser

from zoo.config import data_sizes
from zoo.config import run_config as planning
from zoo.config.layers import where
from zoo.config.resolve import Schema
from zoo.config.run_config import Plan
from zoo.errors import ZooError

MOST_OPTIONS = 3


def option_origin(message: str, plan: Plan, schema: Schema) -> str:
    """Where what a part refuses was written; nothing where the message says so itself.

    An option of the command line is to blame where the model can be built without it. Else the options count that the
    message names.
    """
    if "←" in message:
        return ""
    first = re.match(r"[a-z]+\.[\w.]+", message)
    if first and (origin := plan.resolved.origins.get(first[0])):
        return where(origin)
    if blamed := culprits(message, plan, schema):
        return where(", ".join(blamed[:MOST_OPTIONS]))
    sentence = re.sub(r"\S*[/=]\S*", "", message)  # without paths: a run's folder is named after its options
    words, origins = set(re.findall(r"\w+", sentence)), plan.resolved.origins
    keys = [key for key in origins if key.startswith(("model.", "data.")) and key.rpartition(".")[2] in words]
    on_command_line = [key for key in keys if origins[key].startswith("--")]
    return where(", ".join(dict.fromkeys(origins[key] for key in (on_command_line or keys)[:MOST_OPTIONS])))


def culprits(message: str, plan: Plan, schema: Schema) -> list[str]:
    """The texts of the options without which the model could be built; all of the model's where only all help."""
    texts = {key: text for key, _, text in plan.command.options if key.partition(".")[0] == "model"}
    if not texts or refusal(plan, schema, ()) != message:
        return []  # nothing that was given, or not for how the model is built
    alone = [text for key, text in texts.items() if not refusal(plan, schema, [key])]
    if alone:
        return alone
    return [] if refusal(plan, schema, list(texts)) else list(texts.values())


def refusal(plan: Plan, schema: Schema, without: Sequence[str]) -> str:
    """What is said when the model is built on the meta device, without some options; nothing where it can be."""
    command = replace(plan.command, options=[one for one in plan.command.options if one[0] not in without])
    try:
        other = planning.make_plan(command, planning.read_draft(command), schema)
        task, config = other.resolved.classes["model"], copy.deepcopy(other.config["model"])
        limit = (other.config["data"].get("init_args") or {}).get("max_length")
        config["init_args"].update(data_sizes.placeholder_sizes(task, config["init_args"], limit))
        parser = ArgumentParser(exit_on_error=False)
        parser.add_subclass_arguments(schema.model, "model", fail_untyped=False, required=True)
        data_sizes.build_on_meta(lambda: parser.instantiate(parser.parse_object({"model": config})))
    except Exception as error:  # whatever a part makes of its options
        from zoo.cli.error_report import about_options, root_cause

        cause = about_options(root_cause(error))
        return str(cause) if isinstance(cause, ZooError) else f"{type(cause).__name__}: {cause}"
    return ""

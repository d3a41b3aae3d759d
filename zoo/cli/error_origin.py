"""Find the options of the command line because of which a model cannot be built: without them it can be."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from dataclasses import replace

from zoo.config import data_sizes
from zoo.config import run_config as planning
from zoo.config.layers import where
from zoo.config.resolve import Schema
from zoo.config.run_config import RunPlan
from zoo.errors import ZooError, root_cause
from zoo.inference.section_parser import section_parser

MOST_OPTIONS = 3


def option_origin(message: str, plan: RunPlan, schema: Schema) -> str:
    """The origin, as `` ← file:line``, of the options that an error is about; empty where the message has it already.

    An option of the command line is at fault if the model can be built without it. Otherwise the options count that
    the message names.
    """
    if "←" in message:
        return ""
    for key, value in plan.resolved.values.items():  # a path that is not what the data read
        texts = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        paths = map(os.path.expanduser, texts)
        if key.startswith("data.") and any(path and message.startswith(f"{path} ") for path in paths):
            return f"\nGive another: --{key} PLACE{where(plan.resolved.origins[key])}"
    key_match = re.match(r"[a-z]+\.[\w.]+", message)
    if key_match and (origin := plan.resolved.origins.get(key_match[0])):
        return where(origin)
    if at_fault := options_at_fault(message, plan, schema):
        return where(", ".join(at_fault[:MOST_OPTIONS]))
    message = message.replace(str(plan.run.folder), "")  # which is named after options, and may hold spaces
    sentence = re.sub(r"\S*[/=]\S*", "", message)  # without paths
    words, origins = set(re.findall(r"\w+", sentence)), plan.resolved.origins
    keys = [key for key in origins if key.startswith(("model.", "data.")) and key.rpartition(".")[2] in words]
    on_command_line = [key for key in keys if origins[key].startswith("--")]
    return where(", ".join(dict.fromkeys(origins[key] for key in (on_command_line or keys)[:MOST_OPTIONS])))


def options_at_fault(message: str, plan: RunPlan, schema: Schema) -> list[str]:
    """The texts of the options without which the model can be built; all of the model's if only that helps."""
    texts = {key: text for key, _, text in plan.command.settings if key.partition(".")[0] == "model"}
    if not texts or build_error(plan, schema, ()) != message:
        return []  # no options, or the error is not one of building the model
    alone = [text for key, text in texts.items() if not build_error(plan, schema, [key])]
    if alone:
        return alone
    return [] if build_error(plan, schema, list(texts)) else list(texts.values())


def build_error(plan: RunPlan, schema: Schema, without: Sequence[str]) -> str:
    """The error message of building the model on the meta device, without some options; empty if it can be built."""
    command = replace(plan.command, settings=[option for option in plan.command.settings if option[0] not in without])
    try:
        trial = planning.make_plan(command, planning.read_draft(command), schema)
        task, config = trial.resolved.classes["model"], copy.deepcopy(trial.config["model"])
        limit = (trial.config["data"].get("init_args") or {}).get("max_length")
        config["init_args"].update(data_sizes.placeholder_sizes(task, config["init_args"], limit))
        parser = section_parser(schema.model)
        data_sizes.build_on_meta(lambda: parser.instantiate(parser.parse_object({"model": config})))
    except Exception as error:  # a part may raise anything
        from zoo.cli.error_report import options_error

        cause = options_error(root_cause(error))
        return str(cause) if isinstance(cause, ZooError) else f"{type(cause).__name__}: {cause}"
    return ""

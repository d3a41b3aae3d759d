"""Mutation tests: each of these faults in zoo must make a test of the default run fail.

``python -m tests.campaigns.mutants [--only TEXT] [--list] [--json FILE] [--timeout SECONDS]``

A mutant replaces one piece of one line. It is applied to a copy of the repository in a temporary folder, never to the
working tree, and the nearest test files are run there with ``-x``. The test that fails is then run without the mutant,
since one that fails anyway kills nothing. Each run is a fork of one process that has imported torch and Lightning, and
not zoo. Mutants with quick tests come first.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "lightning", "torchmetrics", "jsonargparse", "hypothesis", "pytest", "numpy", "PIL", "tokenizers")
IGNORE = shutil.ignore_patterns("venv", ".git", "__pycache__", ".*_cache", "runs", "*.egg-info", "build", "dist")
ANY = "~"  # any identifier, in the text that is replaced and, in the same order, in its replacement


@dataclass(frozen=True)
class Mutant:
    """A fault: in a file, ``text`` becomes ``fault``, and one of ``tests`` must fail.

    Files are named below zoo/ and tests below tests/; those of a package by the whole path, from plugins/zoo- on.
    """

    file: str
    text: str
    fault: str
    tests: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.file}: {self.text}"

    def apply(self, source: str) -> str:
        """The source with the fault. Raises LookupError unless its place is there exactly once."""
        pattern = r"(\w+)".join(map(re.escape, self.text.split(ANY)))
        matches = list(re.finditer(pattern, source))
        if len(matches) != 1:
            raise LookupError(f"{self.title!r} is there {len(matches)} times, not once: name a line of today's code.")
        (match,) = matches
        names = iter(match.groups())
        fault = re.sub(ANY, lambda _: next(names), self.fault)
        return source[: match.start()] + fault + source[match.end() :]


MUTANTS = [
    Mutant(file, text, fault, tuple(tests.split()))
    for file, text, fault, tests in [
        # command line
        (
            "cli/__init__.py",
            '"--version": "version"',
            '"--version": "help"',
            "cli/test_fit_summary_lines.py",
        ),
        (
            "conformance/new_command.py",
            "{release if early else",
            "{release if not early else",
            "cli/test_new.py::test_names_and_versions",
        ),
        (
            "conformance/new_command.py",
            "module in sys.stdlib_module_names or keyword",
            "keyword",
            "cli/test_new.py::test_what_is_refused",
        ),
        ("cli/environment_errors.py", r'if "\0" in ~', r'if "\1" in ~', "cli/test_environment_errors.py"),
        (
            "compare/tensorboard_command.py",
            "if not port_problem(port, HOST):",
            "if port_problem(port, HOST):",
            "logging/test_tensorboard.py",
        ),
        (
            "cli/fit_summary.py",
            "whole >= 60 else",
            "whole >= 6 else",
            "cli/test_fit_summary_lines.py",
        ),
        ("cli/resume.py", 'not in ("", "0")', 'not in ("",)', "cli/test_resume.py"),
        (
            "plugins/zoo-pretrained/src/zoo_pretrained/import_checkpoint.py",
            'any(target.iterdir()) and not options.get("force")',
            'any(target.iterdir()) and options.get("force")',
            "plugins/zoo-pretrained/tests/test_importer.py",
        ),
        ("cli/show.py", 'text[:89] + "…"', 'text[:88] + "…"', "cli/test_show.py"),
        (
            "conformance/matrix_command.py",
            'if ~.status == "trains":',
            'if ~.status != "trains":',
            "conformance/test_combinations.py",
        ),
        # compare
        ("compare/statistics.py", "t_critical(alpha, n - 1)", "t_critical(alpha, n)", "compare/test_statistics.py"),
        (
            "compare/statistics.py",
            "tied = bool(np.ptp(differences) <=",
            "tied = bool(np.ptp(differences) >=",
            "compare/test_statistics.py",
        ),
        ("compare/statistics.py", "if adjusted <= level and", "if adjusted > level and", "compare/test_statistics.py"),
        (
            "compare/statistics.py",
            "result = np.asarray(variant",
            "result = -np.asarray(variant",
            "compare/test_statistics.py",
        ),
        ("compare/comparability.py", "spread > TOLERANCE", "spread > 3 * TOLERANCE", "compare/test_comparability.py"),
        ("compare/comparability.py", "2 * TOLERANCE", "0 * TOLERANCE", "compare/test_comparability.py"),
        ("compare/match_and_tune.py", "at(high) < target", "at(high) > target", "compare/test_match_and_tune.py"),
        ("compare/number_format.py", "if seconds < 10:", "if seconds < 1:", "compare/test_table.py"),
        (
            "compare/number_format.py",
            "abs(value) >= 10**power",
            "abs(value) > 10**power",
            "compare/test_table.py compare/test_report.py",
        ),
        ("io/locks.py", "owner.host == socket.gethostname() and", "", "compare/test_parallel_runs.py"),
        (
            "compare/comparability.py",
            'if run.setting.get("batch") != ',
            'if run.setting.get("batch") == ',
            "logging/test_run_record.py compare/test_comparability.py",
        ),
        (
            "compare/run_records.py",
            'if content["format"] != FORMAT:',
            'if content["format"] == 0:',
            "compare/test_run_records.py",
        ),
        ("compare/plan.py", "count > MANY", "count >= 10 * MANY", "compare/test_variants.py compare/test_plan.py"),
        ("compare/run_records.py", "if p not in shared", "if p in shared", "compare/test_variant_names.py"),
        (
            "compare/verdict.py",
            'if direction == "min" else -',
            'if direction == "max" else -',
            "compare/test_table.py compare/test_statistics.py",
        ),
        (
            "plugins/zoo-designs/src/zoo_designs/length_probe.py",
            "length - math.ceil(length / 4)",
            "length - math.ceil(length / 2)",
            "plugins/zoo-designs/tests/test_length_probe.py",
        ),
        (
            "compare/charts.py",
            "signs[1] * point[1] < signs[1]",
            "signs[1] * point[1] > signs[1]",
            "compare/test_charts.py",
        ),
        (
            "logging/run_state.py",
            '.get("finished")):',
            '.get("finished", 1)):',
            "compare/test_plan.py",
        ),
        # config
        ("config/coercion.py", "LARGEST_INT = 2**63 - 1", "LARGEST_INT = 2**65", "config/test_trainer_bounds.py"),
        ("config/trainer_bounds.py", "1 <= value <= 4096", "0 <= value <= 4096", "config/test_trainer_bounds.py"),
        ("config/run_config.py", "0 <= seed < 2**32", "0 <= seed <= 2**32", "config/test_trainer_bounds.py"),
        (
            "config/data_sizes.py",
            "(~ < ~ if spare else ~ != ~)",
            "(~ > ~ if spare else ~ != ~)",
            "config/test_task_data_match.py cli/test_fit.py",
        ),
        (
            "config/run_folder.py",
            'and ".." not in name',
            "",
            "config/test_run_folder.py inference/test_import_policy.py",
        ),
        (
            "config/resolve.py",
            "if takes_code(param.annotation):",
            "if False:",
            "config/test_resolve_code.py",
        ),
        (
            "config/resolve.py",
            "if ~(node.as_data()):",
            "if False:",
            "config/test_resolve_code.py",
        ),
        (
            "config/signatures.py",
            "return self.default is inspect.Parameter.empty",
            "return self.default is not inspect.Parameter.empty",
            "config/test_trainer_bounds.py config/test_resolve.py",
        ),
        ("config/yaml_source.py", 'elif key == "init_args":', 'elif key == "init_arg":', "config/test_yaml_source.py"),
        ("config/precision.py", 'bool(cpu_capabilities().get("amx_bf16"))', "True", "config/test_precision.py"),
        (
            "config/class_names.py",
            "cls.__name__.lower() == name.lower()",
            "cls.__name__ == name",
            "config/test_resolve_code.py config/test_resolve.py",
        ),
        # conformance
        ("conformance/token_checks.py", "out.shape == x.shape,", "True,", "conformance/test_faults.py"),
        ("conformance/token_checks.py", "share <= 1.2,", "share <= 12,", "conformance/test_faults.py"),
        ("conformance/token_checks.py", 'report["seconds"] < 2,', "True,", "conformance/test_weights.py"),
        (
            "conformance/check.py",
            "if self.~ is None:\n            self._try()",
            "if self.~ is None:\n            pass",
            "conformance/test_faults.py",
        ),
        ("conformance/contracts/block.py", "growth > 5,", "growth > 0,", "conformance/test_faults.py"),
        (
            "conformance/run_checks.py",
            "exponent <= MOST[declared],",
            "exponent <= 9 + MOST[declared],",
            "conformance/test_faults.py",
        ),
        ("conformance/contracts/ffn.py", "require(bent > 1e-6,", "require(bent >= 0,", "conformance/test_faults.py"),
        ("conformance/short_training.py", "if grad is None]", "if False]", "conformance/test_combinations.py"),
        # data
        (
            "plugins/zoo-text/src/zoo_text/data/labelled.py",
            "content.update(json.dumps([split, ~]).encode())",
            "content.update(split.encode())",
            "plugins/zoo-text/tests/test_labelledfiles.py",
        ),
        (
            "data/batches.py",
            "rounded = -(-length // MULTIPLE) * MULTIPLE",
            "rounded = length // MULTIPLE * MULTIPLE",
            "data/test_batches.py",
        ),
        ("data/batches.py", "* wide > self.tokens", "* wide > 2 * self.tokens", "data/test_batches.py"),
        (
            "plugins/zoo-text/src/zoo_text/data/corruption.py",
            "draw.random(len(tokens)) < rate",
            "draw.random(len(tokens)) > rate",
            "plugins/zoo-text/tests/test_corruption.py",
        ),
        (
            "plugins/zoo-text/src/zoo_text/data/masking.py",
            "(chance < self.rate) & allowed",
            "(chance < self.rate)",
            "plugins/zoo-text/tests/test_masked.py",
        ),
        (
            "plugins/zoo-text/src/zoo_text/data/masked.py",
            "len(first) + 2 : len(line)] = 1",
            "len(first) + 1 : len(line)] = 1",
            "plugins/zoo-text/tests/test_masked.py",
        ),
        ("data/augment.py", "draws[:, 2] < 0.5", "draws[:, 2] < 0.0", "data/test_images.py"),
        ("data/image_sources.py", "sorted(members) != names", "False", "data/test_imagefiles.py data/test_images.py"),
        (
            "data/image_decoding.py",
            "image.width * image.height > MOST_PIXELS",
            "False",
            "data/test_imagefiles.py campaigns/malformed/test_odd_files.py",
        ),
        (
            "data/data.py",
            "[content in held_out for content in contents]",
            "[content not in held_out for content in contents]",
            "data/test_pairs.py data/test_odd_folders.py",
        ),
        ("data/source_files.py", "in identities:", "in set():", "data/test_odd_folders.py"),
        (
            "data/parallel_files.py",
            "len(line) > LONGEST_LINE",
            "False",
            "data/test_pairs.py campaigns/malformed/test_odd_files.py campaigns/malformed/test_malformed_data.py",
        ),
        ("data/text.py", "predicted = len(tokens) - 1", "predicted = len(tokens)", "data/test_text.py"),
        (
            "data/source_files.py",
            'if "\\0" in text:',
            "if False:",
            "data/test_text.py campaigns/malformed/test_odd_files.py campaigns/malformed/test_malformed_data.py",
        ),
        ("data/cache.py", "all(~(entry / name) == stamp", "all(True", "data/test_cache.py"),
        (
            "data/tokenizer.py",
            "[cls_id, *ids] if sep_id is None",
            "[*ids, cls_id] if sep_id is None",
            "data/test_tokenizer.py plugins/zoo-text/tests/test_masked.py",
        ),
        (
            "data/data.py",
            "if not 0 < value < 1:",
            "if not 0 <= value <= 1:",
            "data/test_text.py plugins/zoo-text/tests/test_labelled.py campaigns/malformed/test_malformed_data.py",
        ),
        ("data/phrasebook.py", '"val": pairs[~ : 2 * ~]', '"val": pairs[:~]', "data/test_phrasebook.py"),
        # finetuning, inference
        (
            "finetuning/finetune.py",
            "if not 0 < self.layer_decay <= 1:",
            "if not 0 <= self.layer_decay:",
            "finetuning/test_finetune.py",
        ),
        (
            "finetuning/finetune.py",
            "decay**steps",
            "decay**(steps + 1)",
            "plugins/zoo-text/tests/test_text_finetuning.py",
        ),
        (
            "finetuning/weight_transfer.py",
            "elif ~.shape == tensor.shape",
            "elif ~.numel() == tensor.numel()",
            "finetuning/test_finetune.py",
        ),
        (
            "io/checkpoint_manifest.py",
            'manifest.get("sha256") != digest',
            "False",
            "training/test_checkpoint.py",
        ),
        (
            "inference/safe_pickle.py",
            "if not isinstance(self.stack[-1], OrderedDict):",
            "if False:",
            "campaigns/attacks/test_attack_checkpoints.py",
        ),
        (
            "inference/safe_pickle.py",
            "if total > MOST_VALUES:",
            "if False:",
            "campaigns/attacks/test_attack_checkpoints.py campaigns/fuzz/test_fuzz.py",
        ),
        ("inference/section_parser.py", "self.validate(obj)", "pass", "inference/test_section_parser.py"),
        (
            "inference/import_policy.py",
            'path.startswith(f"{root}.")',
            "path.startswith(root)",
            "test_registry.py",
        ),
        (
            "inference/classification.py",
            "right = image.size ==",
            "right = image.size !=",
            "inference/test_classification.py",
        ),
        (
            "inference/language.py",
            "skip = max(0, len(lead) - 1 - start)",
            "skip = max(0, len(lead) - start)",
            "inference/test_language.py",
        ),
        ("inference/decoding_rules.py", "if stop in text]", "if text in stop]", "inference/test_language.py"),
        ("inference/translation.py", "(len(whole) - most)", "(len(whole) - most - 1)", "inference/test_translation.py"),
        (
            "inference/trained_model.py",
            "/ math.log(2) / self.bytes if",
            "/ self.bytes if",
            "inference/test_language.py",
        ),
        (
            "inference/weight_files.py",
            "bool(tensor.isnan().any())",
            "bool(tensor.isnan().all())",
            "inference/test_weight_files.py",
        ),
        # io
        (
            "io/limits.py",
            '".." in pure.parts or',
            "",
            "plugins/zoo-text/tests/test_labelledfiles.py campaigns/attacks/test_attack_checkpoints.py",
        ),
        (
            "io/limits.py",
            "limit -= info.file_size",
            "limit -= info.compress_size",
            "campaigns/attacks/test_attack_checkpoints.py campaigns/fuzz/test_fuzz.py "
            "campaigns/malformed/test_odd_files.py",
        ),
        (
            "io/plain_yaml.py",
            "count > NODES or depth > DEPTH",
            "count > NODES",
            "campaigns/fuzz/test_fuzz.py",
        ),
        (
            "io/atomic_files.py",
            "if path.is_dir() and not path.is_symlink():",
            "if path.is_dir():",
            "io/test_atomic_files.py",
        ),
        # logging
        (
            "logging/cost_measures.py",
            "self.tokens / self.seconds if",
            "self.seconds / self.tokens if",
            "training/test_nonfinite_limits.py logging/test_run_record.py",
        ),
        (
            "logging/run_record.py",
            "if diverged or value == value}",
            "if diverged or value != value}",
            "logging/test_run_record.py",
        ),
        (
            "logging/run_record.py",
            'len(self.batches["first"]) < FIRST',
            'len(self.batches["first"]) < 0',
            "logging/test_run_record.py",
        ),
        ("logging/best_effort.py", "if self.failures == 1:", "if self.failures == 2:", "logging/test_best_effort.py"),
        ("logging/attention_maps.py", "min(count, most)", "most", "logging/test_attention_maps.py"),
        ("explain/graph.py", "if a != at and", "if a == at and", "explain/test_graph.py"),
        ("logging/tensorboard.py", 'if name != "epoch"}', "}", "logging/test_tensorboard.py"),
        # models
        (
            "models/generation.py",
            "score / length**",
            "score * length**",
            "models/test_generation.py::test_wide_beams_find_what_enumeration_finds",
        ),
        (
            "models/generation.py",
            "length + 1 <= search.min_length",
            "length < search.min_length - 1",
            "models/test_generation.py::test_wide_beams_find_what_enumeration_finds",
        ),
        (
            "plugins/zoo-text/src/zoo_text/models/encoder.py",
            "clamp(min=1)",
            "clamp(min=2)",
            "plugins/zoo-text/tests/test_encoder.py",
        ),
        (
            "models/initialization.py",
            "(3 * module.weight.size(1)) ** -0.5",
            "module.weight.size(1) ** -0.5",
            "models/test_initialization.py",
        ),
        (
            "models/language.py",
            "if self.scale == 1.0 else x * self.scale",
            "if self.scale != 1.0 else x * self.scale",
            "models/test_generation.py",
        ),
        ("models/layer_overrides.py", "self.last + 1 :", "self.last :", "models/test_layer_overrides.py"),
        (
            "models/loss.py",
            "slope.amax(-1, keepdim=True).log()",
            "slope.amax(-1, keepdim=True)",
            "models/test_loss.py parts/test_derivatives.py",
        ),
        (
            "plugins/zoo-classic/src/zoo_classic/seq2seq.py",
            "(valid.sum(1) - 1)",
            "(valid.sum(1) - 2)",
            "plugins/zoo-classic/tests/test_classic_seq2seq.py",
        ),
        (
            "models/seq2seq.py",
            '~ = tie in ("inputs", "all")',
            '~ = tie in ("inputs",)',
            "models/test_layer_overrides.py models/test_counts.py models/test_initialization.py",
        ),
        (
            "models/stack.py",
            "if limit is not None and length > limit",
            "if limit is not None and length > 2 * limit",
            "models/test_causality.py models/test_layer_overrides.py",
        ),
        (
            "models/vit.py",
            "if image_size % patch_size:",
            "if False:",
            "models/test_layer_overrides.py parts/test_block.py campaigns/malformed/test_malformed_recipes.py",
        ),
        (
            "models/attention_weights.py",
            "else weights[:, heads]",
            "else weights",
            "models/test_attention_weights.py logging/test_attention_maps.py",
        ),
        (
            "models/compatibility.py",
            "feature not in attention.~",
            "feature in attention.~",
            "models/test_compatibility.py",
        ),
        # parts
        (
            "parts/attention.py",
            "torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))",
            "torch.tanh(q.unsqueeze(3) - k.unsqueeze(2))",
            "parts/test_attention.py",
        ),
        ("parts/backend.py", "start - pattern.window + 1)", "start - pattern.window + 2)", "parts/test_backend.py"),
        ("parts/backend.py", 'torch.where(mask, bias, float("-inf"))', "bias", "parts/test_backend.py"),
        (
            "parts/cpu_attention.py",
            "scores = scores + term if",
            "scores = scores - term if",
            "parts/test_cpu_attention.py",
        ),
        (
            "parts/block.py",
            "return x + branch.dropout(branch.behind(",
            "return branch.dropout(branch.behind(",
            "parts/test_block.py",
        ),
        (
            "parts/cache.py",
            "stored, new = self.length - self.start, k.size(2)",
            "stored, new = self.length, k.size(2)",
            "parts/test_cache.py models/test_causality.py",
        ),
        (
            "parts/disentangled.py",
            'if own and pos_att_type != "p2c" else',
            'if own and pos_att_type == "p2c" else',
            "parts/test_disentangled.py",
        ),
        ("parts/ffn.py", "weight / weight.sum(-1, keepdim=True)", "weight", "parts/test_ffn.py"),
        ("parts/ffn.py", "max(1, 2 * hidden // 3)", "max(1, hidden // 3)", "parts/test_ffn.py models/test_counts.py"),
        (
            "parts/int8.py",
            "amax(1).clamp(min=",
            "amax(0).clamp(min=",
            "parts/test_int8.py parts/test_few_row_linear.py",
        ),
        (
            "parts/lora.py",
            "self.linear.weight + self.scale *",
            "self.linear.weight +",
            "parts/test_lora.py plugins/zoo-text/tests/test_text_finetuning.py",
        ),
        (
            "parts/norm.py",
            "torch.sqrt((centred**2).mean(-1, keepdim=True) + self.eps)",
            "torch.sqrt((centred**2).mean(-1, keepdim=True))",
            "parts/test_norm.py",
        ),
        (
            "parts/packing.py",
            "self.fill = -self.count % MULTIPLE",
            "self.fill = self.count % MULTIPLE",
            "parts/test_packing.py",
        ),
        (
            "parts/pattern.py",
            "(query - key).abs() < self.window",
            "(query - key).abs() <= self.window",
            "parts/test_backend.py parts/test_block.py",
        ),
        (
            "parts/position.py",
            "return -self.slope[head] * distance",
            "return self.slope[head] * distance",
            "parts/test_position.py",
        ),
        ("parts/position.py", "base**-exponent", "base**exponent", "parts/test_position.py"),
        ("parts/derivatives.py", "if need and x is not None]\n", "if x is not None]\n", "parts/test_derivatives.py"),
        (
            "system/kernel_choice.py",
            "< (1 - MARGIN) * seconds[torch_kernel]",
            "< (1 + MARGIN) * seconds[torch_kernel]",
            "system/test_kernel_choice.py",
        ),
        (
            "models/speculation.py",
            "remainder = (target - draft)",
            "remainder = (target + 0 * draft)",
            "models/test_speculation.py",
        ),
        # explain, lessons
        (
            "plugins/zoo-learn/src/zoo_learn/page.py",
            "abs(one - other) <= self.tolerance",
            "abs(one - other) >= 0",
            "plugins/zoo-learn/tests/test_pages.py",
        ),
        ("explain/trace.py", "return self.read + self.write", "return self.read", "explain/test_trace.py"),
        ("explain/costs.py", "            end = start + 1", "            end = start + 2", "explain/test_costs.py"),
        (
            "plugins/zoo-exercises/src/zoo_exercises/probe.py",
            "dtype=torch.bool, device=tokens.device).tril(-1)",
            "dtype=torch.bool, device=tokens.device).tril(0)",
            "plugins/zoo-exercises/tests/test_probe.py",
        ),
        (
            "plugins/zoo-exercises/src/zoo_exercises/probe.py",
            "torch.linalg.svdvals(x - x.mean(0))",
            "torch.linalg.svdvals(x)",
            "plugins/zoo-exercises/tests/test_probe.py",
        ),
        (
            "explain/activations.py",
            "if not any(differences.values()):",
            "if not differences:",
            "explain/test_activations.py",
        ),
        (
            "explain/activations.py",
            "result[tuple(place)] = stored[tuple(place)]",
            "result = stored",
            "explain/test_activations.py",
        ),
        # plugins, pretrained
        ("plugins/diagnosis.py", "if applies and not", "if not applies and not", "test_registry.py"),
        (
            "plugins/discovery.py",
            'if not ~ or ~.startswith("#"):',
            "if not ~:",
            "test_registry.py inference/test_part_versions.py",
        ),
        (
            "plugins/description.py",
            "if tree is None or hops == 0:",
            "if tree is None:",
            "test_registry.py",
        ),
        (
            "plugins/zoo-pretrained/src/zoo_pretrained/tensor_mapping.py",
            "if form.shape != shape:",
            "if False:",
            "plugins/zoo-pretrained/tests/test_importer.py",
        ),
        (
            "plugins/zoo-pretrained/src/zoo_pretrained/gpt2.py",
            'config["n_inner"] or 4 * config["n_embd"]',
            'config["n_inner"] or 2 * config["n_embd"]',
            "plugins/zoo-pretrained/tests/test_llama.py",
        ),
        (
            "plugins/zoo-pretrained/src/zoo_pretrained/family.py",
            "return (3 * width + 1) // 2",
            "return 3 * width // 2",
            "plugins/zoo-pretrained/tests/test_importer.py",
        ),
        (
            "plugins/zoo-pretrained/src/zoo_pretrained/lookup.py",
            "set(heads) & set(family.architectures)",
            "True",
            "plugins/zoo-pretrained/tests/test_bert.py plugins/zoo-pretrained/tests/test_config_keys.py",
        ),
        # system, tasks, training, the rest
        (
            "system/threads.py",
            "if switch.sleeping else BUSY",
            "if not switch.sleeping else BUSY",
            "system/test_threads.py",
        ),
        ("system/threads.py", "- threads + 2", "- threads + 1", "system/test_threads.py"),
        ("system/malloc.py", 'in ("0", "no", "off", "false"):', 'in ("1",):', "system/test_malloc.py"),
        (
            "system/garbage_collection.py",
            "if _paused or not gc.isenabled():",
            "if not gc.isenabled():",
            "system/test_garbage_collection.py",
        ),
        (
            "tasks/lm.py",
            "total / math.log(2) / length",
            "total / length",
            "tasks/test_schedule.py plugins/zoo-designs/tests/test_length_probe.py",
        ),
        ("tasks/schedule.py", "return (step + 1) / self.warmup", "return step / self.warmup", "tasks/test_schedule.py"),
        ("tasks/schedule.py", "1.0 - (1.0 - self.floor) * done", "1.0 - done", "tasks/test_schedule.py"),
        (
            "tasks/classification.py",
            'if mix == "both" else mixers[mix]',
            'if mix != "both" else mixers[mix]',
            "tasks/test_schedule.py training/test_nonfinite_limits.py",
        ),
        (
            "plugins/zoo-text/src/zoo_text/tasks/masked.py",
            'targets = batch["targets"][batch["targets"] >= 0]',
            'targets = batch["targets"][batch["targets"] > 9]',
            "plugins/zoo-text/tests/test_labelling_task.py",
        ),
        (
            "plugins/zoo-text/src/zoo_text/tasks/labelling.py",
            "logits[labels != IGNORE], labels[labels != IGNORE]",
            "logits[labels != 0], labels[labels != 0]",
            "plugins/zoo-text/tests/test_labelling_task.py",
        ),
        (
            "tasks/translation.py",
            'self.metrics["exact"].update(float(hypothesis == text))',
            'self.metrics["exact"].update(float(hypothesis != text))',
            "tasks/test_schedule.py",
        ),
        (
            "training/nonfinite.py",
            "self.in_a_row > MOST_SKIPPED",
            "self.in_a_row > 10 * MOST_SKIPPED",
            "training/test_nonfinite_limits.py training/test_nonfinite.py",
        ),
        ("training/nonfinite.py", 'return f"batch{name}"', 'return "batch"', "training/test_nonfinite_limits.py"),
        (
            "training/nonfinite.py",
            "for name, tensor in tensors(batch):",
            "for name, tensor in ():",
            "training/test_nonfinite_limits.py",
        ),
        (
            "training/callbacks.py",
            "if not every or step % every or step == self._step:",
            "if not every:",
            "training/test_callbacks.py",
        ),
        (
            "training/checkpoint.py",
            "state.failures >= FAILURES_ALLOWED",
            "state.failures > FAILURES_ALLOWED",
            "training/test_checkpoint.py",
        ),
        (
            "training/memory_estimate.py",
            "self.peak = max(self.peak, self.in_use)",
            "self.peak = self.in_use",
            "training/test_memory_estimate.py",
        ),
        (
            "training/out_of_memory.py",
            "return max(1, size // 2)",
            "return max(1, size)",
            "training/test_nonfinite_limits.py training/test_nonfinite.py",
        ),
        (
            "training/rng_state.py",
            'if cuda is not None and device.type == "cuda":',
            "if True:",
            "training/test_resume.py",
        ),
        (
            "system/stop_signals.py",
            "return 130 if signum == signal.SIGINT else 143",
            "return 143",
            "training/test_callbacks.py training/test_resume.py campaigns/chaos/test_tools.py cli/test_fit.py",
        ),
        (
            "training/model_cost.py",
            "counter.get_total_flops() / tokens",
            "counter.get_total_flops()",
            "training/test_callbacks.py",
        ),
        (
            "registry.py",
            "exact = [part for part in matches if part.name == name] or matches",
            "exact = matches",
            "test_registry.py cli/test_doctor.py",
        ),
        (
            "recipe_files.py",
            "path.is_file() and path.suffix in SUFFIXES",
            "path.is_file()",
            "test_recipe_files.py test_console.py",
        ),
        (
            "value_checks.py",
            "if not value >= least:",
            "if not value > least:",
            "data/test_text.py models/test_layer_overrides.py",
        ),
        ("plotting.py", "longest - 1] +", "longest] +", "compare/test_charts.py"),
    ]
]


@cache
def place(name: str, top: str) -> str:
    """The path in the repository of a file or test, which lies below ``top`` unless a package has it."""
    return name if name.startswith("plugins/zoo-") else f"{top}/{name}"


def source_of(file: str) -> str:
    return (ROOT / place(file, "zoo")).read_text(encoding="utf-8")


def problems(mutant: Mutant) -> Iterator[str]:
    """What keeps a mutant from being tried: its place is gone, its fault is no Python, a test file is missing."""
    try:
        source = source_of(mutant.file)
        mutated = mutant.apply(source)
        ast.parse(mutated)
        if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
            yield f"{mutant.title!r} changes nothing."
    except (OSError, LookupError, SyntaxError, RuntimeError) as error:
        yield f"{mutant.title!r}: {error}"
    for test in mutant.tests:
        if not (ROOT / place(test, "tests").partition("::")[0]).is_file():
            yield f"{mutant.title!r} names {place(test, 'tests')}, which does not exist."


@dataclass(frozen=True)
class Result:
    """How the tests of a mutant went: "killed", "timeout", "survived", or "fails" where one fails without it, too."""

    title: str
    fault: str
    status: str
    seconds: float
    test: str  # the one that failed, or all that were run


class Laboratory:
    """A copy of the repository in which tests are run, each time by a fork of this process."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.folder, self.timeout = folder / "repository", timeout
        self.log = folder / "log"
        shutil.copytree(ROOT, self.folder, ignore=IGNORE, symlinks=True)
        # some tests ask git which files there are
        subprocess.run("git init -q . && git add -A", shell=True, cwd=self.folder, check=True, capture_output=True)
        self.sound: dict[str, bool] = {}  # which tests pass without a mutant

    def run(self, tests: Sequence[str]) -> tuple[str, str]:
        """("passed" | "failed" | "timeout", the first test that failed)."""
        words = [*(place(test, "tests") for test in tests), "-x", "-n0", "-q", "--no-header", "-rfE"]
        words += ["-p", "no:randomly", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not campaign"]
        child = os.fork()
        if not child:
            self._test(words)
        until = time.monotonic() + self.timeout
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "timeout", ""
            time.sleep(0.05)
        code = os.waitstatus_to_exitcode(ended[1])
        names = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?([^\s\[]+)", self.log.read_text(errors="replace"), re.M)
        return "passed" if code == 0 else "failed", names[0] if names else ""

    def _test(self, words: list[str]) -> None:
        """Run pytest as a new program would, in the copy, and end."""
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(log, number)
        os.chdir(self.folder)
        os.environ.update(PYTHONPATH=str(self.folder), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        sys.path[:] = [str(self.folder), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "zoo", "zoo_pretrained")]:
            del sys.modules[name]
        import pytest

        code = 4
        try:
            code = int(pytest.main(words))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def try_mutant(self, mutant: Mutant) -> Result:
        """Run its tests with the fault, and the one that fails without it."""
        path = self.folder / place(mutant.file, "zoo")
        source = path.read_text(encoding="utf-8")
        start = time.monotonic()
        try:
            path.write_text(mutant.apply(source), encoding="utf-8")
            outcome, test = self.run(mutant.tests)
        finally:
            path.write_text(source, encoding="utf-8")
        seconds = round(time.monotonic() - start, 1)
        if outcome == "failed" and test not in self.sound:
            self.sound[test] = self.run([test] if test else mutant.tests)[0] == "passed"
        status = {"passed": "survived", "timeout": "timeout"}.get(outcome) or (
            "killed" if self.sound[test] else "fails"
        )
        return Result(mutant.title, mutant.fault, status, seconds, test or " ".join(mutant.tests))


def expected_seconds(mutant: Mutant) -> float:
    """How long its test files take, by tests/durations.json."""
    durations = json.loads((ROOT / "tests" / "durations.json").read_text(encoding="utf-8"))
    return sum(durations.get(place(test, "tests"), 1.0) for test in mutant.tests)  # a single test: a second


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", metavar="TEXT", action="append", help="mutants whose number, file or text this is in")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there too")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=900.0, help="of one run of tests")
    options = parser.parse_args()
    numbered = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, 1)
        if not options.only
        or any(text == str(number) if text.isdigit() else text in mutant.title for text in options.only)
    ]
    if wrong := [problem for _, mutant in numbered for problem in problems(mutant)]:
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    if options.list:
        for number, mutant in numbered:
            print(f"{number:3} {mutant.title}  →  {mutant.fault}  [{' '.join(mutant.tests)}]")
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        __import__(name)
    numbered.sort(key=lambda pair: expected_seconds(pair[1]))
    results = []
    with tempfile.TemporaryDirectory(prefix="zoo-mutants-") as folder:
        laboratory = Laboratory(Path(folder), options.timeout)
        for number, mutant in numbered:
            result = laboratory.try_mutant(mutant)
            results.append(result)
            print(f"{number:3} {result.status:8} {result.seconds:6.1f} s  {result.title}  [{result.test}]", flush=True)
            if options.json:
                content = json.dumps([asdict(one) for one in results], indent=1, ensure_ascii=False)
                options.json.write_text(content + "\n", encoding="utf-8")
    counts = {
        status: sum(one.status == status for one in results) for status in ("killed", "timeout", "survived", "fails")
    }
    print(" · ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts["survived"] or counts["fails"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""Say what is installed and whether it fits together, from metadata before anything heavy is imported."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.cli import tables
from zoo.config.option_parser import ParsedOptions
from zoo.config.run_folder import first_rank
from zoo.console import printable
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.plugins import diagnosis, discovery, interfaces, publishing

if TYPE_CHECKING:
    from zoo.cli.import_probe import Outcome

PACKAGES = ("zoo-transformers", "lightning", "torch", "torchvision", "torchmetrics", "jsonargparse", "tokenizers",
         "tensorboard", "rich", "numpy")  # fmt: skip
SLOW = 2.0  # seconds of an import that are worth a warning


installed_version = discovery.installed_version


def torch_mismatch(requires: list[str] | None = None) -> str | None:
    """What is wrong with the pair of torch and torchvision, read from the wheels' metadata; None when it fits."""
    torch, vision = installed_version("torch"), installed_version("torchvision")
    if torch is None:
        return "torch is not installed. Run: pip install torch torchvision"
    if vision is None or "unknown" in (torch, vision):
        return None
    requirements = requires if requires is not None else (distribution("torchvision").requires or [])
    pins = [match[1] for line in requirements if (match := re.match(r"torch\s*\(?==\s*([^\s;,)]+)", line))]
    if not pins or pins[0].partition("+")[0] == torch.partition("+")[0]:
        return None
    return (
        f"torchvision {vision} was built for torch {pins[0]} but torch {torch} is installed.\n"
        f"Run: pip install torch=={pins[0]}"
    )


def check_torch() -> None:
    """Refuse a torch and torchvision that do not fit, before importing them fails with an unrelated message."""
    discovery.tolerate_damaged_metadata()
    problem = torch_mismatch()
    if problem:
        raise UsageError(problem)


def run(options: ParsedOptions) -> int:
    """`zoo doctor`: everything a report of a problem should hold. Exits with 2 when something is wrong."""
    discovery.tolerate_damaged_metadata()
    if options.get("kernels"):
        check_torch()
        return show_kernels(bool(options.get("json")))
    versions = {name: installed_version(name) or "not installed" for name in PACKAGES}
    mismatch = torch_mismatch()
    plugins = _plugins()
    damaged = [
        {"distribution": flaw.package.name, "version": flaw.package.version, "location": flaw.package.home,
         "problem": flaw.reason} for flaw in registry.metadata_flaws()
    ]  # fmt: skip
    packages = [
        {"distribution": package.name, "version": package.version,
         "interfaces": {part.kind: part.interface for part in publishing.parts_of(package)},
         "updates": publishing.updates(package), "advice": publishing.advice(package)}
        for package in publishing.plugin_packages()
    ]  # fmt: skip
    owners = lightning_owners()
    devices = ["unknown: torch cannot be imported safely"] if mismatch else _devices()
    report = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "versions": versions,
        "torch_matches_torchvision": mismatch is None,
        "problem": mismatch,
        "devices": devices,
        "interfaces": {kind: interfaces.current(kind) for kind in registry.KINDS},
        "plugins": plugins,
        "packages": packages,
        "damaged": damaged,
        "disabled": sorted(registry.disabled_names()),
        "lightning_command": owners,
    }
    broken = mismatch is not None or bool(damaged) or any(not plugin["ok"] for plugin in plugins)
    if options.get("json"):
        tables.as_json(report)
        return 2 if broken else 0
    print(f"python       {report['python']}\nsystem       {report['system']}")
    for name, version in versions.items():
        print(f"{name:<18} {version}")
    print(f"torch and torchvision  {mismatch or 'fit'}")
    print(f"devices      {'; '.join(devices)}")
    print(f"`lightning`  {owners}")
    if registry.disabled_names():
        print(f"{registry.DISABLE_VARIABLE}={os.environ[registry.DISABLE_VARIABLE]}{_unknown_names()}")
    print(f"plugins      {'none' if not plugins else ''}")
    for plugin in plugins:
        status = plugin["problem"] or ", but ".join(["ok", *plugin["warnings"]])
        print(f"  {plugin['kind']} {plugin['name']} ({plugin['origin']}): {status}")
    if packages:
        print("packages")
    for package in packages:
        print(f"  {package['distribution']} {package['version']}: {_package_state(package)}")
        for line in (*package["updates"], *(f"advice to its author: {text}" for text in package["advice"])):
            print("\n".join(f"    {row}" for row in line.splitlines()))
    for flaw in registry.metadata_flaws():
        print(f"  {flaw.package.origin}: {flaw.reason} ({flaw.package.home})")
    return 2 if broken else 0


def show_kernels(as_json: bool) -> int:
    """`zoo doctor --kernels`: the classes of calls that were measured on this machine, common ones now if need be."""
    from zoo.parts import cpu_attention, few_row_linear, training_products
    from zoo.system import kernel_choice

    mode = kernel_choice.mode()
    if mode != "plain":
        few_row_linear.measure_common()
        cpu_attention.measure_common()
        training_products.measure()
    path, times = kernel_choice.choice_file(), kernel_choice.stored()
    kernels = {
        words: next(iter(seconds)) if mode == "plain" else kernel_choice.fastest(seconds)
        for words, seconds in times.items()
    }  # plain uses torch's own, the first, whatever was measured
    if as_json:
        tables.as_json({
            "processor": kernel_choice.processor_name(), "mode": mode, "file": str(path),
            "choices": {words: {"kernel": kernels[words], "seconds": seconds} for words, seconds in times.items()},
        })  # fmt: skip
        return 0
    print(f"processor  {printable(kernel_choice.processor_name())}")
    print(f"kernels    {mode} ({kernel_choice.SWITCH}), stored in {printable(str(path))}; delete it to measure again")
    rows = []
    for words, seconds in times.items():
        (torch_kernel, base), *rivals = seconds.items()
        share = [f"{name} {time * 1e6:,.0f} us ({time / base:.2f})" for name, time in rivals]
        rows.append([words, kernels[words], f"{torch_kernel} {base * 1e6:,.0f} us", ", ".join(share)])
    tables.table(["calls", "kernel", "torch's own", "instead"], rows)
    return 0


def _plugins() -> list[dict[str, Any]]:
    """Every part that does not come with zoo, and the outcome of importing it in a child process."""
    from zoo.cli.import_probe import probe

    parts = [part for kind in registry.KINDS for part in registry.installed_parts(kind) if not part.builtin]
    importable = [part for part in parts if not (_is_disabled(part) or part.damage or _refused(part))]
    outcomes = dict(zip(importable, probe(importable), strict=True)) if importable else {}
    return [_report(part, outcomes.get(part)) for part in parts]


def _refused(part: registry.Part) -> bool:
    return bool(diagnosis.version_mismatch(part) or diagnosis.interface_refusal(part))


def _package_state(package: dict[str, Any]) -> str:
    """The interface versions of a package, and whether it must be updated."""
    versions = [f"{kind} v{version}" for kind, version in package["interfaces"].items()]
    state = "update it" if package["updates"] else "nothing to update"
    return f"{state} (written for {', '.join(versions)})" if versions else state


def _is_disabled(part: registry.Part) -> bool:
    return registry.is_disabled(part.distribution)


def _report(part: registry.Part, outcome: Outcome | None) -> dict[str, Any]:
    """The report on a part; a disabled part is no problem."""
    problems = diagnosis.name_problems(part)
    warnings = []
    if outcome:
        problems += [outcome.problem] if outcome.problem else []
        if outcome.seconds >= SLOW and not outcome.problem:
            warnings.append(f"takes {outcome.seconds:.1f} s to import")
        if outcome.printed:
            warnings.append(f"prints on import: {outcome.printed[:80]!r}")
    return {
        "kind": part.kind, "name": part.name, "origin": part.origin,
        "distribution": part.distribution, "version": part.version, "path": part.path,
        "entry_point": part.entry, "location": diagnosis.part_location(part),
        "problem": "; ".join(problems) or None, "ok": not problems or _is_disabled(part),
        "disabled": _is_disabled(part), "warnings": warnings, "seconds": round(outcome.seconds, 2) if outcome else None,
    }  # fmt: skip


def _unknown_names() -> str:
    """Words of ZOO_DISABLE_PLUGINS that name no plugin."""
    odd = sorted(registry.disabled_names() - registry.distributions() - {"1", "0", "all"})
    return f" (no installed plugin: {', '.join(odd)})" if odd else ""


def warn_of_unknown_plugins() -> None:
    """Warn of words of ZOO_DISABLE_PLUGINS that name no installed plugin."""
    if registry.disabled_names() and (unknown := _unknown_names()) and first_rank():
        atomic_files.warn(f"{registry.DISABLE_VARIABLE}={os.environ[registry.DISABLE_VARIABLE]}{unknown}")


def _devices() -> list[str]:
    """What torch can compute on."""
    try:
        import torch
    except Exception as error:  # a broken installation must not break the doctor
        return [f"torch cannot be imported: {type(error).__name__}: {error}".splitlines()[0]]
    devices = [f"cpu with {torch.get_num_threads()} threads"]
    devices += [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def lightning_owners() -> str:
    """Which distribution's script `lightning` on PATH is."""
    owners = sorted(
        {point.dist.name for point in entry_points(group="console_scripts", name="lightning") if point.dist}
    )
    path = shutil.which("lightning")
    if path is None:
        return "not on PATH; use: zoo fit, or python -m zoo fit"
    try:
        text = Path(path).read_bytes()[:4000]
    except OSError:
        text = b""
    if b"zoo.cli" in text:
        others = [name for name in owners if name != registry.BUILTIN]
        return "zoo" + (f" (also claimed by {', '.join(others)})" if others else "")
    return f"{', '.join(name for name in owners if name != registry.BUILTIN) or path}, not zoo; use: zoo fit"

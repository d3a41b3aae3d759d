"""Say what is installed and whether it fits together, from metadata before anything heavy is imported."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import string
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import registry
from zoo.cli import table_printing
from zoo.command_line import ParsedOptions
from zoo.errors import PluginError, UsageError
from zoo.io import atomic_files
from zoo.plugins import description, diagnosis, discovery, publishing
from zoo.system.fresh_process import measure_in_fresh_process

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = string.ascii_letters + string.digits + "._-"  # what the name of a package consists of
SLOW = 2.0  # seconds of an import that are worth a warning
PATIENCE = 20.0  # seconds for one import
# what the process has imported that tries the parts
READY = """
from zoo.plugins import discovery
discovery.tolerate_damaged_metadata()
import torch, lightning.pytorch, zoo.models.stack, zoo.tasks.task, zoo.data.data
"""


@dataclass
class Needs:
    """What zoo and its plugins need: the installed versions, what is wrong with them, and what is worth a note."""

    versions: dict[str, str] = field(default_factory=dict)  # versions of zoo and of the packages that it names
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # versions that only other packages, or an extra of zoo, refuse
    names: set[str] = field(default_factory=set)  # normal names of all that is needed


@dataclass(frozen=True)
class Required:
    """What one line of a package's metadata requires, with what is wrong with it; empty where it fits."""

    name: str
    extras: tuple[str, ...]
    problem: str

    @property
    def version(self) -> str | None:
        """What is installed of it."""
        return installed_version(self.name)


def needs() -> Needs:
    """Compare what the metadata of zoo, of its plugins and of all that these need require with what is installed."""
    plugins = [package.name for package in publishing.plugin_packages()]
    result = Needs({registry.BUILTIN: installed_version(registry.BUILTIN) or "not installed"})
    if not requirements(registry.BUILTIN):
        result.problems.append(f"{registry.BUILTIN} has no metadata: what it requires is unknown. Install it with pip.")
    waiting, done = deque((name, "") for name in (registry.BUILTIN, *plugins)), set[tuple[str, str]]()
    while waiting:
        name, extra = waiting.popleft()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        result.names.add(discovery.normalize_name(name))
        for need in requirements(name, extra):
            direct = name == registry.BUILTIN or name in plugins
            if direct:
                result.versions[need.name] = need.version or "not installed"
            problem = need.problem or (_lost_module(need.name) if direct else "")
            own = direct or need.name in result.versions or need.version is None
            if problem:
                (result.problems if own else result.notes).append(problem)
            waiting += [(need.name, more) for more in ("", *need.extras)] if need.version else []
            result.names.add(discovery.normalize_name(need.name))
    extras = {word for line in _lines(registry.BUILTIN) for word in re.findall(r"extra == ['\"](.+?)['\"]", line)}
    for extra in sorted(extras):
        result.notes += [
            need.problem for need in requirements(registry.BUILTIN, extra) if need.problem and need.version
        ]
    result.problems, result.notes = list(dict.fromkeys(result.problems)), list(dict.fromkeys(result.notes))
    return result


def requirements(name: str, extra: str = "") -> list[Required]:
    """What a package requires, or one of its extras adds to that; without packaging only names can be told."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        lines = (line for line in _lines(name) if not extra and ";" not in line)
        names = [line[: len(line) - len(line.lstrip(NAME))] for line in lines]
        return [
            Required(package, (), "" if installed_version(package) else f"{package} is not installed.")
            for package in names
        ]
    result = []
    for line in _lines(name):
        try:
            need = Requirement(line)
            always = need.marker is None or need.marker.evaluate({"extra": ""})
            added = need.marker is not None and need.marker.evaluate({"extra": extra}) and not always
        except (InvalidRequirement, ValueError):
            continue  # metadata written by hand, which pip would refuse
        if added if extra else always:
            result.append(Required(need.name, tuple(sorted(need.extras)), _unmet(need, name, extra)))
    return result


def _lines(name: str) -> tuple[str, ...]:
    package = discovery.discover().packages.get(discovery.normalize_name(name))
    return package.requirements if package else ()


def _unmet(need: Requirement, name: str, extra: str) -> str:
    """What is wrong with the installed version of what a package requires; empty where it fits or cannot be told."""
    version = installed_version(need.name)
    if version == "unknown" or (version and need.specifier.contains(version, prereleases=True)):
        return ""
    by = f"{name} {installed_version(name)}{f', its extra {extra!r},' if extra else ''} requires"
    return (
        f"{need.name} {f'{version} is installed' if version else 'is not installed'}: {by} "
        f"{need.name}{need.specifier}. Run: pip install {shlex.quote(f'{need.name}{need.specifier}')}"
    )


def _lost_module(name: str) -> str:
    """What is wrong with an installed package whose modules are not there; empty where they are, or none is known."""
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return ""
    modules = {file.parts[0] for file in files if file.parts[1:] == ("__init__.py",)}
    if not modules or any(description.find_spec(module) for module in modules):
        return ""
    missing = " or ".join(sorted(modules))
    return f"{name} is installed, and no module {missing} can be found. Run: pip install --force-reinstall {name}"


installed_version = discovery.installed_version


def torch_mismatch() -> str | None:
    """What is wrong with the pair of torch and torchvision, read from the wheels' metadata; None when it fits."""
    if installed_version("torch") is None:
        return "torch is not installed. Run: pip install torch torchvision"
    return next((need.problem for need in requirements("torchvision") if need.name == "torch" and need.problem), None)


def check_torch() -> None:
    """Refuse a torch and torchvision that do not fit, before importing them fails with an unrelated message."""
    discovery.tolerate_damaged_metadata()
    problem = torch_mismatch()
    if problem:
        raise UsageError(problem)


def run(options: ParsedOptions) -> int:
    """`zoo doctor`: everything a report of a problem should hold. Exits with 2 when something is wrong."""
    discovery.tolerate_damaged_metadata()
    needed = needs()
    mismatch = torch_mismatch()
    plugins = _plugins()
    damaged = [
        {"distribution": flaw.package.name, "version": flaw.package.version, "location": flaw.package.home,
         "problem": flaw.reason} for flaw in registry.metadata_flaws()
    ]  # fmt: skip
    packages = [
        {"distribution": package.name, "version": package.version, "advice": publishing.advice(package)}
        for package in publishing.plugin_packages()
    ]  # fmt: skip
    owners = lightning_owners()
    devices = ["unknown: torch cannot be imported safely"] if mismatch else _devices()
    report = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "versions": needed.versions,
        "torch_matches_torchvision": mismatch is None,
        "problem": mismatch,
        "requirements": needed.problems,
        "notes": needed.notes,
        "devices": devices,
        "plugins": plugins,
        "packages": packages,
        "damaged": damaged,
        "disabled": sorted(registry.disabled_names()),
        "lightning_command": owners,
    }
    harmful = any(_matters(flaw, needed) for flaw in registry.metadata_flaws())
    broken = bool(mismatch or needed.problems) or harmful or any(not plugin["ok"] for plugin in plugins)
    if options.get("json"):
        table_printing.as_json(report)
        return 2 if broken else 0
    print(f"python       {report['python']}\nsystem       {report['system']}")
    for name, version in needed.versions.items():
        print(f"{name:<18} {version}")
    for problem in needed.problems:
        print(f"! {problem}")
    for note in needed.notes:
        print(f"note: {note}")
    fit = "fit" if description.find_spec("packaging") else "unknown without packaging"
    print(f"torch and torchvision  {fit if mismatch is None else mismatch.partition('. Run')[0]}")
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
        print(f"  {package['distribution']} {package['version']}")
        for text in package["advice"]:
            print(f"    advice to its author: {text}")
    for flaw in registry.metadata_flaws():
        print(f"  {flaw.package.origin}: {flaw.reason} ({flaw.package.home})")
    return 2 if broken else 0


def _matters(flaw: discovery.Flaw, needed: Needs) -> bool:
    """Whether damaged metadata concern zoo: its own, those of what it needs, of plugins, or those that stop imports."""
    name, home = discovery.normalize_name(flaw.package.name), flaw.package.home
    plugin = name.startswith(publishing.PREFIX) or bool(flaw.package.requires)
    renamed = name.startswith("~") and any(package.endswith(name.lstrip("~")) for package in needed.names)  # by pip
    return plugin or renamed or name in needed.names or home in discovery.discover().unreadable


def _plugins() -> list[dict[str, Any]]:
    """Every part that does not come with zoo, and the outcome of importing it in a child process."""
    parts = [part for kind in registry.KINDS for part in registry.installed_parts(kind) if not part.builtin]
    importable = [part for part in parts if not (_is_disabled(part) or part.damage or _refused(part))]
    outcomes = dict(zip(importable, try_imports(importable), strict=True)) if importable else {}
    return [_report(part, outcomes.get(part)) for part in parts]


def try_imports(parts: Sequence[registry.Part]) -> Iterator[dict[str, Any]]:
    """What importing each part does in a child process; see `zoo.system.fresh_process.measure_call`."""
    fields = [[asdict(part)] for part in parts]
    yield from measure_in_fresh_process(READY, f"{__name__}:load_part", fields, PATIENCE)


def load_part(fields: Mapping[str, Any]) -> None:
    """Import a part. Raises PluginError if that fails or it is of another kind."""
    part = registry.Part(**fields)
    if registry.kind_of(part.load()) != part.kind:
        raise PluginError(f"{part.path} is not a {part.kind}")


def _refused(part: registry.Part) -> bool:
    return bool(diagnosis.python_mismatch(part) or diagnosis.version_mismatch(part))


def _is_disabled(part: registry.Part) -> bool:
    return registry.is_disabled(part.distribution)


def _report(part: registry.Part, outcome: Mapping[str, Any] | None) -> dict[str, Any]:
    """The report on a part; a disabled part is no problem."""
    problems = diagnosis.name_problems(part)
    warnings, seconds = [], None
    if outcome:
        if "error" in outcome:
            problem = outcome["error"].partition("\n")[0].removeprefix("PluginError: ")
            problems.append(problem.removeprefix(str(part)).lstrip(": "))
        seconds = outcome.get("elapsed")
        if seconds is not None and seconds >= SLOW and "error" not in outcome:
            warnings.append(f"takes {seconds:.1f} s to import")
        if printed := " ".join(outcome.get("said", "").split()):
            warnings.append(f"prints on import: {printed[:80]!r}")
    return {
        "kind": part.kind, "name": part.name, "origin": part.origin,
        "distribution": part.distribution, "version": part.version, "path": part.path,
        "entry_point": part.entry, "location": diagnosis.part_location(part),
        "problem": "; ".join(problems) or None, "ok": not problems or _is_disabled(part),
        "disabled": _is_disabled(part), "warnings": warnings, "seconds": None if seconds is None else round(seconds, 2),
    }  # fmt: skip


def _unknown_names() -> str:
    """Words of ZOO_DISABLE_PLUGINS that name no plugin."""
    odd = sorted(registry.disabled_names() - registry.distributions() - {"1", "0", "all"})
    return f" (no installed plugin: {', '.join(odd)})" if odd else ""


def warn_of_unknown_plugins() -> None:
    """Warn of words of ZOO_DISABLE_PLUGINS that name no installed plugin."""
    from zoo.config.run_folder import first_rank  # here: it needs more than the standard library

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
    """Which distribution's script `lightning` on PATH is: the last that was installed has written it."""
    path = shutil.which("lightning")
    if path is None:
        return "not on PATH; use: zoo fit, or python -m zoo fit"
    try:
        text = Path(path).read_bytes()
    except OSError:
        text = b""
    points = [point for point in entry_points(group="console_scripts", name="lightning") if point.dist]
    owners = {point.dist.name: point.module.encode() in text for point in points if point.dist}
    mine = owners.pop(registry.BUILTIN, False)
    if mine:
        return "zoo" + (f" (also claimed by {', '.join(sorted(owners))})" if owners else "")
    owner = ", ".join(sorted(name for name, writes in owners.items() if writes))
    return f"{owner or f'{path}, of an unknown package'}, not zoo; use: zoo fit"

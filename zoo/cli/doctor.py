"""Say what is installed and whether it fits together, from metadata before anything heavy is imported."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path

from zoo import registry
from zoo.cli import output
from zoo.errors import PluginError, UsageError

SHOWN = ("zoo-transformers", "lightning", "torch", "torchvision", "torchmetrics", "jsonargparse", "tokenizers",
         "tensorboard", "rich", "numpy")  # fmt: skip


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def torch_mismatch(requires: list[str] | None = None) -> str | None:
    """What is wrong with the pair of torch and torchvision, read from the wheels' metadata; None when it fits."""
    torch, vision = installed("torch"), installed("torchvision")
    if torch is None:
        return "torch is not installed. Run: pip install torch torchvision"
    if vision is None:
        return None
    wanted = requires if requires is not None else (distribution("torchvision").requires or [])
    pins = [match[1] for line in wanted if (match := re.match(r"torch\s*\(?==\s*([^\s;,)]+)", line))]
    if not pins or pins[0].partition("+")[0] == torch.partition("+")[0]:
        return None
    return (
        f"torchvision {vision} was built for torch {pins[0]} but torch {torch} is installed.\n"
        f"Run: pip install torch=={pins[0]}"
    )


def check_torch() -> None:
    """Refuse a torch and torchvision that do not fit, before importing them fails with an unrelated message."""
    problem = torch_mismatch()
    if problem:
        raise UsageError(problem)


def doctor(json: bool) -> int:
    """`zoo doctor`: everything a report of a problem should hold. Exits with 2 when something is wrong."""
    versions = {name: installed(name) or "not installed" for name in SHOWN}
    mismatch = torch_mismatch()
    plugins = _plugins()
    owners = lightning_owners()
    devices = ["unknown: torch cannot be imported safely"] if mismatch else _devices()
    report = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "versions": versions,
        "torch_matches_torchvision": mismatch is None,
        "problem": mismatch,
        "devices": devices,
        "plugins": plugins,
        "lightning_command": owners,
    }
    broken = mismatch is not None or any(not plugin["ok"] for plugin in plugins)
    if json:
        output.as_json(report)
        return 2 if broken else 0
    print(f"python       {report['python']}\nsystem       {report['system']}")
    for name, found in versions.items():
        print(f"{name:<18} {found}")
    print(f"torch and torchvision  {mismatch or 'fit'}")
    print(f"devices      {'; '.join(devices)}")
    print(f"`lightning`  {owners}")
    print(f"plugins      {'none' if not plugins else ''}")
    for plugin in plugins:
        print(f"  {plugin['kind']} {plugin['name']} ({plugin['origin']}): {plugin['problem'] or 'ok'}")
    return 2 if broken else 0


def _plugins() -> list[dict[str, object]]:
    """Every part that does not come with zoo, and whether it can be imported."""
    found: list[dict[str, object]] = []
    for kind in registry.KINDS:
        parts = registry.parts(kind)
        for part in parts:
            if part.distribution == registry.BUILTIN:
                continue
            problem = None
            clash = [other for other in parts if other.name.lower() == part.name.lower() and other != part]
            if clash:
                problem = f"also registered by {clash[0].origin}; write its class path: {part.path}"
            else:
                try:
                    part.load()
                except PluginError as error:
                    problem = str(error)
            found.append(
                {"kind": kind, "name": part.name, "origin": part.origin, "problem": problem, "ok": problem is None}
            )
    return found


def _devices() -> list[str]:
    """What torch can compute on."""
    try:
        import torch
    except Exception as error:  # a broken installation must not break the doctor
        return [f"torch cannot be imported: {type(error).__name__}: {error}".splitlines()[0]]
    found = [f"cpu with {torch.get_num_threads()} threads"]
    found += [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


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

"""Every call that changes a file fails in turn: each command goes on with a warning or ends with code 5 and a sentence.

    python -m tests.campaigns.chaos.faults --home DIR                            # each n-th call once, all commands
    python -m tests.campaigns.chaos.faults --home DIR --commands fit-lm --ways once for-ever --all-errors

The n-th open for writing, write, rename, link, fsync, mmap, unlink, mkdir or truncate below the folder of the runs, the
cache or TMPDIR fails with ENOSPC, EIO, ESTALE, EINVAL or EROFS, for every n of a command: that call alone, or it and
all that follow. A library in C that is preloaded (faults.c) counts and refuses them, whoever makes them: Python, torch,
safetensors, numpy. It does not see what C's stdio and direct system calls write; small file systems (`--mount`, as
root) are for those. The command is then repeated, as its user would, and what it left is compared with that of an
undisturbed one to the last bit. Prints one JSON object: calls, outcomes, problems.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.plugin_paths import write_metadata

ERRORS = ("ENOSPC", "EIO", "ESTALE", "EINVAL", "EROFS")
SOURCE = Path(__file__).with_name("faults.c")
LIBRARY = "ZOO_FAULTS"  # names the compiled library in the environment
LINES = 4
FOREVER = 2**40


def preload(home: Path) -> None:
    """Start this program again with the library in front of all others."""
    if os.environ.get(LIBRARY):
        return
    home.mkdir(parents=True, exist_ok=True)
    library = home / "faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-w", "-o", library, SOURCE, "-ldl"], check=True)
    shutil.rmtree(home / "packages", ignore_errors=True)  # `zoo import` comes from one of them
    environment = {**write_metadata(home / "packages"), LIBRARY: str(library), "LD_PRELOAD": str(library)}
    os.execve(sys.executable, [sys.executable, "-m", "tests.campaigns.chaos.faults", *sys.argv[1:]], environment)


def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(os.environ[LIBRARY])
    loaded.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    loaded.faults_hits.restype = ctypes.c_long
    return loaded


@dataclass
class Command:
    """A command whose calls fail: its words, what prepares its folder, and digests of what it leaves."""

    words: Sequence[str]
    prepare: Callable[[Path], None]
    outcome: Callable[[Path], dict[str, str]]
    again: Sequence[str] = ()  # words that are added when it is repeated
    sound: Callable[[Path], list[str]] = lambda home: []  # what is wrong right after the fault
    inside: Callable[[], None] = field(default=lambda: None)  # in the process of the command, before it begins


def arm(home: Path, first: int, last: int, number: int, record: Path | None = None) -> None:
    """Let the calls of this process and its children fail from now on."""
    handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if record else -1
    folders = ":".join(str(home / name) for name in ("site", "cache", "tmp"))
    assert library().faults_arm(folders.encode(), first, last, number, handle) == 0


def live(
    command: Command,
    home: Path,
    words: Sequence[str],
    log: Path,
    prologue: Callable[[], None],
    patience: float = 120.0,
) -> int | None:
    """One process that runs the command to its end, with all that happens when a program exits; its code, or None
    where it has not ended in ``patience`` seconds.
    """
    from tests.campaigns.chaos import lives

    def first() -> None:
        import tempfile

        import zoo.cli
        from zoo.training import checkpoint

        os.environ["ZOO_CACHE"], os.environ["TMPDIR"] = str(home / "cache"), str(home / "tmp")
        tempfile.tempdir = None
        checkpoint.RETRY = 0.0
        main = zoo.cli.main

        def whole(words: list[str]) -> int:
            code = main(words)
            threading._shutdown()
            atexit._run_exitfuncs()
            return code

        zoo.cli.main = whole
        command.inside()
        prologue()

    child = lives.born(list(words), home / "site", log, first)
    code = lives.ended(child, patience)
    if code is None:
        lives.kill(child)
    return code


class Forked:
    """What `zoo compare` takes for subprocess.Popen: `zoo fit` in a fork of this process, which has imported torch."""

    def __init__(self, words: Sequence[str], stdout, env, **_: object) -> None:
        from tests.campaigns.chaos import lives

        self.returncode: int | None = None
        sys.stdout.flush()
        log = os.readlink(f"/proc/self/fd/{stdout.fileno()}")
        place = words.index("fit")
        library = ctypes.CDLL(os.environ[LIBRARY])
        # the output of a run is opened by its parent, and what follows here is none of its calls
        state = ctypes.c_void_p.in_dll(library, "faults_state")
        value, state.value = state.value, None
        self.pid = lives.born(list(words[place:]), Path.cwd(), Path(log), lambda: self._begin(state, value, env))
        state.value = value

    @staticmethod
    def _begin(state: ctypes.c_void_p, value: int | None, env: dict[str, str]) -> None:
        state.value = value
        os.environ.update(env)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (1e9 if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("zoo fit", timeout or 0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode


def forks() -> None:
    """Let `zoo compare` fork its runs."""
    from zoo.compare import parallel_runs

    class Module:
        Popen = Forked

        def __getattr__(self, name: str) -> object:
            return getattr(subprocess, name)

    parallel_runs.subprocess = Module()  # type: ignore[attr-defined]
    parallel_runs.POLL = 0.02


def digests(folder: Path, names: str = "*") -> dict[str, str]:
    """Of the files in a folder by name."""
    import hashlib

    result = sorted(path for path in folder.glob(names) if path.is_file()) if folder.is_dir() else []
    return {path.name: hashlib.sha256(_content(path)).hexdigest()[:16] for path in result}


def _content(path: Path) -> bytes:
    """A file's bytes; of safetensors the tensors by name, since its header is written in any order."""
    content = path.read_bytes()
    if path.suffix != ".safetensors" or len(content) < 8:
        return content
    from safetensors import safe_open

    from tests.campaigns.chaos import toys

    with safe_open(path, "pt") as file:
        return toys.digest({**{name: file.get_tensor(name) for name in file.keys()}, "": file.metadata()}).encode()  # noqa: SIM118


def recipes(home: Path) -> None:
    """The toys in ``site``, with four steps."""
    from tests.campaigns.chaos import toys

    toys.write(home / "site", steps=4, accumulate=1)
    for task in toys.TASKS:
        path = home / "site" / f"{task}.yaml"
        if task == "stream":
            continue
        path.write_text(path.read_text().replace("path: text.txt", "path: text.txt, tokenizer: bpe, vocab_size: 300"))


def fit(task: str) -> Command:
    from tests.campaigns.chaos import toys
    from tests.campaigns.chaos.disks import sound

    run = f"site/runs/{task}/default/s1"
    return Command(
        ["fit", f"{task}.yaml", "--name", "default", "--save-every", "3", "--trainer.val_check_interval", "2"], recipes,
        lambda home: toys.outcome(home / run), ["--requeue"], lambda home: sound(home / run),
    )  # fmt: skip


MEASURED = ("tokens_per_s", "peak_memory_bytes", "seconds")  # of a variant: other ones each time
COMPARE = ["compare", "lm.yaml", "--vary", "model.norm=RMSNorm,LayerNorm", "--trainer.max_steps=2"]


def compared(home: Path, recipe: str = "lm") -> dict[str, str]:
    """Of the runs of a comparison, and what it says of them but for speed."""
    from tests.campaigns.chaos import toys
    from zoo.compare.charts import COSTS

    result = {}
    for run in sorted((home / "site/runs" / recipe).glob("*/s*")):
        if run.is_dir() and run.parent.name != "compare":
            result |= {f"{recipe} {run.parent.name} {name}": value for name, value in toys.outcome(run).items()}
    report = next((home / "site/runs" / recipe / "compare").iterdir())
    answer = json.loads((report / "comparison.json").read_text())
    variants = [without(row, MEASURED) for row in answer["variants"]]
    assert all(len(row["figures"]) == row["seeds"] > 0 for row in variants)
    result[f"{recipe} answer"] = toys.digest(without(answer, ("flags", "variants")) | {"variants": variants})
    measured = {f"{cost}.png" for cost in COSTS}  # drawn only where the variants differ in it, which time decides
    result[f"{recipe} files"] = toys.digest(sorted(set(names(report)) - measured))
    return result


def without(record: dict, keys: Sequence[str]) -> dict:
    """A record without some of its keys."""
    return {key: value for key, value in record.items() if key not in keys}


def names(report: Path) -> list[str]:
    """Of the files of a report, without locks."""
    return [path.name for path in report.iterdir() if path.is_file() and not path.name.startswith(".")]


def compare() -> Command:
    return Command([*COMPARE, "--seeds", "1"], recipes, compared, inside=forks)


def compare_in_series() -> Command:
    """A comparison of two seeds that spends of the error budget of a series, and its looks and tries."""
    words = [*COMPARE, "--seeds", "2", "--series", "tries.json", "--tries", "5"]
    return Command(words, lambda home: finished(home, compare_in_series()), spent, inside=forks)


def spent(home: Path) -> dict[str, str]:
    """Of a comparison, its looks and the tries of its series: a repeated look may not spend twice."""
    from tests.campaigns.chaos import toys

    report = next((home / "site/runs/lm/compare").iterdir())
    looks = json.loads((report / "looks.json").read_text())
    tries = json.loads((home / "site/tries.json").read_text())
    return compared(home) | {"looks": toys.digest(looks), "tries": toys.digest(tries)}


def compare_tasks() -> Command:
    """A comparison in two tasks at once, with two seeds, whose runs are finished, and its scoreboard."""
    words = [COMPARE[0], "lm.yaml", "vit.yaml", *COMPARE[2:], "--seeds", "2"]
    return Command(words, lambda home: finished(home, compare_tasks()), scored, inside=forks)


def scored(home: Path) -> dict[str, str]:
    """Of the comparisons of both tasks, and of what the scoreboard says of them but for speed."""
    from tests.campaigns.chaos import toys

    board = next((home / "site/runs/compare/lm+vit").iterdir())
    answer = json.loads((board / "scoreboard.json").read_text())
    looks = json.loads((board / "looks.json").read_text())
    assert all(set(row["scores"]) == {"lm", "vit"} for row in answer["variants"])
    own = {
        "board": toys.digest(without(answer, ("recipes",))),
        "board's looks": toys.digest(looks),
        "board's files": toys.digest(sorted(names(board))),
    }
    return compared(home) | compared(home, "vit") | own


def compare_attribute() -> Command:
    """What each of two options contributes to the difference of two recipes, with two seeds, of finished runs."""
    words = ["compare", "lm.yaml", "other.yaml", "--attribute", "--trainer.max_steps=2", "--seeds", "2"]
    return Command(words, lambda home: finished(home, compare_attribute()), attributed, inside=forks)


def attributed(home: Path) -> dict[str, str]:
    """Of an attribution: its comparison, and the table of shares in its report."""
    from tests.campaigns.chaos import toys

    report = next((home / "site/runs/lm/compare").iterdir())
    page = (report / "comparison.html").read_text()
    assert "Contribution of each option" in page
    return compared(home) | {"shares": toys.digest(page.count("Contribution of each option"))}


def finished(home: Path, command: Command | None = None) -> None:
    """A comparison whose runs are finished, made once, in ``site``; its answer is still to be given."""
    done = home / "finished"
    command = command or compare()
    if not done.is_dir():
        recipes(home)
        other = (home / "site/lm.yaml").read_text().replace("dropout: 0.1", "dropout: 0.1, norm: RMSNorm, ffn: SwiGLU")
        (home / "site/other.yaml").write_text(other)
        code = live(command, home, command.words, home / "finished.log", lambda: None, 1200.0)
        assert code == 0, (home / "finished.log").read_text()[-2000:]
        shutil.copytree(home / "site", done)
    shutil.rmtree(home / "site", ignore_errors=True)
    shutil.copytree(done, home / "site")
    for reports in [*(home / "site/runs").glob("*/compare"), home / "site/runs/compare"]:
        shutil.rmtree(reports, ignore_errors=True)
    (home / "site/tries.json").unlink(missing_ok=True)


def trained(home: Path, task: str = "lm") -> None:
    """A finished run, made once, in ``site``."""
    done = home / "trained"
    if not done.is_dir():
        recipes(home)
        code = live(fit(task), home, fit(task).words, home / "trained.log", lambda: None)
        assert code == 0, (home / "trained.log").read_text()[-2000:]
        shutil.copytree(home / "site", done)
        shutil.copytree(home / "cache", home / "cache-trained")
    shutil.rmtree(home / "site", ignore_errors=True)
    shutil.copytree(done, home / "site")
    shutil.copytree(home / "cache-trained", home / "cache", dirs_exist_ok=True)


def older(home: Path) -> None:
    """The same, and an older export to be replaced, of other weights."""
    trained(home)
    out = home / "site/out"
    out.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "mine.txt"):
        (out / name).write_text("{}")


def mixed(place: str, reference: dict[str, str]) -> Callable[[Path], list[str]]:
    """Whether a folder of weights holds some files of an old export and some of a new one."""

    def look(home: Path) -> list[str]:
        result = digests(home / place)
        if "config.json" not in result:
            return []
        new = [name for name in reference if result.get(name) == reference[name] and name != "mine.txt"]
        whole = len([name for name in reference if name != "mine.txt"])
        return [] if len(new) in (0, whole) else [f"{place} is a mixture: {new} of {sorted(reference)} are new"]

    return look


RUN = "runs/lm/default/s1"


def commands() -> dict[str, Callable[[], Command]]:
    """Each command by name."""
    outs: dict[str, Command] = {}

    def writing(name: str, words: Sequence[str], place: str, again: Sequence[str] = (), before=trained) -> None:
        outs[name] = Command(words, before, lambda home: digests(home / "site" / place), again)

    writing("export", ["export", RUN, "out"], "out", ["--force"])
    writing("export --force", ["export", RUN, "out", "--force"], "out", before=older)
    writing("export hf", ["export", "hf", "out"], "out", ["--force"], published)
    writing("import", ["import", "theirs", "out"], "out", ["--force"], published)
    writing("generate", ["generate", RUN, "--prompt", "all ", "--length", "8"], "out")
    writing("validate", ["validate", f"{RUN}/config.yaml"], "out")
    vit = RUN.replace("lm", "vit")
    writing("predict", ["predict", f"{vit}/config.yaml"], vit, before=lambda home: trained(home, "vit"))
    writing("new", ["new", "norm", "MyNorm", "--dest", "out"], "out")
    writing("new recipe", ["new", "recipe", "mine"], ".", before=trained)
    writing("cp", ["cp", "lm-tiny", "mine.yaml"], ".", ["--force"])
    outs["export hf"].words = ["export", "imported", "out", "--format", "hf"]
    outs["predict"].outcome = lambda home: digests(home / "site" / vit, "predictions*")
    outs["new recipe"].outcome = outs["cp"].outcome = lambda home: digests(home / "site", "mine.yaml")
    constructors: dict[str, Callable[[], Command]] = {
        f"fit-{task}": lambda t=task: fit(t) for task in ("lm", "translation", "vit", "stream")
    }
    constructors["compare"] = compare
    constructors["compare series"] = compare_in_series
    constructors["compare tasks"] = compare_tasks
    constructors["compare attribute"] = compare_attribute
    constructors["compare finished"] = lambda: replace(compare(), prepare=finished)
    return {**constructors, **{name: lambda n=name: outs[n] for name in outs}}


def published(home: Path) -> None:
    """A checkpoint as its library publishes it, with a tokenizer, in ``site/theirs``, and its import."""
    done = home / "published"
    if not done.is_dir():
        done.mkdir()
        _publish(done)
    shutil.rmtree(home / "site", ignore_errors=True)
    shutil.copytree(done, home / "site")


def _publish(site: Path) -> None:
    """In a process of its own: transformers must not be imported by what is forked."""
    program = (
        "import sys, torch\nfrom pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        "from zoo.data.tokenizer import Tokenizer\nfrom zoo.cli import main\ntorch.manual_seed(0)\n"
        "config = LlamaConfig(vocab_size=257, hidden_size=16, intermediate_size=32, num_hidden_layers=1, "
        "num_attention_heads=2, max_position_embeddings=32)\n"
        "LlamaForCausalLM(config).save_pretrained('theirs')\n"
        "Tokenizer.bytes(['<eos>']).save('theirs/tokenizer.json')\n"
        "sys.exit(main(['import', 'theirs', 'imported']))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, "-c", program], cwd=site, env=environment, check=True, stdout=subprocess.DEVNULL)


def clear(home: Path, command: Command) -> None:
    """Before a round: only what prepares the command is there."""
    for name in ("site", "cache", "tmp"):
        shutil.rmtree(home / name, ignore_errors=True)
        (home / name).mkdir(parents=True)
    command.prepare(home)


def campaign(
    home: Path, name: str, ways: Sequence[str], every: int = 1, all_errors: bool = False, until: float = 1e18
) -> dict:
    """Let every ``every``-th call of a command fail; the figures."""
    command = commands()[name]()
    home.mkdir(parents=True, exist_ok=True)
    record, log = home / "calls.txt", home / "round.log"
    clear(home, command)
    log.unlink(missing_ok=True)
    code = live(command, home, command.words, log, lambda: arm(home, FOREVER, FOREVER, 0, record))
    assert code == 0, log.read_text()[-3000:]
    calls = [line.split(" ", 2)[1:] for line in record.read_text().splitlines()]
    reference = command.outcome(home)
    if name.startswith(("export", "import")):
        command.sound = mixed("site/out", reference)
    kinds = Counter(kind for kind, _ in calls)
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for way in ways:
        numbers = list(range(1, len(calls) + 1, every))
        random.Random(0).shuffle(numbers)  # what there is no time for is missing everywhere alike
        for number in numbers:
            for turn in range(len(ERRORS)) if all_errors else (number,):
                if time.monotonic() > until:
                    counts["not done"] += 1
                    continue
                error = ERRORS[turn % len(ERRORS)]
                what = f"{name}: {way}, {error} in call {number}, {' '.join(calls[number - 1])}"
                result = _round(
                    home, command, reference, (number, FOREVER if way == "for-ever" else number), error, log
                )
                counts.update(result["counts"])
                if result["problems"]:
                    problems.append(f"{what}: {result['problems']}: {result['said'][-1500:]}")
                print(what, dict(result["counts"]), result["problems"], file=sys.stderr, flush=True)
    return {"calls": len(calls), "kinds": dict(kinds), **counts, "problems": problems}


def _round(
    home: Path, command: Command, reference: dict[str, str], span: tuple[int, int], error: str, log: Path
) -> dict:
    """One command with a fault, and its repetition: what happened, and what should not have."""
    from tests.campaigns.chaos import toys

    clear(home, command)
    log.unlink(missing_ok=True)
    code = live(command, home, command.words, log, lambda: arm(home, *span, getattr(errno, error)))
    output = log.read_text(errors="replace")
    warned = [line for line in output.splitlines() if line.startswith("warning:")]
    error_at = max(
        f"\n{output}".rfind("\nerror:"), f"\n{output}".rfind("\nfailed  ")
    )  # the second: of a comparison's run
    complaint = output[error_at:].split("\n\n")[0].strip().splitlines() if error_at >= 0 else []
    if complaint and complaint[0].startswith("failed"):  # the progress of other runs comes behind it
        complaint = [complaint[0], *itertools.takewhile(lambda line: line.startswith("    "), complaint[1:])]
    counts, problems = Counter({"rounds": 1, f"code {code}": 1}), list(command.sound(home))
    differences_: list[str] = []
    if "Traceback" in output or "Exception ignored" in output or "Exception in thread" in output:
        counts["tracebacks"] += 1
        problems.append("a traceback")
    if code == 5:
        if not 0 < len(complaint) <= LINES:
            problems.append(f"{len(complaint)} lines of error")
    elif code == 0:
        try:
            differences_ = toys.differences(command.outcome(home), reference)
        except Exception as failure:
            differences_ = [f"no outcome: {failure!r}"]
        counts["warned" if warned else "unharmed"] += 1
        if differences_ and not warned:
            problems.append(f"lost in silence: {differences_[:4]}")
    else:
        problems.append(f"code {code}")
    if code == 0 and not differences_:
        repeated, differ = 0, []
    else:
        repeated, differ = _repeated(home, command, reference, log)
    if any("event file" in line for line in warned):
        differ = [one for one in differ if not one.startswith("scalars.")]  # the loss that was announced
    if repeated != 0 or differ:
        problems.append(f"repeated: code {repeated}, differs in {differ[:4]}")
    partial_files = [str(p) for p in (home / "site").rglob("*.partial") if p.is_file()] if repeated == 0 else []
    if partial_files:
        problems.append(f"left {partial_files[:3]}")
    counts["equal"] += not differ and repeated == 0
    counts["drafts left"] += len(partial_files)
    return {"counts": counts, "problems": problems, "said": log.read_text(errors="replace")}


def _repeated(home: Path, command: Command, reference: dict[str, str], log: Path) -> tuple[int | None, list[str]]:
    """The command once more on a disk that works: its code, and where its outcome differs."""
    from tests.campaigns.chaos import toys

    code = live(command, home, [*command.words, *command.again], log, lambda: None)
    try:
        return code, toys.differences(command.outcome(home), reference)
    except Exception as failure:
        return code, [f"no outcome: {failure!r}"]


def mounted(home: Path, until: float = 1e18) -> dict:
    """Commands on a file system of their own that is too small, and again on one that is not; needs root."""
    from tests.campaigns.chaos import toys
    from tests.campaigns.chaos.disks import Small

    result: dict[str, dict] = {}
    places = {
        ("export", "site/out"): 8, ("import", "site/out"): 8, ("compare finished", "site/runs/lm/compare"): 16,
        ("fit-lm", "cache"): 4, ("fit-lm", "site/runs"): 120, ("compare", "site/runs"): 64, ("fit-lm", "tmp"): 0,
    }  # fmt: skip
    for (name, place), size in places.items():
        if time.monotonic() > until:
            result[f"{name} in {place}"] = {"problems": ["no time"]}
            continue
        command, room = commands()[name](), home / name.replace(" ", "-")
        log = room / "round.log"
        clear(room, command)
        log.unlink(missing_ok=True)
        assert live(command, room, command.words, log, lambda: None) == 0, log.read_text()[-2000:]
        reference = command.outcome(room)
        clear(room, command)
        log.unlink()
        with Small(room / place, max(size, 4)) as disk:
            if not size:
                disk.fill()
            code = live(command, room, command.words, log, lambda: None)
        output = log.read_text()
        lines = [line for line in output.splitlines() if line.startswith(("warning:", "error:", "failed "))]
        again = _repeated(room, command, reference, log)
        different = (
            [] if code != 0 or size == 0 or place == "cache" else toys.differences(command.outcome(room), reference)
        )
        problems = [what for what in ("Traceback", "a bug in zoo") if what in output]
        problems += [f"code {code}"] * (code not in (0, 5)) + [f"repeated: {again}"] * (again != (0, []))
        problems += ["in silence"] * (code == 0 and not lines and bool(different)) + ["no sentence"] * (
            code == 5 and not lines
        )
        result[f"{name} in {place}"] = {"KiB": size, "code": code, "said": lines[:LINES], "problems": problems}
        print(f"{name} in {place}", result[f"{name} in {place}"], file=sys.stderr, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--commands", nargs="*", default=[])
    parser.add_argument("--ways", nargs="*", default=["once"], choices=["once", "for-ever"])
    parser.add_argument("--every", type=int, default=1, help="only each so-manyeth call")
    parser.add_argument("--all-errors", action="store_true")
    parser.add_argument("--mount", action="store_true", help="as root: small file systems instead")
    parser.add_argument("--minutes", type=float, default=1e9)
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    preload(home)
    from tests.campaigns.chaos import lives

    until = time.monotonic() + 60 * arguments.minutes
    lives.load()
    report = mounted(home, until) if arguments.mount else {}
    for name in () if arguments.mount else arguments.commands or commands():
        since = time.monotonic()
        place = home / name.replace(" ", "-")
        report[name] = campaign(place, name, arguments.ways, arguments.every, arguments.all_errors, until)
        report[name]["seconds"] = round(time.monotonic() - since)
    print(json.dumps(report, indent=1))
    raise SystemExit(any(one["problems"] for one in report.values()))


if __name__ == "__main__":
    main()

"""`zoo check`: whatever a part does, each check gets its line, and the exit code says whether one failed."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import cli_parts
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import forks
from zoo import registry
from zoo.cli.find_command import find_command, parse
from zoo.conformance import check_command, check_process, check_worker
from zoo.errors import PartError, PluginError, UsageError
from zoo.system import group_clock

HERE = Path(__file__).parent
PART = """\
import os
import torch
from torch import nn
from zoo.parts.norm import Norm


class Mine(Norm):
    '''One gain.'''

    def __init__(self, dim: int, eps: float = 1e-5, mode: str = "keep", sizes: tuple[int, ...] = (1,)):
        super().__init__(dim, eps)
        self.mode = mode
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x):
        if self.mode == "die" and x.dtype == torch.bfloat16:
            os._exit(5)
        return (x * self.weight).float() if self.mode == "widen" else x * self.weight


class Other:
    pass
"""


@pytest.fixture
def acted(forked_children, monkeypatch, tmp_path):
    """Children that play the checks of cli_checks.py instead of importing torch."""
    code = (
        f"import sys; sys.path[:] = {[str(HERE), *sys.path]!r}; import cli_checks; "
        "from zoo.conformance import check_worker; "
    )
    monkeypatch.setattr(
        check_process,
        "program",
        lambda: [sys.executable, "-c", f"{code}check_worker.run = cli_checks.run; check_worker.main()"],
    )
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(PART)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


def statuses(out):
    return {name: status for status, name in re.findall(r"^(ok|FAIL|unfinished|known|skipped) +(\w+) +\d", out, re.M)}


def test_every_check_gets_a_line_whatever_the_part_does(acted, zoo):
    code, out, err = zoo(
        "check", "x.Bad", "--only", "fine,fails,aborts,known_failure,leaves,forks,talks,skips", "--timeout", "60"
    )
    assert (code, err) == (1, "")
    result = statuses(out)
    assert [name for name, status in result.items() if status == "FAIL"] == ["fails", "aborts", "leaves"]
    assert [name for name, status in result.items() if status == "ok"] == ["fine", "forks", "talks"]
    lines = out.splitlines()
    under = {
        lines[number - 1].split()[1]: lines[number].strip() for number in range(len(lines)) if lines[number][0] == " "
    }
    assert "        x changed in place.\n        Copy it.\n" in out
    died = "ended the process with code 134 (SIGABRT) during check aborts, in aborts at cli_checks.py:"
    assert under["aborts"].startswith(died)
    assert under["leaves"] == "ended the process with code 7 during check leaves; its last output: good bye"
    assert "too slow on Mondays" in out
    assert "it has no side loss" in out
    summary = r"8 checks of norm x\.Bad \(my-norm 0\.1\.0\): 3 ok, 3 failed, 1 known, 1 skipped in \d+\.\d s"
    assert re.fullmatch(f"{summary}; skipped: it has no side loss", lines[-1])


def test_skips_are_in_the_last_line_and_fail_where_that_is_wanted(acted, zoo):
    code, out, _ = zoo("check", "x.Bad", "--only", "fine,skips")
    assert code == 0
    assert re.search(r"1 ok, 1 skipped in \d+\.\d s; skipped: it has no side loss$", out.splitlines()[-1])
    code, out, _ = zoo("check", "x.Bad", "--only", "fine,skips", "--strict")
    assert code == 1
    assert out.splitlines()[-1].endswith("skipped: it has no side loss – which --strict counts as failed")
    assert zoo("check", "x.Bad", "--only", "fine", "--strict")[0] == 0
    assert zoo("check", "x.Bad", "--only", "known_failure", "--strict")[0] == 0


def test_reasons_are_counted_and_the_rare_ones_left_out():
    report = check_command.Report("norm", "Mine", "here", ())
    for number, reason in enumerate(["a", "b", "a", "c", "d\nmore", "a", "e"]):
        report.add(0.0, f"check{number}", "skipped", reason, 0.0)
    assert report.skips() == "a (3); b; c; 2 for other reasons"


def test_nothing_that_a_part_started_outlives_the_command(acted, zoo, tmp_path):
    assert zoo("check", "x.Bad", "--only", "forks")[0] == 0
    number = int((tmp_path / "forked.pid").read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # dead, and waiting for whoever adopts it
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


@pytest.mark.parametrize(("name", "how"), [("loops", "of processor time"), ("sleeps_forever", "waiting")])
def test_a_check_that_never_ends_is_not_finished_and_the_next_is_run(acted, zoo, name, how):
    code, out, _ = zoo("check", "x.Bad", "--only", f"fine,{name},known_failure", "--timeout", "2")
    assert code == 1
    assert statuses(out) == {"fine": "ok", name: "unfinished", "known_failure": "known"}
    assert re.search(rf"took longer than 2 s,? {how},? during check {name}, in {name} at cli_checks.py:", out)
    assert ": 1 ok, 1 not finished, 1 known in " in out


def test_after_several_that_never_end_the_rest_is_not_run(acted, zoo):
    code, out, _ = zoo("check", "x.Bad", "--only", "loops,sleeps_forever,fine", "--timeout", "1")
    assert (code, statuses(out)["fine"]) == (1, "skipped")
    assert "not run: 2 checks did not finish" in out


@given(limit=st.floats(0.5, 600), share=st.floats(0, 1), used=st.floats(0, 3), waits=st.booleans())
def test_other_processes_take_no_time_of_a_check(limit, share, used, waits):
    """A check that has computed less than its limit goes on however long that takes, unless it computes nothing."""
    processor = used * limit
    wall = 1.01 * limit + processor if waits else processor / max(share, 1.1 * group_clock.IDLE)
    now, computed = 100.0, 5.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_clock.time, "monotonic", lambda: now)
        patch.setattr(group_clock, "processor_seconds", lambda group: computed)
        clock = group_clock.GroupClock(1)
        now, computed = now + wall + 1e-6, computed + (0 if waits else processor)
        exceeded = clock.exceeds(limit)
    if waits:
        assert "waiting" in exceeded
    elif used <= 1:
        assert exceeded == ""
    elif used > 1.001:
        assert "of processor time" in exceeded


def test_the_child_ends_when_the_command_is_killed(acted, tmp_path):
    """The command's own process is the one that dies here, so it is run in another."""
    code = f"{check_process.program()[-1].partition(';')[0]}; sys.path[:] = {[str(HERE), *sys.path]!r}; " + (
        "from zoo.conformance import check_process\n"
        f"check_process.program = lambda: {check_process.program()!r}\n"
        "child = check_process.Child(check_process.Job('', 'x.Bad', [], ['sleeps_forever']))\n"
        "print(child.process.pid, flush=True)\n"
        "for event in child.events(1e9): print(event, flush=True)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    number = int(command.stdout.readline())
    while "'event': 'check'" not in command.stdout.readline():
        pass
    command.kill()
    command.wait()
    for _ in range(200):
        if not Path(f"/proc/{number}").exists() or ") Z" in Path(f"/proc/{number}/stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the child goes on")


def test_a_part_that_cannot_be_imported(acted, zoo):
    code, out, err = zoo("check", "x.Dies")
    assert (code, out) == (3, "")
    assert err.startswith(
        "error: x.Dies cannot be imported: it ended the process with code 134 (SIGABRT), in run at cli_"
    )
    code, _, err = zoo("check", "x.Hangs", "--timeout", "2")
    assert code == 3
    assert re.search("cannot be imported: it took longer than 2 s.*, in run at cli_checks.py:", err)


def test_json(acted, zoo):
    code, out, err = zoo("check", "x.Bad", "--json", "--only", "fine,fails")
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert report["counts"] == {"ok": 1, "FAIL": 1}
    assert report["checks"][1] | {"seconds": 0} == {
        "name": "fails", "status": "FAIL", "sentence": "x changed in place.\nCopy it.", "seconds": 0,
    }  # fmt: skip
    assert (report["kind"], report["name"], report["origin"]) == ("norm", "x.Bad", "my-norm 0.1.0")


def test_a_kind_gives_a_line_for_each_part(acted, zoo):
    code, out, _ = zoo("check", "norms", "--only", "fine,skips")
    assert code == 0
    assert len(out.splitlines()) == len(registry.parts("norm"))
    assert all(re.search(r"^2 checks of norm \w+ \(.*\): 1 ok, 1 skipped in", line) for line in out.splitlines())
    assert len(json.loads(zoo("check", "norm", "--only", "fails", "--json")[1])) == len(registry.parts("norm"))
    assert zoo("check", "norm", "--only", "fails")[0] == 1
    assert "options belong to one part" in zoo("check", "norm", "--eps", "1")[2]


@pytest.mark.parametrize("group", ["norm", "zoo-two"])
def test_a_check_that_no_kind_has_is_refused(two_parts, acted, zoo, group):
    code, _, err = zoo("check", group, "--only", "nope")
    assert (code, err.count("has no check 'nope'. Did you mean 'fine'?")) == (2, 1)


def test_a_check_that_one_kind_has_is_run_for_that_kind(two_parts, acted, zoo):
    code, out, _ = zoo("check", "zoo-two", "--only", "norms_only")
    assert code == 0
    assert sorted(line.split(":")[0] for line in out.splitlines()) == [
        "1 check of norm One (my-norm 0.1.0)",
        "not checked",
    ]


WRONG = {
    "": "zoo check needs KIND: ",
    "norm nope": "unknown norm 'nope'. Available: ",
    "nrom rmsnorm": "unknown kind 'nrom'. Did you mean 'norm'?",
    "nrom": "no kind, class path, package or recipe 'nrom'. Did you mean 'norm'?",
    "rmsnorm": "RMSNorm is a norm: zoo check norm RMSNorm",
    "norm rmsnorm more": "'more' is one word too many",
    "norm rmsnorm --timeout": "'--timeout' needs a number above 0",
    "norm rmsnorm --timeout -3": "'--timeout' must be a number above 0 and at most 604800, got '-3'",
    "norm rmsnorm --timeout inf": "'--timeout' must be a number above 0 and at most 604800, got 'inf'",
    "norm rmsnorm --only": "'--only' needs a value",
    "norm rmsnorm --only shapes,": "'--only' needs names of checks",
    "no-such.yaml": "no recipe or file 'no-such.yaml'",
    "lm-tiny --modle.lr 1": "zoo check has no option '--modle.lr'",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_told_before_a_child_is_started(zoo, monkeypatch, words):
    monkeypatch.setattr(check_process, "program", lambda: pytest.fail("a child was started"))
    code, _, err = zoo("check", *words.split())
    assert code == 2
    assert WRONG[words] in err
    assert len(err.splitlines()) <= 4


def test_options_are_typed_like_those_of_fit(mine):
    from mine import Mine

    from zoo.parts.ffn import MLP, MoE

    def typed_options(part, kind, *words):
        return check_worker.parse_part_options(part, kind, parse(find_command("check"), [kind, *words]).settings)

    assert typed_options(Mine, "norm", "--eps", "1e-3", "--sizes", "[1, 2]") == {"eps": 1e-3, "sizes": (1, 2)}
    assert typed_options(Mine, "norm", "--model.norm.eps=2", "--norm.mode", "die") == {"eps": 2.0, "mode": "die"}
    expert = typed_options(MoE, "ffn", "--expert", "mlp", "--expert.activation", "relu", "--experts", "4")
    assert expert["experts"] == 4
    assert (expert["expert"].func, expert["expert"].keywords) == (MLP, {"activation": "relu"})
    assert typed_options(MoE, "ffn", "--expert.bias", "true")["expert"].keywords == {"bias": True}
    for words, message in {
        "--eps x": "'eps' must be a number, got 'x'",
        "--epz 1": "norm 'Mine' has no option 'epz'. Did you mean 'eps'?",
        "--dim 3": "norm 'Mine' has no option 'dim'",
        "--eps": "'eps' must be a number",
    }.items():
        with pytest.raises(UsageError, match=re.escape(message)):
            typed_options(Mine, "norm", *words.split())


def test_class_paths(mine):
    cls, kind, origin = check_worker.load_class("", "mine.Mine")
    assert (cls.__name__, kind, origin) == ("Mine", "norm", "mine.py")
    assert check_worker.load_class("norm", "zoo.parts.norm.RMSNorm")[2].startswith("zoo-transformers ")
    (mine / "lacking.py").write_text("import no_such_thing\n")
    (mine / "leaving.py").write_text("import sys; sys.exit(4)\n")
    (mine / "wrong.py").write_text("def f(:\n")
    for path, kind, error, message in (
        ("mine.Mime", "", UsageError, "module mine has no class 'Mime'. Did you mean 'Mine'?"),
        ("mine.Mine", "ffn", UsageError, "mine.Mine is a norm, no ffn: zoo check mine.Mine"),
        ("mine.Other", "", UsageError, "mine.Other is not a part"),
        ("mine.os", "", UsageError, "mine.os is not a part"),
        ("zoo.parts.norm.Norm", "", UsageError, "is the base of every norm"),
        ("no_such.Mine", "", UsageError, "there is no module 'no_such' among the installed packages or in"),
        ("mine.no.Such", "", UsageError, "there is no module 'mine.no'"),
        ("lacking.X", "", PluginError, "No module named 'no_such_thing'"),
        ("leaving.X", "", PluginError, "SystemExit: 4"),
        ("wrong.X", "", PluginError, "SyntaxError"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            check_worker.load_class(kind, path)


def test_unknown_checks_are_refused():
    assert list(check_worker.select_checks({"a": 1, "b": 2}, ["b"], "norm")) == ["b"]
    with pytest.raises(UsageError, match=r"norm has no check 'shaps'. Did you mean 'shapes'\?"):
        check_worker.select_checks({"shapes": 1}, ["shaps"], "norm")


def test_the_real_checks_of_a_class_in_the_current_folder(mine):
    """End to end, as a person runs it: the process ends in one check, and the others are still tried."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = ["check", "mine.Mine", "--mode", "die", "--only", "documentation,shapes,dtypes,batch_independence"]
    done = forks.run([sys.executable, "-m", "zoo", *words], env=env, cwd=mine, text=True, timeout=170, nested=True)
    assert (done.returncode, done.stderr) == (1, "")
    result = statuses(done.stdout)
    assert result.pop("dtypes") == "FAIL"
    assert set(result.values()) == {"ok"}
    assert "ended the process with code 5 during check dtypes" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("4 checks of norm Mine (mine.py): 3 ok, 1 failed in ")
    assert not list(mine.rglob("runs"))


def test_a_failing_check_says_what_to_do(mine, forked_children, zoo):
    code, out, _ = zoo("check", "norm", "mine.Mine", "--mode", "widen", "--only", "dtypes")
    assert code == 1
    assert "came back as torch.float32: end with .to(x.dtype)" in out


def test_a_recipe_trains_one_batch_and_leaves_nothing(zoo, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(
        "model: {class_path: CausalLM, init_args: {dim: 16, depth: 1, heads: 2}}\n"
        "data: {class_path: TextFiles, init_args: {path: a.txt, max_length: 8, batch_size: 2}}\n"
        "trainer: {max_steps: 3}\n"
    )
    (tmp_path / "a.txt").write_text("some words to learn from\n" * 30)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    code, out, _ = zoo("check", "mine.yaml", "--model.position", "alibi")
    assert code == 0
    assert "position ALiBi" in out
    last = out.splitlines()[-1]
    assert last.startswith("recipe ok: mine.yaml: CausalLM trained and validated on one batch of TextFiles in ")
    assert json.loads(zoo("check", "mine.yaml", "--json")[1])["task"] == "CausalLM"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "cache", "mine.yaml", "tmp"]
    assert not list((tmp_path / "tmp").glob("zoo-check-*"))
    code, out, err = zoo("check", "mine.yaml", "--model.position", "alibi", "--model.backend", "flash")
    assert (code, out) == (2, "")
    assert "position ALiBi adds a bias to the scores, which backend Flash cannot take" in err


def test_a_part_by_name_that_two_packages_have(zoo, install):
    from cli_parts import part

    install(part("norm", "Twice", "cli_toys:RMS", "a", "1"), part("norm", "Twice", "cli_toys:Layer", "b", "2"))
    code, _, err = zoo("check", "norm", "twice")
    assert code == 2
    assert "two packages register norm 'twice'" in err
    with pytest.raises(PartError):
        check_worker.load_class("norm", "twice")


@pytest.fixture
def two_parts(site):
    body = "from zoo.parts.norm import RMSNorm\nfrom zoo.parts.ffn import MLP\n\n\nclass {0}(RMSNorm):\n    'A norm.'\n"
    points = "[zoo.norm]\nOne = zoo_two:One\n[zoo.ffn]\nTwo = zoo_two:Two\n"
    cli_parts.package(site(), "zoo-two", points, body.format("One") + "class Two(MLP):\n    'Feeds.'\n")
    site()


def test_all_parts_of_a_package_are_checked(two_parts, acted, zoo, tmp_path, monkeypatch):
    (tmp_path / "zoo-two").mkdir()  # the folder of the package is no recipe
    code, out, _ = zoo("check", "zoo_two", "--only", "fine")
    assert (code, [line.split()[3:5] for line in out.splitlines()]) == (0, [["norm", "One"], ["norm", "Two"]]), out
    code, out, _ = zoo("check", "zoo-two", "--only", "fine,fails", "--json")
    assert (code, [one["counts"]["FAIL"] for one in json.loads(out)]) == (1, [1, 1])
    output = zoo("check", "zoo-two", "--only", "fine,fails")[1]
    assert output.count("FAIL    fails") == output.count("        x changed in place.\n        Copy it.\n") == 2

    def refuse(job, timeout):
        raise UsageError("it needs a path")

    monkeypatch.setattr(check_command, "examine", refuse)
    code, out, _ = zoo("check", "zoo-two")
    assert (code, out.count("not checked: ")) == (0, 2)


def test_the_advice_stands_below_the_checks_of_a_plugins_part(two_parts, acted, zoo):
    code, out, _ = zoo("check", "norm", "One", "--only", "fine")
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert code == 0
    assert 'lacks keywords = ["zoo-plugin"] below [project]' in notes[0]
    assert len(notes) == 1
    assert json.loads(zoo("check", "norm", "One", "--only", "fine", "--json")[1])["notes"] == [
        note.removeprefix("note: ") for note in notes
    ]
    assert "note:" not in zoo("check", "norm", "rmsnorm", "--only", "fine")[1]

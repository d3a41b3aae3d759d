"""`python -m bench --gate`: ratios, intervals and verdicts with faked times, and which zoo an entrant imports."""

import io
import json
import subprocess
import tarfile
import zipfile

import pytest

from bench import __main__ as program
from bench import arena, gate
from bench.arena import Entrant, Record
from bench.gate import CONTESTS, PLAIN_TORCH
from bench.gpu import run_apart

ABOUT = {"processor": "Some (R) CPU, amx", "load": "1.0"}


@pytest.fixture
def release(tmp_path):
    (tmp_path / "old" / "zoo").mkdir(parents=True)
    (tmp_path / "old" / "zoo" / "__init__.py").write_text("age = 'old'\n")
    return tmp_path / "old"


def times(monkeypatch, factor, noise=0.01, failed=""):
    """Let every contest take faked times: ours 1 s, the other's ``factor`` s, alternately longer and shorter."""
    calls = []

    def compete(entrants, *, first, turns, steps, clock):
        calls.append([entrant.release for entrant in entrants])
        drift = [1 + turn for turn in range(turns)]  # of the machine, which both feel
        wobble = [1 + noise * (-1) ** turn for turn in range(turns)]
        ours = Record(entrants[0], drift)
        other = Record(entrants[1], [a * b * factor for a, b in zip(drift, wobble, strict=True)], failed=failed)
        return [ours, other]

    monkeypatch.setattr(gate, "compete", compete)
    return calls


@pytest.mark.parametrize(("factor", "noise", "verdict", "code"), [(1.2, 0.01, "faster", 0), (1.0, 0.01, "same", 0),
                                                                 (0.98, 0.001, "same", 0), (0.9, 0.01, "slower", 1),
                                                                 (0.9, 0.3, "same", 0)])  # fmt: skip
def test_verdicts_come_from_intervals_of_paired_turns(factor, noise, verdict, code, tmp_path, monkeypatch, release):
    calls = times(monkeypatch, factor, noise)
    assert gate.run(str(release), ABOUT, turns=6, clock="cpu", results=tmp_path) == code
    (entry,) = json.loads((tmp_path / "some-r-cpu-amx.json").read_text())
    assert len(entry["contests"]) == len(CONTESTS) == 10
    assert {one["verdict"] for one in entry["contests"].values()} == {verdict}
    one = entry["contests"]["gpt2-fp32"]
    assert one["interval"][0] < one["ratio"] < one["interval"][1]
    assert one["ratio"] == pytest.approx(factor, rel=0.06)
    assert calls[0] == ["", str(release)]
    assert calls[-1] == ["", ""], "plain torch"
    assert f"| gpt2-bf16-plain | {PLAIN_TORCH} |" in (tmp_path / "some-r-cpu-amx.md").read_text()


def test_contests_can_be_named(tmp_path, monkeypatch, release, capsys):
    times(monkeypatch, 1.0)
    names = ["generation-1", "gpt2-bf16-plain"]
    monkeypatch.setattr(gate, "RESULTS", tmp_path)
    monkeypatch.setattr(program, "machine", lambda: ABOUT)
    run = gate.run
    monkeypatch.setattr(gate, "run", lambda *call, **options: run(*call, **options, results=tmp_path))
    assert program.main(["--gate", str(release), *names, "--turns", "3"]) == 0
    (entry,) = json.loads((tmp_path / "some-r-cpu-amx.json").read_text())
    assert list(entry["contests"]) == names
    with pytest.raises(SystemExit):
        program.main(["--gate", str(release), "recall"])
    assert "unknown contest of the gate 'recall'" in capsys.readouterr().err


def test_the_interval_is_that_of_students_t_on_logarithms():
    ratio, low, high = gate.paired_ratio([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])
    assert ratio == pytest.approx(2.0)
    assert high / ratio == pytest.approx(ratio / low) == pytest.approx(2 ** (4.302653 / 3**0.5), rel=1e-5)


def test_runs_are_added_to_those_before_and_a_failure_is_no_pass(tmp_path, monkeypatch, release):
    times(monkeypatch, 1.0)
    assert gate.run(str(release), ABOUT, turns=3, clock="cpu", results=tmp_path) == 0
    times(monkeypatch, 1.0, failed="ImportError: no module\nmore")
    assert gate.run(str(release), ABOUT, turns=3, clock="cpu", results=tmp_path) == 1
    entries = json.loads((tmp_path / "some-r-cpu-amx.json").read_text())
    assert len(entries) == 2
    assert entries[1]["contests"]["vit-bf16"]["error"] == f"{gate.RELEASE}: ImportError: no module"
    assert (tmp_path / "some-r-cpu-amx.md").read_text().count("## ") == 2


def test_an_entrant_of_a_release_imports_its_zoo(release):
    def zoo_of(folder):
        import zoo.models  # as the parent may have done

        assert zoo.models
        arena.use_release(folder)
        import zoo

        return {"age": getattr(zoo, "age", "new")}

    result = run_apart(lambda sizes: zoo_of(str(release)), None, 60)
    assert (result["error"], result["figures"]) == ("", {"age": "old"})


@pytest.mark.parametrize(("module", "function"), [("system/malloc", "keep_freed_memory"), ("memory", "keep")])
def test_freed_memory_is_kept_by_releases_of_either_layout(release, module, function):
    """Version 0.1.0 has another module: a whole gate against it failed in every contest."""
    path = release / "zoo" / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"import zoo\n\ndef {function}():\n    zoo.age = 'kept by the release'\n")
    (release / "zoo" / "steps.py").write_text("def build():\n    return None\n")

    def age_of(entrant):
        arena._build(entrant)
        import zoo

        return {"age": zoo.age}

    entrant = Entrant(gate.RELEASE, "zoo.steps:build", {}, keep=True, release=str(release))
    result = run_apart(lambda sizes: age_of(entrant), None, 60)
    assert (result["error"], result["figures"]) == ("", {"age": "kept by the release"})


def test_entrants_name_the_release_that_they_import(release):
    ours, other = CONTESTS[0].entrants(str(release))
    assert (ours.release, other.release) == ("", str(release))
    assert isinstance(ours, Entrant)
    assert ours.factory == other.factory


def test_releases_are_folders_wheels_and_revisions(tmp_path, release):
    assert gate.unpack(str(release), tmp_path / "a") == release
    wheel = tmp_path / "zoo-1.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("zoo/__init__.py", "age = 'wheel'\n")
    assert (gate.unpack(str(wheel), tmp_path / "b") / "zoo" / "__init__.py").read_text() == "age = 'wheel'\n"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(release / "zoo", "zoo")
    folder = gate.unpack("v0.1.0", tmp_path / "c", lambda revision: archive.getvalue())
    assert (folder / "zoo" / "__init__.py").read_text() == "age = 'old'\n"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no folder zoo"):
        gate.unpack(str(tmp_path / "empty"), tmp_path / "d")

    def no_revision(revision):
        raise subprocess.CalledProcessError(128, "git")

    with pytest.raises(ValueError, match="no revision"):
        gate.unpack("nonsense", tmp_path / "e", no_revision)


def test_the_command_hands_its_release_over(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ZOO_BF16", "0")
    monkeypatch.setattr(program, "machine", lambda: ABOUT)
    monkeypatch.setattr(gate, "run", lambda *call, **options: calls.append((call, options)) or 1)
    assert program.main(["--gate", "v0.1.0", "--turns", "4", "--clock", "cpu"]) == 1
    assert calls == [(("v0.1.0", ABOUT), {"turns": 4, "clock": "cpu", "names": None})]
    with monkeypatch.context() as patch:
        patch.setattr(gate, "last_tag", lambda: "v0.2.0")
        program.main(["--gate"])
    assert calls[1][0][0] == "v0.2.0"
    monkeypatch.setattr(gate, "_git", lambda *words: "")
    with pytest.raises(SystemExit):
        program.main(["--gate"])
    assert "no tag" in capsys.readouterr().err

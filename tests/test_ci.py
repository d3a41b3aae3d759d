"""The script that judges a checkout must be able to fail."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
README = (SCRIPT.parents[1] / "README.md").read_text()
STEPS = ("pip", "pytest", "ruff", "mypy")


def run_script(tmp_path, failing=None, readme=README, **environment):
    """Run a copy of the script in an empty folder; programs that it calls are stand-ins, of which `failing` fails."""
    script = tmp_path / "checkout" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.read_text())
    (tmp_path / "checkout" / "README.md").write_text(readme)
    programs = tmp_path / "programs"
    programs.mkdir()
    log = tmp_path / "log"
    for name in STEPS:
        code = 1 if name == failing else 0
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> {log}\nexit {code}\n")
        (programs / name).chmod(0o755)
    # the environment that README's line makes has the stand-ins
    (programs / "python3").write_text(f'#!/bin/sh\nmkdir -p "$3" && ln -s {programs} "$3/bin"\n')
    (programs / "python3").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path), **environment}
    done = subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, log.read_text().split() if log.exists() else []


def test_the_script_passes_where_every_step_passes(tmp_path):
    code, steps = run_script(tmp_path)
    assert code == 0
    assert steps == ["pip", "pytest", "ruff", "ruff", "mypy"]


@pytest.mark.parametrize("failing", STEPS)
def test_the_script_fails_where_any_step_fails(tmp_path, failing):
    code, steps = run_script(tmp_path, failing)
    assert code != 0
    assert steps[-1] == failing


def test_the_script_fails_where_the_readme_has_no_line_that_tests(tmp_path):
    code, steps = run_script(tmp_path, readme=README.replace(".venv/bin/pytest", "pytest --lf"))
    assert (code != 0, steps) == (True, [])


def test_the_script_fails_where_the_package_index_cannot_be_reached(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    nowhere = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(["bash", str(SCRIPT)], env={**env, **nowhere}, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert "passed" not in done.stdout

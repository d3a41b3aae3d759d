"""A place where plugins are installed as their users install them."""

import json
import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
# commands in forks of one process that has imported the libraries, and neither zoo nor a plugin
SERVER = """
import json, os, sys
import torch, lightning.pytorch, torchmetrics, jsonargparse
answers = os.fdopen(os.dup(1), 'w')
for line in sys.stdin:
    words, prefix = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in ((1, 'out'), (2, 'err')):
            os.dup2(os.open(f'{prefix}.{name}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 1
        try:
            from zoo.cli import main
            sys.argv = ['zoo', *words]
            code = main(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""
SHORT = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1"]


class Home:
    """A fresh virtual environment that sees the packages of this one, and nothing that is installed into it later."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        self.server: subprocess.Popen[str] | None = None
        self.env = {
            **os.environ, "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "ZOO_DISABLE_PLUGINS"):
            self.env.pop(name, None)

    def create(self) -> None:
        venv.create(self.folder / "venv", with_pip=True, symlinks=True)
        site = next((self.folder / "venv" / "lib").glob("python3*")) / "site-packages"
        outer = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (site / "outer.pth").write_text("\n".join([*outer, str(ROOT)]) + "\n")
        program = self.folder / "venv" / "bin" / "zoo"
        program.write_text(f"#!{self.python}\nimport sys\nfrom zoo.cli import main\nsys.exit(main())\n")
        program.chmod(0o755)

    def run(self, line: str, cwd: Path | None = None, timeout: int = 600) -> subprocess.CompletedProcess:
        command = ["bash", "-c", line]
        place = cwd or self.folder
        return subprocess.run(command, env=self.env, cwd=place, capture_output=True, text=True, timeout=timeout)

    def fine(self, line: str, cwd: Path | None = None) -> str:
        done = self.run(line, cwd)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def zoo(self, line: str) -> subprocess.CompletedProcess:
        """A command of zoo in a process that need not import torch again."""
        if self.server is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            command = [str(self.python), "-c", SERVER]
            self.server = subprocess.Popen(command, env=self.env, cwd=self.folder, **pipes)
        words, prefix = shlex.split(line), self.folder / f"command-{os.getpid()}"
        print(json.dumps([words, str(prefix)]), file=self.server.stdin, flush=True)
        code = int(self.server.stdout.readline())
        out, err = (Path(f"{prefix}.{name}").read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(words, code, out, err)

    def close(self) -> None:
        if self.server is not None:
            self.server.stdin.close()
            self.server.wait(60)

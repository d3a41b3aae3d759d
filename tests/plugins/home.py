"""A place where plugins are installed as their users install them."""

import importlib.util
import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

from tests import forks

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
SHORT = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1"]
# `python -m`, where a package was installed after the process that forks had started
WITH_NEW_PACKAGES = (
    "import runpy, site, sys; site.addsitedir({site!r}); sys.argv = sys.argv[1:]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


class Home:
    """A fresh virtual environment that sees the packages of this one, and nothing that is installed into it later."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        self.server: forks.Server | None = None
        self.env = {
            **os.environ, "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "ZOO_DISABLE_PLUGINS"):
            self.env.pop(name, None)

    def create(self) -> None:
        with_pip = importlib.util.find_spec("pip") is None  # a copy takes seconds: the outer one serves as well
        venv.create(self.folder / "venv", with_pip=with_pip, symlinks=True)
        outer = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (self.site / "outer.pth").write_text("\n".join([*outer, str(ROOT)]) + "\n")
        for name, module in (("zoo", "zoo.cli"), *([] if with_pip else [("pip", "pip._internal.cli.main")])):
            program = self.folder / "venv" / "bin" / name
            program.write_text(f"#!{self.python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
            program.chmod(0o755)

    @property
    def site(self) -> Path:
        """Where packages are installed."""
        return next((self.folder / "venv" / "lib").glob("python3*")) / "site-packages"

    def run(self, line: str, cwd: Path | None = None, timeout: int = 600) -> subprocess.CompletedProcess:
        command = ["bash", "-c", line]
        place = cwd or self.folder
        return subprocess.run(command, env=self.env, cwd=place, capture_output=True, text=True, timeout=timeout)

    def fine(self, line: str, cwd: Path | None = None) -> str:
        done = self.run(line, cwd)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def fork(self, line: str, cwd: Path | None = None, new_packages: bool = False) -> subprocess.CompletedProcess:
        """``python -m LINE`` in a fork of a process that has imported the libraries, and neither zoo nor a plugin.

        With ``new_packages`` it finds what pip has installed since that process started.
        """
        if self.server is None:
            self.server = forks.Server(str(self.python), self.env)
        code = WITH_NEW_PACKAGES.format(site=str(self.site))
        command = [self.python, *(["-c", code] if new_packages else ["-m"]), *shlex.split(line)]
        options = {"env": self.env, "cwd": cwd or self.folder, "text": True, "timeout": 600}
        return forks.run(command, by=self.server, nested=True, **options)

    def close(self) -> None:
        if self.server is not None:
            self.server.close()

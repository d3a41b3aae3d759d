"""A place where plugins are installed as their users install them."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
SHORT = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "1"]


class Home:
    """A fresh virtual environment that sees the packages of this one, and nothing that is installed into it later."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        self.env = {
            **os.environ, "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
            self.env.pop(name, None)

    def create(self) -> None:
        venv.create(self.folder / "venv", with_pip=True, symlinks=True)
        site = next((self.folder / "venv" / "lib").glob("python3*")) / "site-packages"
        (site / "outer.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
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

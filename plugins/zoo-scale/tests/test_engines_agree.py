"""One comparison by every engine: the same runs and the same table, bit for bit. A campaign of many minutes."""

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest
from engines import DaskScheduler, DaskSlurm, Engine, SubmititSlurm, require_slurm

pytest.importorskip("distributed", reason="pip install 'zoo-scale[dask]'")
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(7200)]
COMPARISON = (
    "lm-tiny --vary model.position=learned,rope,none --seeds 5 --model.dim 8 --model.depth 1 --model.heads 2 "
    "--data.batch_size 2 --data.max_length 16 --trainer.max_steps 4 --trainer.val_check_interval 2 "
    "--trainer.limit_val_batches 2 --trainer.accelerator cpu"
)
CLOCK = ("seconds", "per_s", "cost", "digest", "memory", "speed", "path", "folder", "created", "command", "time")


class Processes(Engine):
    name = "processes"


def without_clock(value):
    """Nested plain values without what a clock, a memory or a folder's name gives."""
    if isinstance(value, dict):
        pairs = {key: content for key, content in value.items() if not any(word in key for word in CLOCK)}
        return {key: without_clock(content) for key, content in pairs.items()}
    return [without_clock(member) for member in value] if isinstance(value, list) else value


def table_and_runs(folder, environment):
    """The comparison of finished runs as JSON, and the record of each run."""
    words = [sys.executable, "-m", "zoo", "compare", "runs/lm-tiny", "--json"]
    answer = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    table = json.loads(answer.stdout)
    table["flags"] = [flag for flag in table["flags"] if not flag["sentence"].startswith("speed")]
    records = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in folder.rglob("ledger.json")}
    return without_clock({"table": table, "runs": records})


def test_every_engine_gives_the_same_table(tmp_path):
    require_slurm()
    digests = {}
    for engine in (Processes, Engine, DaskScheduler, SubmititSlurm, DaskSlurm):
        home = tmp_path / engine.__name__
        (home / "service").mkdir(parents=True)
        os.chdir(home)
        began = time.monotonic()
        with engine(home / "service") as site:
            environment = {**site.environment, "OMP_NUM_THREADS": "1"}
            environment.pop("ZOO_DISABLE_PLUGINS", None)
            words = [sys.executable, "-m", "zoo", "compare", *COMPARISON.split(), "--jobs", "2"]
            words += ["--executor", site.name]
            done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=3600)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        content = json.dumps(table_and_runs(home, environment), sort_keys=True)
        (home / "content.json").write_text(content)
        digests[site.name.partition(":1")[0]] = hashlib.sha256(content.encode()).hexdigest()[:16]
        print(f"{site.name}: {time.monotonic() - began:.0f} s, {digests[list(digests)[-1]]}", flush=True)
    assert len(set(digests.values())) == 1, digests

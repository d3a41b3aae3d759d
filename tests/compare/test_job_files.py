"""Job files are right for their shells and schedulers, and an array of SLURM gives the table of an undisturbed run."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.compare import one_node_slurm
from tests.compare.toy_site import make_site, read_table
from zoo.compare import executor, job_files
from zoo.compare.executor import ShardedCommand, count_shards, file_name, find_executor, make_files, parse_resources
from zoo.compare.job_files import time_limit
from zoo.errors import UsageError

WORDS = ("./my recipe.yaml", "--vary", "model.norm={class_path: 'RMSNorm'},LayerNorm", "--model.text=$(reboot) `x` $$1")
SHELLS = [name for name in ("sh", "dash", "bash", "ksh") if shutil.which(name)]
RESOURCES = {"slurm": "gpus=1,cpus=8,memory=16G,time=1-12,partition=gpu-a", "k8s": "image=a/zoo:1,claim=c",
             "sh": "gpus=2"}  # fmt: skip
ZOO = r"""#!/bin/bash
printf '%s\0' "GPU=${CUDA_VISIBLE_DEVICES-none}" "$@" >"calls/$(date +%s%N)-$$"
if [ -e hang ]; then
    trap 'echo saved >>signals; exit 143' USR1 TERM
    echo ready >>ready
    for _ in {1..600}; do sleep 0.05; done
fi
"""


def files_of(kind, shards=3, words=WORDS, resources=None):
    executor_of_kind = find_executor(kind)
    resources = parse_resources(executor_of_kind, RESOURCES[kind] if resources is None else resources)
    return make_files(executor_of_kind, ShardedCommand(words, "norm+ffn", shards, resources))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder where programs of the schedulers are scripts that write down how they were called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "calls").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def program(name, text):
        path = tmp_path / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    program("zoo", ZOO)
    return program


def calls():
    """How zoo was called, the first one first: its devices and arguments."""
    return [path.read_text().split("\0")[:-1] for path in sorted(Path("calls").iterdir())]


@pytest.mark.parametrize("kind", ["slurm", "k8s", "sh"])
def test_files_are_valid_and_say_nothing_of_this_machine(kind, site):
    files = files_of(kind)
    executor.write_files(files)
    assert len(files) == (2 if kind == "sh" else 3)
    for name, text in files.items():
        assert str(Path.cwd()) not in text
        assert os.uname().nodename not in text.replace("my recipe", "") or len(os.uname().nodename) < 4
        if name.endswith(".yaml"):
            (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
            text = container["args"][0].replace("$$", "$")
            assert text.startswith("exec zoo compare './my recipe.yaml'")
            Path(name).with_suffix(".sh").write_text(text)
            name = str(Path(name).with_suffix(".sh"))
        if name.endswith(".sh"):
            assert text.startswith(("#!/bin/sh\n", "exec ")), "what is called by sh is written for it"
        for shell in ["bash"] if name.endswith(".sbatch") else SHELLS:
            result = subprocess.run([shell, "-n", name], capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
    executor.write_files(files)  # the same again
    Path(next(iter(files))).write_text("mine")
    with pytest.raises(UsageError, match="exists, and is not what this command writes"):
        executor.write_files(files)


def test_a_shard_is_called_with_the_words_as_they_were(site):
    executor.write_files(files_of("sh"))
    subprocess.run(["sh", "norm-ffn-sh/shard.sh", "2"], check=True)
    assert calls() == [["GPU=none", "compare", *WORDS, "--shard", "2/3"]]
    assert subprocess.run(["sh", "norm-ffn-sh/shard.sh"], capture_output=True).returncode == 2
    for text, index in ((files_of("k8s")["norm-ffn-k8s/shards.yaml"], "1"),):
        (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
        script = [part.replace("$$", "$") for part in (*container["command"], *container["args"])]
        subprocess.run(script, check=True, env={**os.environ, "JOB_COMPLETION_INDEX": index})
    assert calls()[1] == ["GPU=none", "compare", *WORDS, "--shard", "2/3"]


@pytest.mark.parametrize("shell", SHELLS)
def test_all_shards_on_one_machine_have_devices_of_their_own_and_then_there_is_a_table(shell, site, monkeypatch):
    executor.write_files(files_of("sh"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,GPU-x,GPU-y,9")
    subprocess.run([shell, "norm-ffn-sh/run.sh"], check=True)
    *shards, table = calls()
    assert sorted((each[0], each[-1]) for each in shards) == [
        ("GPU=0,1", "1/3"), ("GPU=2,3", "2/3"), ("GPU=GPU-x,GPU-y", "3/3"),
    ]  # fmt: skip
    assert table[1:] == ["compare", *WORDS]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    result = subprocess.run([shell, "norm-ffn-sh/run.sh"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "3 shards need 6 GPUs here, and there are 5" in result.stderr
    assert len(calls()) == 4


@pytest.mark.parametrize("shell", SHELLS)
def test_a_stop_of_all_shards_reaches_each_of_them(shell, site):
    executor.write_files(files_of("sh", resources=""))
    Path("hang").touch()
    process = subprocess.Popen([shell, "norm-ffn-sh/run.sh"])
    wait_for(lambda: Path("ready").is_file() and Path("ready").read_text() == "ready\n" * 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert Path("signals").read_text() == "saved\n" * 3
    assert len(calls()) == 3  # and there is no table


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shard_that_fails_is_named_and_the_table_follows(shell, site):
    site("zoo", '#!/bin/sh\ncase "$*" in *--shard*2/3) exit 7 ;; *--shard*) exit 0 ;; *) echo TABLE; exit 13 ;; esac\n')
    executor.write_files(files_of("sh", resources=""))
    result = subprocess.run([shell, "norm-ffn-sh/run.sh"], capture_output=True, text=True)
    assert result.returncode == 13
    assert result.stdout == "TABLE\n"
    assert "a shard ended with exit code 7" in result.stderr


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return value


@pytest.mark.parametrize(
    ("job", "number", "requeue"),
    [("shards", signal.SIGUSR1, ["requeue", "77_2"]), ("table", signal.SIGUSR1, ["requeue", "78"]),
     ("shards", signal.SIGTERM, None)],
)  # fmt: skip
def test_a_job_that_runs_out_of_time_saves_its_runs_and_is_requeued(site, job, number, requeue):
    """One that is cancelled saves them too, and is not requeued."""
    site("scontrol", '#!/bin/bash\necho "$*" >>requeued\n')
    executor.write_files(files_of("slurm"))
    Path("hang").touch()
    variables = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "78"}
    process = subprocess.Popen(["bash", f"norm-ffn-slurm/{job}.sbatch"], env={**os.environ, **variables})
    wait_for(calls)
    time.sleep(0.3)  # until the script has set its traps
    process.send_signal(number)
    assert process.wait(20) == 143
    assert Path("signals").read_text() == "saved\n"
    assert (Path("requeued").read_text().split() if requeue else None) == requeue
    assert Path("requeued").exists() is bool(requeue)
    variables["SLURM_RESTART_COUNT"] = str(job_files.REQUEUES)
    process = subprocess.Popen(["bash", f"norm-ffn-slurm/{job}.sbatch"], env={**os.environ, **variables})
    wait_for(lambda: len(calls()) == 2)
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(20) == 143
    assert Path("requeued").exists() is bool(requeue)
    assert not requeue or len(Path("requeued").read_text().splitlines()) == 1


def test_a_job_that_ends_passes_on_its_exit_code(site):
    site("zoo", "#!/bin/bash\nexit 5\n")
    executor.write_files(files_of("slurm"))
    assert subprocess.run(["bash", "norm-ffn-slurm/table.sbatch"]).returncode == 5


def test_slurm_is_asked_for_resources_and_for_the_table_after_all_shards(site):
    files = files_of("slurm", shards=8)
    options = [line.removeprefix("#SBATCH ") for line in files["norm-ffn-slurm/shards.sbatch"].splitlines()
               if line.startswith("#SBATCH")]  # fmt: skip
    assert {"--array=1-8", "--requeue", f"--signal=B:USR1@{job_files.GRACE_SECONDS}", "--gres=gpu:1", "--mem=16G",
            "--cpus-per-task=8", "--time=1-12", "--partition=gpu-a"} <= set(options)  # fmt: skip
    assert "--array" not in files["norm-ffn-slurm/table.sbatch"]
    site("sbatch", '#!/bin/bash\necho "$*" >>submitted\necho "$(wc -l <submitted);cluster"\n')
    executor.write_files(files)
    text = subprocess.run(["sh", "norm-ffn-slurm/submit.sh"], check=True, capture_output=True, text=True).stdout
    assert Path("submitted").read_text().splitlines() == [
        "--parsable norm-ffn-slurm/shards.sbatch", "--parsable --dependency=afterany:1 norm-ffn-slurm/table.sbatch",
    ]  # fmt: skip
    assert "table:  job 2, norm-ffn-slurm/table.log" in text


def test_kubernetes_waits_for_the_shards_before_the_table(site, monkeypatch):
    site(
        "kubectl",
        '#!/bin/bash\necho "$*" >>calls.txt\nif [ "$1" = get ]; then [ "$(grep -c ^get calls.txt)" -gt 2 ] && '
        "echo SuccessCriteriaMet Complete; exit 0; fi\n",
    )
    monkeypatch.setenv("POLL_SECONDS", "0.1")
    files = files_of("k8s", resources=f"{RESOURCES['k8s']},gpus=1,cpus=4,memory=16G")
    executor.write_files(files)
    subprocess.run(["sh", "norm-ffn-k8s/submit.sh"], check=True, timeout=30)
    assert [line.split()[0] for line in Path("calls.txt").read_text().splitlines()] == ["apply", *["get"] * 3, "apply"]
    job = yaml.safe_load(files["norm-ffn-k8s/shards.yaml"])
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (3, "Indexed")
    assert pod["terminationGracePeriodSeconds"] == job_files.GRACE_SECONDS > job_files.GRACE
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1", "cpu": "4", "memory": "16G"}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "c"}
    assert "completionMode" not in yaml.safe_load(files["norm-ffn-k8s/table.yaml"])["spec"]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("slurm", "gpu=1", r"jobs for slurm have no 'gpu'. Did you mean 'gpus'"),
        ("slurm", "image=a", "jobs for slurm have no 'image'"),
        ("slurm", "gpus=0", "write it as gpus=1"),
        ("slurm", "memory=16", "write it as memory=16G"),
        ("slurm", "partition=a b", "write it as partition=gpu"),
        ("slurm", "time=4h", "write it as time=04:00:00"),
        ("slurm", "time=2", "a job is stopped 120 seconds before its time is over"),
        ("k8s", None, "--emit k8s needs the container image with zoo: --resources image="),
        ("k8s", "image=a", "needs the volume claim that all pods share: --resources claim=runs"),
        ("sh", "time=60", "There are: gpus"),
    ],
)
def test_wrong_resources_are_refused(kind, text, message):
    with pytest.raises(UsageError, match=message):
        parse_resources(find_executor(kind), text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 3600), ("60:30", 3630), ("1:00:05", 3605), ("1-12", 129600), ("1-0:30", 88200), ("2-01:00:01", 176401)],
)
def test_a_time_limit_is_read_as_slurm_reads_it(text, seconds):
    assert time_limit(text) == seconds


def test_a_shard_has_a_seed_at_least():
    assert count_shards(None, range(8)) == 8
    assert count_shards(3, range(8)) == 3
    with pytest.raises(UsageError, match="--shards 9: there are 8 seeds"):
        count_shards(9, range(8))


@pytest.mark.parametrize(
    ("title", "name"), [("norm+ffn", "norm-ffn"), ("a b;rm -rf $x", "a-b-rm-rf-x"), ("…", "comparison-b4935894")]
)
def test_titles_need_no_quotes_in_file_names(title, name):
    assert file_name(title) == name


# SLURM itself

COMPARE = ("compare", "./toy.yaml", "--vary", "model.norm=RMSNorm,LayerNorm", "--seeds", "8")


def journal_of_starts(folder):
    """The attempts of every run, by its log."""
    return {str(path.relative_to(folder)): path.read_text().count("$ ") for path in folder.glob("runs/toy/*/s*.log")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same comparison in one process."""
    site = make_site(tmp_path_factory.mktemp("undisturbed") / "site")
    subprocess.run([sys.executable, "-m", "zoo", *COMPARE, "--jobs", "2"], cwd=site, check=True, capture_output=True,
                   env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=1800)  # fmt: skip
    return site


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(one_node_slurm.missing_programs()), reason="SLURM is absent: apt-get install slurm-wlm munge")
def test_an_array_of_eight_shards_of_which_some_are_killed_gives_one_table(tmp_path, undisturbed, monkeypatch):
    """One task is stopped as by its time limit, one is killed with `kill -9` and requeued."""
    site = make_site(tmp_path / "site")
    (tmp_path / "slurm").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "zoo").write_text(f'#!/bin/sh\nexec {sys.executable} -m zoo "$@"\n')
    (programs / "zoo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    subprocess.run(["zoo", *COMPARE, "--emit", "slurm", "--resources", "cpus=1,time=60"], cwd=site, check=True)
    with one_node_slurm.Cluster(tmp_path / "slurm") as cluster:
        for name in ("shards", "table"):
            cluster.call("sbatch", "--test-only", f"norm-slurm/{name}.sbatch", cwd=site)
        out = cluster.call("sh", "norm-slurm/submit.sh", cwd=site)
        array = out.split("job ")[1].partition(",")[0]
        trained = wait_for(lambda: steps_of(site), 600)
        os.kill(processes_of_task(cluster, array, trained)["slurm_script"], signal.SIGUSR1)  # as at its time limit
        wait_for(lambda: "Restarts=1" in cluster.call("scontrol", "show", "job", f"{array}_{trained}"), 300)
        other = wait_for(lambda: steps_of(site, other_than=trained), 600)
        kill_task(cluster, array, other)
        cluster.call("scontrol", "requeue", f"{array}_{other}")
        wait_for(lambda: not cluster.call("squeue", "--noheader").strip(), 2400)
    logs = {path.name: path.read_text() for path in (site / "norm-slurm").glob("*.log")}
    assert "verdict" in logs["table.log"], logs
    logs_of_seed = [path.read_text() for path in site.glob(f"runs/toy/*/s{trained}.log")]
    assert any("--resume" in log for log in logs_of_seed)  # it went on from the state that it saved
    assert read_table(site, 8) == read_table(undisturbed, 8)
    attempts = journal_of_starts(site)
    assert len(attempts) == 16
    assert sum(attempts.values()) >= 18  # both disturbed runs were started again, and at most their neighbours
    assert sum(count > 1 for count in attempts.values()) <= 4


def steps_of(site, other_than=None):
    """The seed of a run that is training now: it has a record of steps, and has not ended."""
    for path in sorted(site.glob("runs/toy/*/s*/ledger.json")):
        seed = path.parent.name[1:]
        record = json.loads(path.read_text())
        if record["steps"] and not record["finished"] and seed != other_than:
            return seed
    return None


def processes_of_task(cluster, array, task):
    """The numbers of a task's processes by the last word of their commands' programs and scripts."""
    job = cluster.call("scontrol", "show", "job", f"{array}_{task}").partition("JobId=")[2].split()[0]
    result = {}
    for line in cluster.call("scontrol", "listpids", job).splitlines()[1:]:
        number = int(line.split()[0])
        with contextlib.suppress(FileNotFoundError):
            words = Path(f"/proc/{number}/cmdline").read_text().split("\0")
            name = next((word.rpartition("/")[2] for word in words if "slurm_script" in word), f"process {number}")
            result[name] = number
    assert "slurm_script" in result
    return result


def kill_task(cluster, array, task):
    """kill -9 of all processes of a task."""
    for number in processes_of_task(cluster, array, task).values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)

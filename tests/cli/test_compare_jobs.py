"""`zoo compare … --emit` writes job files without torch and without a run."""

import sys
from pathlib import Path

import pytest

from zoo.cli import main

WORDS = ("compare", "lm-tiny", "--vary", "model.position=rope,alibi")


@pytest.fixture
def emit(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main([*words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_job_files_repeat_the_command_without_the_options_about_jobs(emit):
    words = ["--shards=2", "--seeds", "1,3,5", "--emit", "slurm", "--resources", "gpus=1,time=90", "--runs", "my runs"]
    code, out, err = emit(*WORDS, *words)
    assert code == 0, err
    assert out.splitlines()[:3] == [f"position-slurm/{name}" for name in ("submit.sh", "shards.sbatch", "table.sbatch")]
    assert "submit  sh position-slurm/submit.sh" in out
    job = Path("position-slurm/shards.sbatch").read_text()
    command = "zoo compare lm-tiny --vary model.position=rope,alibi --seeds 1,3,5 --runs 'my runs'"
    assert f'\n{command} --shard "$SLURM_ARRAY_TASK_ID/2" &\n' in job
    assert f"\n{command} &\n" in Path("position-slurm/table.sbatch").read_text()
    assert not Path("my runs").exists()


def test_every_seed_is_a_shard_unless_their_number_is_named(emit):
    assert emit(*WORDS, "--emit", "sh")[0] == 0
    assert "All 5 shards at once" in Path("position-sh/run.sh").read_text()


def test_an_attribution_has_job_files_too(emit):
    code, _, err = emit("compare", "lm-tiny", "llama-style-tiny", "--attribute", "--emit", "sh", "--seeds", "3")
    assert code == 0, err
    assert "zoo compare lm-tiny llama-style-tiny --attribute --seeds 3 &" in (
        Path("attribute-llama-style-tiny-sh/run.sh").read_text()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*WORDS, "--emit", "slurm", "--shard", "1/2"), "--shard does not go with --emit: use --shards N."),
        ((*WORDS, "--emit", "slurm", "--dry-run"), "--dry-run does not go with --emit"),
        ((*WORDS, "--emit", "slurm", "--exit-code"), "--exit-code does not go with --emit"),
        ((*WORDS, "--emit", "slurm", "--until", "decided"), "--until decided looks at all runs after some seeds"),
        ((*WORDS, "--emit", "k8s"), "--emit k8s needs the container image"),
        ((*WORDS, "--emit", "slurm", "--shards", "6"), "--shards 6: there are 5 seeds"),
        ((*WORDS, "--emit", "moab"), "--emit: unknown executor 'moab'. Available: K8s, Sh, Slurm"),
        ((*WORDS, "--emit", "slrum"), "Did you mean 'Slurm'?"),
        ((*WORDS, "--emit", "slurm", "--model.norm=rmsnrm"), "rmsnrm"),
        ((*WORDS, "--shards", "2"), "--shards is for job files: add --emit slurm, k8s or sh."),
        ((*WORDS, "--resources", "gpus=1"), "--resources is for job files"),
        (("compare", "runs", "--emit", "slurm"), "--emit is for a comparison that is to be run"),
        (("compare", "lm-tiny", "--attribute", "--emit", "slurm"), "--attribute needs two recipes"),
        (("compare", "runs", "--tries", "9"), "--tries is the number of variants of a series: add --series FILE"),
    ],
)
def test_what_cannot_be_emitted_is_refused(emit, words, message):
    code, _, err = emit(*words)
    assert code == 2
    assert message in err
    assert not list(Path().iterdir())


def test_torch_is_not_imported(emit, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert emit(*WORDS, "--emit", "slurm")[0] == 0

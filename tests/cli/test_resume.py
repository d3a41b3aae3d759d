"""What a resume says of data that changed."""

import re
from types import SimpleNamespace

import pytest

from zoo.cli import resume
from zoo.command_line import ParsedOptions
from zoo.errors import UsageError

FLAGS = ("resume", "requeue", "accept_changes")
BEFORE = {"a.txt": "1", "b.txt.gz": "2"}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"a.txt": "1", "b.txt.gz": "3"}, r"; b\.txt\.gz has changed\.$"),
        ({"b.txt.gz": "2"}, r"; a\.txt is gone\.$"),
        (BEFORE | {"c.txt": "4"}, r"; c\.txt is new\.$"),
        ({}, r"f{12} → e{12}\.$"),
    ],
)
def test_the_first_file_that_changed_is_named(now, expected):
    data = SimpleNamespace(fingerprint=lambda: "e" * 64, file_digests=lambda: now)
    manifest = {"data": {"fingerprint": "f" * 64, "files": BEFORE}}
    command = ParsedOptions("fit", values={"resume": True}, defaults=dict.fromkeys(FLAGS))
    plan = SimpleNamespace(manifest=manifest, command=command)
    with pytest.raises(UsageError) as error:
        resume.check_data(plan, data)
    first, second = str(error.value).splitlines()
    assert re.search(expected, first)
    assert second.endswith("--accept-changes")


@pytest.mark.parametrize(
    ("fingerprint", "flags", "other"),
    [("f", {"resume"}, False), ("e", {"resume", "accept_changes"}, True), ("e", set(), True)],
)
def test_accepted_data_are_others(fingerprint, flags, other, capsys):
    command = ParsedOptions("fit", values=dict.fromkeys(flags, True), defaults=dict.fromkeys(FLAGS))
    plan = SimpleNamespace(manifest={"data": {"fingerprint": "f"}}, command=command)
    assert resume.check_data(plan, SimpleNamespace(fingerprint=lambda: fingerprint)) is other
    assert ("best values and best.ckpt start anew" in capsys.readouterr().out) is other


def test_too_many_files_are_not_named():
    many = {str(number): "1" for number in range(resume.MOST_FILES + 1)}
    assert resume.file_digests(SimpleNamespace(file_digests=lambda: many)) == {}
    assert resume.file_digests(SimpleNamespace()) == {}


@pytest.mark.parametrize(
    ("count", "flags"), [("0", set()), ("", set()), (None, set()), ("1", {"resume"}), ("2", {"resume"})]
)
def test_a_job_that_slurm_starts_again_resumes(count, flags, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    if count is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    command = ParsedOptions("fit", defaults=dict.fromkeys(FLAGS))
    resume.apply_requeue(SimpleNamespace(command=command, run=SimpleNamespace(folder=tmp_path), reuse=(False, False)))
    assert set(command.values) == flags

"""Simultaneous runs divide the visible devices, or are refused with what would happen."""

import pytest
import torch

from zoo.compare.execute import device_shares, split_devices, visible_devices
from zoo.errors import UsageError


@pytest.fixture
def devices(monkeypatch):
    """Sets the number of GPUs that torch sees, and CUDA_VISIBLE_DEVICES."""

    def see(count, variable=None):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        if variable is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)

    return see


@pytest.mark.parametrize(
    ("count", "jobs", "expected"),
    [(1, 1, ["0"]), (4, 4, ["0", "1", "2", "3"]), (4, 2, ["0,1", "2,3"]), (5, 2, ["0,1", "2,3"])],
)
def test_every_job_has_equally_many_devices_and_none_is_shared(count, jobs, expected):
    assert list(split_devices([str(number) for number in range(count)], jobs)) == expected


@pytest.mark.parametrize(
    ("count", "jobs", "per_run", "advice"),
    [(2, 4, 1, "Use --jobs 2,"), (1, 2, 1, "Use --jobs 1,"), (4, 3, 2, "Use --jobs 2,"),
     (2, 2, 4, "Set --trainer.devices to at most 2,")],
)  # fmt: skip
def test_more_jobs_than_devices_are_refused_with_what_would_happen(count, jobs, per_run, advice):
    names = [f"GPU-{number}" for number in range(count)]
    with pytest.raises(UsageError) as error:
        split_devices(names, jobs, per_run)
    text = str(error.value)
    assert f"there are {count}: {', '.join(names)}." in text
    assert "share its memory and slow each other down" in text
    assert advice in text
    assert len(text.splitlines()) <= 4


@pytest.mark.parametrize(
    ("count", "variable", "expected"),
    [(3, None, ("0", "1", "2")), (2, "5, 7", ("5", "7")), (1, "GPU-aa,GPU-gone", ("GPU-aa",)), (0, "0", ()),
     (0, "", ())],
)  # fmt: skip
def test_the_visible_devices_are_those_of_this_process(devices, count, variable, expected):
    devices(count, variable)
    assert visible_devices() == expected


@pytest.mark.parametrize(
    ("trainer", "jobs", "expected"),
    [
        ({}, 2, ("3,5", "6,7")),
        ({"accelerator": "gpu", "devices": 2}, 2, ("3,5", "6,7")),
        ({"accelerator": "cuda", "devices": "auto"}, 4, ("3", "5", "6", "7")),
        ({"accelerator": "cpu"}, 2, ()),
        ({}, 1, ()),  # as ever: all of them
        ({"devices": [1]}, 2, ()),  # the user has numbered them
        ({"devices": "0,1"}, 2, ()),
    ],
)
def test_devices_are_divided_as_the_trainer_needs_them(devices, trainer, jobs, expected):
    devices(4, "3,5,6,7")
    assert device_shares(trainer, jobs) == expected


def test_a_machine_without_devices_divides_nothing(devices):
    devices(0)
    assert device_shares({"accelerator": "auto"}, 8) == ()


def test_two_devices_for_each_run_of_three_jobs_are_refused_on_four(devices):
    devices(4)
    with pytest.raises(UsageError, match="--jobs 3: every run has 2 devices of its own, and there are 4"):
        device_shares({"accelerator": "gpu", "devices": 2}, 3)

"""Files below folders with links among them."""

import os

from zoo.io.linked_folders import files_below


def test_each_folder_is_read_once_behind_links_and_circles(tmp_path):
    for place in ("runs/a", "disk/b", "runs/.hidden"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "x.json").write_text("{}")
    (tmp_path / "runs/b").symlink_to(tmp_path / "disk/b", target_is_directory=True)
    (tmp_path / "runs/c").symlink_to(tmp_path / "disk/b", target_is_directory=True)
    (tmp_path / "runs/circle").symlink_to(tmp_path / "runs", target_is_directory=True)
    (tmp_path / "runs/nothing").symlink_to(tmp_path / "gone")
    os.link(tmp_path / "runs/a/x.json", tmp_path / "runs/a/y.json")
    names = [
        path.relative_to(tmp_path).as_posix()
        for path in files_below(tmp_path / "runs", "x.json y.json".split().__contains__)
    ]
    assert sorted(names) == ["runs/.hidden/x.json", "runs/a/x.json", "runs/a/y.json", "runs/b/x.json"]


def test_what_cannot_be_listed_is_left_out(tmp_path):
    assert files_below(tmp_path / "gone", bool) == []

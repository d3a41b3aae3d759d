"""`zoo compare` from its command line to its table."""


def test_a_shard_whose_others_are_missing_prints_no_table(zoo, work):
    words = ["compare", "./lm-toy.yaml", "--vary", "model.norm=rmsnorm,layernorm", "--seeds", "1"]
    code, out, err = zoo(*words, "--shard", "2/2")  # the second of two seeds
    assert code == 0, err
    assert "0 of 2 runs are finished; the others belong to other shards." in out + err
    assert "verdict" not in out
    assert not list(work.glob("runs/**/comparison.html"))
    code, out, err = zoo(*words, "--shard", "1/2")
    assert code == 0, err
    assert "verdict" in out
    assert len(list(work.glob("runs/**/comparison.html"))) == 1

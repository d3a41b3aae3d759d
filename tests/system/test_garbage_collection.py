"""The collector of cycles rests while a run is built, works while it trains, and is left as it was found."""

import gc

import pytest

from zoo.system import garbage_collection


def test_it_rests_and_then_sees_only_what_is_new():
    with garbage_collection.pause_collection():
        assert not gc.isenabled()
        garbage_collection.resume_collection()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_pause_within_another_ends_with_the_outer_one():
    with garbage_collection.pause_collection():
        garbage_collection.resume_collection()
        with garbage_collection.pause_collection():
            assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000
        garbage_collection.resume_collection()
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_an_error_gives_it_back():
    with pytest.raises(KeyError), garbage_collection.pause_collection():
        raise KeyError
    assert gc.isenabled()


def test_who_has_turned_it_off_keeps_it_so():
    gc.disable()
    try:
        with garbage_collection.pause_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_cycles_made_while_training_are_collected():
    with garbage_collection.pause_collection():
        garbage_collection.resume_collection()
        ring: list = []
        ring.append(ring)
        del ring
        assert gc.collect() >= 1

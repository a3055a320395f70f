"""For how long something has held: a look that fails, or a gap between looks, begins anew."""

from inference.unbroken import Unbroken


def test_it_counts_from_the_first_look_after_a_break():
    state = Unbroken(2.0)
    assert [state.look(True, now) for now in (10.0, 11.0, 12.5)] == [0, 1.0, 2.5]
    assert state.look(False, 13.0) == 0
    assert [state.look(True, now) for now in (13.5, 15.0)] == [0, 1.5]


def test_a_look_that_came_late_says_nothing_of_the_time_before_it():
    """A renewal that a stopped database kept waiting: whoever it kept waiting as well must be given a lease's time."""
    state = Unbroken(2.0)
    state.look(True, 10.0)
    assert [state.look(True, now) for now in (14.9, 15.9, 18.0)] == [0, 1.0, 0]

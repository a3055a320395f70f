"""For how long something has held: a look that fails, or a gap between looks, begins anew."""

import pytest

from inference.keeper import Keeper
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


@pytest.mark.parametrize("lease_s", [2.0, 3.0, 10.0])
def test_a_keepers_own_steps_are_no_pause(settings, lease_s):
    """Else nobody would ever take over from the dead."""
    settings.LEASE_S = lease_s
    reachable = Keeper(None)._reachable
    assert max(reachable.look(True, 10.0 + 1.1 * step) for step in range(20)) > lease_s

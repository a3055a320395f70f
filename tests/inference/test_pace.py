"""Measured service times: slot seconds per ended generation, over the last minute."""

from inference.pace import WINDOW_S, Pace


def test_nothing_is_known_before_one_has_ended():
    pace = Pace()
    assert pace.step(0.0, 0, 0) is None
    assert pace.step(1.0, 4, 0) is None


def test_it_is_the_time_that_each_holds_a_slot_at_any_load():
    for running in (1, 4):
        pace = Pace()
        for second in range(11):  # each takes 2 s: `running` slots end running / 2 a second
            told = pace.step(float(second), running, second * running // 2)
        assert told == 2.0


def test_what_is_longer_ago_than_a_minute_is_forgotten():
    pace = Pace()
    pace.step(0.0, 0, 0)
    pace.step(10.0, 4, 1)
    for second in range(11, 11 + int(WINDOW_S) + 10):
        told = pace.step(float(second), 1, second - 9)
    assert told == 1.0
    assert pace.step(10_000.0, 0, second - 9) is None

"""Stop strings are withheld whole, however the text is divided."""

from hypothesis import given
from hypothesis import strategies as st

from inference.stop_strings import StopStrings

LETTERS = st.text("ab ", max_size=12)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)


def run(pieces: list[str], stop: tuple[str, ...]) -> tuple[str, bool]:
    stops = StopStrings(stop)
    text = "".join(stops.feed(piece, finished=False) for piece in pieces)
    return text + stops.feed("", finished=True), stops.stopped


@given(pieces=st.lists(LETTERS, max_size=6), stop=STOPS)
def test_any_division_of_the_text_gives_the_same(pieces: list[str], stop: tuple[str, ...]) -> None:
    text, stopped = run(pieces, stop)
    whole = "".join(pieces)
    assert (text, stopped) == run(list(whole), stop) == run([whole], stop)
    assert stopped == any(each in whole for each in stop)
    assert not any(each in text for each in stop)
    assert whole.startswith(text) if stopped else whole == text


def test_only_a_possible_beginning_is_held_back() -> None:
    stops = StopStrings(("STOP", "END"))
    assert stops.feed("Hello EN", finished=False) == "Hello "
    assert stops.feed("TER S", finished=False) == "ENTER "
    assert stops.feed("TOP and more", finished=False) == ""
    assert stops.stopped
    assert stops.feed("more", finished=True) == ""


def test_what_is_held_is_released_at_the_end() -> None:
    stops = StopStrings(("STOP",))
    assert stops.feed("ST", finished=False) == ""
    assert stops.feed("O", finished=True) == "STO"
    assert not stops.stopped

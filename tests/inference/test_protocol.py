"""Messages between processes survive their codec, and unknown ones are dropped."""

from uuid import UUID

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from inference.protocol import VERSION, Cancel, Entry, Frame, Notice, decode, encode

text = st.text(st.characters(exclude_categories=["Cs"]))
uuids = st.uuids()
kinds = st.sampled_from(["delta", "reasoning", "tool_call"])
messages = st.one_of(
    st.builds(Frame, uuids, st.integers(0, 2**31), kinds, text),
    st.builds(Notice, uuids, st.integers(0, 2**31), st.just("done"), st.dictionaries(text, st.integers(0, 9) | text)),
    st.builds(Cancel, uuids),
)


@given(st.lists(messages))
def test_messages_come_back_as_they_were(batch):
    assert decode(encode(batch)) == batch


@given(
    st.builds(
        Entry,
        text,
        st.lists(st.integers(0, 2**32 - 1)).map(tuple),
        st.sampled_from([None, "stop", "length"]),
        kinds,
    )
)
def test_log_entries_come_back_as_they_were(entry):
    assert Entry.unpack(entry.pack()) == entry


def test_a_message_of_another_version_is_dropped():
    row = ["c", UUID(int=1).bytes]
    assert decode(msgpack.packb([VERSION + 1, [row]])) == []


def test_a_message_type_that_this_version_does_not_know_is_dropped():
    rows = [["future", UUID(int=1).bytes, 7], ["c", UUID(int=2).bytes]]
    assert decode(msgpack.packb([VERSION, rows])) == [Cancel(UUID(int=2))]

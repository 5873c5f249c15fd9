from hypothesis import given
from hypothesis import strategies as st

from ringwide.protocol.ring import Layout

layouts = st.builds(
    Layout,
    count=st.integers(0, 5000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    chunks=st.integers(1, 17),
    segment_bytes=st.integers(8, 3000),
)


@given(layouts)
def test_every_element_lies_in_exactly_one_segment(layout: Layout) -> None:
    elements = [element for first, last in layout.bounds for element in range(first, last)]
    assert elements == list(range(layout.count))


@given(layouts)
def test_chunks_differ_by_at_most_one_element(layout: Layout) -> None:
    sizes = [last - first for first, last in map(layout.chunk_bounds, range(layout.chunks))]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == layout.count


@given(layouts)
def test_no_segment_is_larger_than_allowed(layout: Layout) -> None:
    assert all((last - first) * layout.itemsize <= layout.segment_bytes for first, last in layout.bounds)


@given(layouts)
def test_a_segment_lies_within_its_chunk(layout: Layout) -> None:
    assert len(layout.bounds) == layout.segments
    for segment, (first, last) in enumerate(layout.bounds):
        chunk = layout.chunk_of(segment)
        chunk_first, chunk_last = layout.chunk_bounds(chunk)
        assert segment in layout.segments_of(chunk)
        assert chunk_first <= first <= last <= chunk_last


@given(layouts)
def test_there_are_no_more_segments_than_needed(layout: Layout) -> None:
    if layout.segments_per_chunk > 1:
        largest = max(last - first for first, last in map(layout.chunk_bounds, range(layout.chunks)))
        fewer = layout.segments_per_chunk - 1
        assert -(-largest // fewer) * layout.itemsize > layout.segment_bytes


def test_a_bucket_without_elements_still_has_a_segment_for_every_chunk() -> None:
    assert Layout(0, 4, 3, 1024).bounds == ((0, 0), (0, 0), (0, 0))


def test_a_segment_size_that_is_no_multiple_of_the_element() -> None:
    """Once the largest of these segments had 24 bytes, and every receiver refused it."""
    layout = Layout(7, 8, 1, 20)
    assert max(last - first for first, last in layout.bounds) * 8 <= 20


@given(layouts)
def test_the_largest_segment_is_known(layout: Layout) -> None:
    assert max(last - first for first, last in layout.bounds) * layout.itemsize <= layout.largest_segment_bytes
    assert layout.largest_segment_bytes <= layout.segment_bytes

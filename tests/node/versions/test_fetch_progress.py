"""The words on a download's progress."""

from echo2.node.versions.fetch_progress import FetchProgress


def test_share_rate_and_time_left_are_said() -> None:
    progress = FetchProgress(270_000_000, 1_000, 100.0)
    assert progress.describe() == "0 % of 270.0 MB, no byte has come yet"
    progress.on_received(90_001_000, 120.0)
    assert progress.describe() == "33 % of 270.0 MB, 4.5 MB/s, 40 s left"
    progress.on_received(90_001_000, 1_100.0)
    assert (progress.quiet, progress.describe()) == (980.0, "33 % of 270.0 MB, 0.1 MB/s, 33 min left")


def test_bytes_of_other_payloads_count_as_no_more_than_the_whole() -> None:
    progress = FetchProgress(1_000, 0, 0.0)
    progress.on_received(5_000, 10.0)
    assert progress.describe().startswith("100 % of 0.0 MB")


def test_a_slow_line_is_given_hours() -> None:
    progress = FetchProgress(8_000_000_000, 0, 0.0)
    progress.on_received(8_000_000, 10.0)
    assert progress.describe() == "0 % of 8,000.0 MB, 0.8 MB/s, 2.8 h left"


def test_the_share_as_a_bar() -> None:
    progress = FetchProgress(1_000, 0, 0.0)
    assert progress.bar == "[....................]"
    progress.on_received(330, 1.0)
    assert progress.bar == "[######..............]"
    progress.on_received(5_000, 2.0)
    assert progress.bar == "[####################]"

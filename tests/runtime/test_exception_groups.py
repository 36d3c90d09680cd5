"""runtime/exception_groups.py: the leaves of a group, and the one that is reported."""

import pytest

from echo2.runtime.exception_groups import foremost, leaves, single_error

NESTED = ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b"), OSError("c")])])


def test_leaves_are_found_at_any_depth_in_order() -> None:
    assert [type(leaf) for leaf in leaves(NESTED)] == [ValueError, KeyError, OSError]
    single = KeyError("alone")
    assert list(leaves(single)) == [single]


def test_the_foremost_is_the_first_of_the_first_kind_that_occurs() -> None:
    assert isinstance(foremost(NESTED, [OSError, ValueError]), OSError)
    assert isinstance(foremost(NESTED, [TypeError, LookupError]), KeyError)
    assert isinstance(foremost(NESTED, []), ValueError)


def test_one_error_stands_for_a_group_of_expected_kinds_alone() -> None:
    with pytest.raises(OSError, match="c"), single_error((Exception,), (OSError,)):
        raise NESTED
    with pytest.raises(ExceptionGroup, match="g"), single_error((ValueError, OSError), (OSError,)):
        raise NESTED

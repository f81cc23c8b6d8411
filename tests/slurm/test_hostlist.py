"""Hostlists of every shape that Slurm prints."""

import pytest

from activities.backends.slurm.hostlist import compress, expand
from fleet.errors import UnreadableError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("alpha1", ("alpha1",)),
        ("alpha[1-3,5]", ("alpha1", "alpha2", "alpha3", "alpha5")),
        ("alpha[1-2],gpu-[08-10]-a", ("alpha1", "alpha2", "gpu-08-a", "gpu-09-a", "gpu-10-a")),
        ("rack[1-2]n[01-02]", ("rack1n01", "rack1n02", "rack2n01", "rack2n02")),
        ("a,b", ("a", "b")),
    ],
)
def test_lists_are_expanded_in_order(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["a[1-", "a[2-1]", "a[x]", "a,,b", "a b", "a]1", "a[[1]]", "a[1-99999999]"])
def test_what_is_no_hostlist_is_unreadable_and_never_empty(text: str) -> None:
    with pytest.raises(UnreadableError):
        expand(text)


def test_names_are_joined_once_each() -> None:
    assert compress(("a", "b", "a")) == "a,b"

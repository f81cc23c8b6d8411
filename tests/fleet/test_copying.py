"""Places, manifests, verdicts and room of copies: pure."""

import pytest

from fleet.checkpoints.model import Entry, File, Format, Small
from fleet.copying.manifest import (
    FEW,
    ManifestFile,
    Parts,
    Role,
    Seen,
    changed_since,
    difference,
    make_manifest,
    parse_sums,
    parts_of,
    right_size,
    same_hash,
    units,
)
from fleet.copying.places import copy_op, parse_place, staging
from fleet.copying.space import Space, due_replicas, judge_space, seconds_for, size_text
from fleet.errors import InvalidInputError, RefusedError
from fleet.units import parse_rate, rate_text

A, B = "a" * 64, "b" * 64


def file(path: str, size: int = 3, **hashes: str) -> ManifestFile:
    return ManifestFile(path=path, size=size, modified=1.0, hashes=hashes)


# -- places


@pytest.mark.parametrize("text", ["/data/ckpt", "lab:bucket/root", "my-s3.eu:b"])
def test_places_read_back_as_they_are_written(text: str) -> None:
    assert str(parse_place(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        ":s3,secret_access_key=x:bucket",
        "lab,env_auth=true:bucket",
        "lab:",
        "/",
        "//",
        "relative",
        "/a/../b",
        "lab:../x",
        "C:/x",
        "/a\nb",
        "https://user:pw@host/x",
        "",
    ],
)
def test_what_is_no_place_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"write /FOLDER or REMOTE:FOLDER") as caught:
        parse_place(text)
    assert "secret_access_key" not in str(caught.value)
    assert "pw" not in str(caught.value)


def test_a_copy_of_the_same_between_the_same_has_the_same_operation_however_it_is_written() -> None:
    one = copy_op("/a/", "iter_1", "lab:b/c/")
    assert one == copy_op("/a", "iter_1", "lab:b/c")
    assert len({one, copy_op("/a", "iter_2", "lab:b/c"), copy_op("/a", "iter_1", "lab:b/d")}) == 3
    assert staging(one) == f".gpu-runbooks/copy-{one}/staged"


# -- parts and manifests


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a\nb", ".gpu-runbooks/x", "", "a\\b"])
def test_names_that_lead_elsewhere_are_no_part(path: str) -> None:
    with pytest.raises(ValueError, match=r"leads|lies|holds|relative"):
        Parts(name="iter_1", markers=(path,))


def entry(*data: str) -> Entry:
    return Entry(
        format=Format.TORCH_DIST,
        name="iter_1",
        step=1,
        data=tuple(File(path=path, size=2) for path in data),
        markers=(File(path="iter_1/metadata.json", size=1),),
        trackers=(Small(path="latest", text="1"),),
    )


def test_an_entry_that_is_its_whole_folder_names_no_file() -> None:
    parts = parts_of(entry("iter_1/a", "iter_1/b"), ["iter_1/a", "iter_1/b", "iter_1/metadata.json", "iter_2/x"])
    assert (parts.data, parts.markers, parts.size) == ((), ("iter_1/metadata.json",), 5)


def test_what_the_format_ignores_is_left_out_by_naming_the_rest() -> None:
    """PC-C03: shards of an older, larger run lie in the folder."""
    parts = parts_of(entry("iter_1/a"), ["iter_1/a", "iter_1/old", "iter_1/metadata.json"])
    assert parts.data == ("iter_1/a",)
    listed = {path: Seen(size=2) for path in ("iter_1/a", "iter_1/old")} | {"iter_1/metadata.json": Seen(size=1)}
    assert [f.path for f in make_manifest(parts, listed).files] == ["iter_1/a", "iter_1/metadata.json"]


def test_too_many_files_to_name_are_refused_with_one_that_is_in_the_way() -> None:
    many = [f"iter_1/{n}" for n in range(FEW + 1)]
    with pytest.raises(RefusedError, match="iter_1/old"):
        parts_of(entry(*many), [*many, "iter_1/old"])


def test_a_manifest_has_data_before_markers_and_not_what_lies_beside_the_folder() -> None:
    parts = Parts(name="iter_1", markers=("iter_1/.metadata",))
    listed = {path: Seen(size=1) for path in ("iter_1/.metadata", "iter_1/z", "iter_10/z", "iter_1/a")}
    made = make_manifest(parts, listed)
    assert [(f.path, f.role) for f in made.files] == [
        ("iter_1/a", Role.DATA),
        ("iter_1/z", Role.DATA),
        ("iter_1/.metadata", Role.MARKER),
    ]
    assert made.size == 3


def test_a_marker_that_is_gone_disqualifies_the_source() -> None:
    with pytest.raises(RefusedError, match=r"iter_1/\.metadata is not at the source"):
        make_manifest(Parts(name="iter_1", markers=("iter_1/.metadata",)), {"iter_1/a": Seen(size=1)})


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, "vanished"),
        ({"x": Seen(size=3, modified=2.0)}, "written"),
        ({"x": Seen(size=4, modified=1.0)}, "written"),
    ],
)
def test_a_source_that_is_not_as_listed_says_why(now: dict[str, Seen], why: str) -> None:
    manifest = make_manifest(Parts(name="x"), {"x": Seen(size=3, modified=1.0)})
    assert changed_since(manifest, {"x": Seen(size=3, modified=1.0)}) == ""
    assert why in changed_since(manifest, now)


# -- verdicts


def test_equal_is_only_what_has_a_hash_in_common_and_all_common_ones_equal() -> None:
    assert same_hash({"sha256": A}, {"sha256": A.upper()}) is True
    assert same_hash({"sha256": A, "md5": "1"}, {"sha256": A, "md5": "2"}) is False
    assert same_hash({"sha256": A}, {"md5": "1"}) is None
    assert same_hash({"md5": ""}, {"md5": ""}) is None


def test_every_way_to_differ_is_told_apart() -> None:
    files = [file(name, sha256=A) for name in ("same", "gone", "short", "flipped", "dark")]
    seen = {name: Seen(size=3) for name in ("same", "flipped", "dark", "strange")} | {"short": Seen(size=2)}
    hashes = {"same": {"sha256": A}, "short": {"sha256": A}, "flipped": {"sha256": B}, "dark": {"md5": "1"}}
    found = difference(files, seen, hashes)
    assert (found.missing, found.wrong, found.unproven, found.extra) == (
        ("gone",),
        ("short", "flipped"),
        ("dark",),
        ("strange",),
    )
    assert not found.same
    assert found.again == ("gone", "short", "flipped")
    assert found.text() == (
        "gone missing; short differs (and 1 more); dark could not be compared; strange does not belong there"
    )
    assert [f.path for f in right_size(files, seen)] == ["same", "flipped", "dark"]


def test_the_same_size_alone_is_never_the_same() -> None:
    assert not difference([file("x", sha256=A)], {"x": Seen(size=3)}, {}).same


def test_a_folder_is_renamed_as_one_and_loose_files_one_by_one_markers_last() -> None:
    inside = (file("iter_1/a"), file("iter_1/m"))
    assert units(inside, (Small(path="iter_1/done", text=""),), "iter_1") == ("iter_1",)
    assert units(inside, (Small(path="done", text=""),), "iter_1") == ("iter_1/a", "iter_1/m", "done")


# -- manifests of datasets


def test_lines_of_sha256sum_and_md5sum_are_read() -> None:
    text = f"# ours\n{A}  x/a.bin\n{'C' * 32} *./b c.bin\n\n"
    assert parse_sums(text, "data") == {"data/x/a.bin": A, "data/b c.bin": "c" * 32}


@pytest.mark.parametrize(
    "line", ["a.bin", f"{A[:-1]}  a.bin", f"{A}  ../a.bin", f"{A}  /etc/passwd", f"{A}  a\n{B}  a", f"\\{A}  a\\nb"]
)
def test_a_bad_line_of_a_manifest_is_named(line: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^line \d of the manifest"):
        parse_sums(line, "data")


def test_a_manifest_that_lists_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="lists no file"):
        parse_sums("# nothing\n", "data")


# -- room, time, replicas


@pytest.mark.parametrize(("needed", "ok"), [(95, True), (96, False), (0, True)])
def test_the_headroom_of_what_is_free_stays_free(needed: int, ok: bool) -> None:
    assert judge_space(needed, Space(free=100, source="statvfs"), 5.0).ok is ok


def test_unknown_room_is_said_and_is_no_yes() -> None:
    fits = judge_space(1 << 30, Space(source="lab: tells nothing"), 5.0)
    assert fits.ok is None
    assert "1.0 GiB needed, free space unknown: lab: tells nothing" in fits.text


def test_times_follow_the_cap_and_are_unknown_without_one() -> None:
    assert seconds_for(10**9, 0, 10**8, 8) == pytest.approx(10.0)
    assert seconds_for(0, 1600, 10**8, 8) == pytest.approx(10.0)
    assert seconds_for(10**9, 1, None, 8) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB"), (2048 << 40, "2048.0 TiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("steps", "copied", "every", "due"),
    [
        ([10, 20, 30], [], 2, (30,)),
        ([10, 20, 30], [20], 2, ()),
        ([10, 20, 30, 40], [20], 2, (40,)),
        ([10, 20, 30, 40, 50], [20], 2, (50,)),
        ([10], [10], 1, ()),
        ([50, 60, 70], [10], 10, ()),
        ([90, 100, 110], [10], 10, (110,)),
        ([110], [10], 10, (110,)),
        ([10, 20], [30], 1, ()),
        ([10, 20], [], 0, ()),
        ([], [], 3, ()),
    ],
)
def test_each_kth_complete_checkpoint_is_replicated_the_newest_only(
    steps: list[int], copied: list[int], every: int, due: tuple[int, ...]
) -> None:
    assert due_replicas(steps, copied, every) == due


@pytest.mark.parametrize(("text", "rate"), [("500kB/s", 5e5), ("1.5MB/s", 1.5e6), ("2GB/s", 2e9), ("0.001kB/s", 1.0)])
def test_rates_read_back_as_they_are_written(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)
    assert rate_text(parse_rate(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [(500, "say the unit: 500MB/s"), ("0MB/s", "moves nothing"), ("500 MB", "is no rate"), ("5Mb/s", "is no")],
)
def test_a_rate_that_is_none_says_how_to_write_it(text: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_rate(text)

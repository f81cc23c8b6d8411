"""One event, one line: no raw newline, no control character, nothing secret; readable or JSON by where it goes."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from workers.logs import configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of whoever runs the tests, and the loggers as they were afterwards."""
    for name in ("NO_COLOR", "GPU_RUNBOOKS_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().split("\n")[:-1]


def fail() -> None:
    raise ValueError("bad\nthing with HF_TOKEN=s3cr3t")


def log_everything() -> None:
    log = structlog.get_logger("ours")
    log.info("first\nline\r\x1b[31m\u2028", text="a\nb", path="x", password="s3cr3t", n=3)  # noqa: S106
    log.warning("tree %s", "x", tree={"api_key": "s3cr3t", "t": ["--token s3cr3t\n"]}, obj=ValueError("y\nz"))
    logging.getLogger("library").error("from %s\nlines", "std", extra={"fact": "f\ng"})
    try:
        fail()
    except ValueError:
        log.exception("broke")
        logging.getLogger("library").exception("broke there")
    log.debug("too fine")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_each_event_is_one_line_without_secrets_or_control_characters(stream: io.StringIO) -> None:
    configure_logs(stream)
    log_everything()
    text = stream.getvalue()
    assert len(text.splitlines()) == len(lines_of(stream)) == 5
    assert "s3cr3t" not in text
    assert "too fine" not in text


def test_elsewhere_lines_are_json_with_everything_in_them() -> None:
    stream = io.StringIO()
    configure_logs(stream)
    log_everything()
    first, second, third, fourth, fifth = (json.loads(line) for line in lines_of(stream))
    assert (first["event"], first["text"], first["n"]) == ("first\nline\r\x1b[31m\u2028", "a\nb", 3)
    assert (first["level"], first["logger"], first["password"]) == ("info", "ours", "[redacted]")
    assert first["path"] == "x"
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["tree"]) == ("tree x", {"api_key": "[redacted]", "t": ["--token [redacted]\n"]})
    assert (third["event"], third["logger"], third["fact"]) == ("from std\nlines", "library", "f\ng")
    for line in (fourth, fifth):
        assert line["exception"].startswith("Traceback")
        assert "ValueError: bad\nthing" in line["exception"]


def test_in_a_terminal_lines_are_readable_and_name_the_error_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure_logs(stream)
    log_everything()
    first, _, _, fourth, _ = lines_of(stream)
    assert "\x1b" not in stream.getvalue()
    assert r"first\nline\r\x1b[31m\u2028" in first
    assert "thing with HF_TOKEN=[redacted]" in fourth
    assert "in fail" in fourth


@pytest.mark.parametrize(
    ("terminal", "setting", "coloured"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, setting: dict[str, str], coloured: bool
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    configure_logs(stream, format="text")
    structlog.get_logger("ours").info("hello")
    assert ("\x1b[" in stream.getvalue()) is coloured


def test_the_format_can_be_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_RUNBOOKS_LOG", "json")
    stream = Terminal()
    configure_logs(stream)
    structlog.get_logger("ours").info("hello")
    assert json.loads(stream.getvalue())["event"] == "hello"
    monkeypatch.setenv("GPU_RUNBOOKS_LOG", "xml")
    with pytest.raises(ValueError, match="give text or json"):
        configure_logs(stream)


def test_a_later_call_takes_the_place_of_an_earlier_one() -> None:
    one, two = io.StringIO(), io.StringIO()
    configure_logs(one)
    configure_logs(two, level="warning")
    structlog.get_logger("ours").info("quiet")
    structlog.get_logger("ours").warning("loud")
    assert one.getvalue() == ""
    assert [json.loads(line)["event"] for line in lines_of(two)] == ["loud"]

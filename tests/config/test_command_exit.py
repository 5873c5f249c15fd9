import argparse
import errno
import json
import logging
import os
import subprocess
import sys
from datetime import datetime

import pytest

import ringwide
from local_ring import on_every_rank
from ringwide.config.command_exit import FORMAT_VARIABLE, LEVEL_VARIABLE, add_log_options, finish
from ringwide.errors import ConfigError, PeerLost


def raising(error: BaseException) -> int:
    raise error


def test_a_command_that_ends_well_gives_its_code() -> None:
    assert finish(lambda: 0) == 0
    assert finish(lambda: 1) == 1


def test_an_error_of_ours_is_one_line_and_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(lambda: raising(ConfigError("peers.txt:3: 'x': no port"))) == 2
    assert finish(lambda: raising(PeerLost(rank=1, reason="gone"))) == 5
    assert capsys.readouterr().err == (
        "ringwide: error: peers.txt:3: 'x': no port\nringwide: error: rank 1 is lost: gone\n"
    )


def test_an_interrupt_is_130_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(lambda: raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.system
@pytest.mark.parametrize("words", [["config", "settings"], ["config", "keys"]])
def test_output_that_cannot_be_written_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ringwide", *words]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=110)
    error = "ringwide: error: the output cannot be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (1, error)


def test_another_error_of_the_system_keeps_its_traceback() -> None:
    with pytest.raises(ConnectionResetError):
        finish(lambda: raising(ConnectionResetError(errno.ECONNRESET, "reset")))


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        finish(lambda: 1 // 0)


def test_warnings_are_plain_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def warn() -> int:
        logging.getLogger("ringwide.transport").warning("buffer granted=%d", 5)
        logging.getLogger("ringwide").info("not seen")
        return 0

    assert finish(warn) == 0
    assert capsys.readouterr().err == "ringwide: warning: buffer granted=5\n"
    assert logging.getLogger("ringwide").handlers == []


def test_what_only_a_log_file_asks_for_is_not_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    def say_more() -> int:
        logger = logging.getLogger("ringwide")
        logger.setLevel(logging.DEBUG)
        try:
            logging.getLogger("ringwide.bootstrap").info("not seen")
            logging.getLogger("ringwide.compression").debug("not seen")
            logging.getLogger("ringwide.compression").info("codec=none")
        finally:
            logger.setLevel(logging.NOTSET)
        return 0

    assert finish(say_more) == 0
    assert capsys.readouterr().err == "ringwide: info: codec=none\n"


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    return parser.parse_args(words)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (LEVEL_VARIABLE, FORMAT_VARIABLE):
        monkeypatch.setenv(variable, "")  # so that it is put back


def test_what_is_logged_can_be_more_or_less(capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> int:
        logger = logging.getLogger("ringwide.bootstrap")
        for level in ("debug", "info", "warning", "error"):
            getattr(logger, level)("said at %s", level)
        return 0

    for level, seen in {"debug": 4, "info": 3, "warning": 2, "error": 1}.items():
        assert finish(talk, options("--log-level", level)) == 0
        assert len(capsys.readouterr().err.splitlines()) == seen
    assert logging.getLogger("ringwide").handlers == []
    assert logging.getLogger("ringwide").level == logging.NOTSET


def test_an_option_is_also_for_what_the_command_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(lambda: 0, options("--log-level", "info", "--log-format", "json")) == 0
    assert (os.environ[LEVEL_VARIABLE], os.environ[FORMAT_VARIABLE]) == ("info", "json")
    assert finish(lambda: raising(ConfigError("x"))) == 2
    assert json.loads(capsys.readouterr().err)["message"] == "x"


def test_a_variable_with_another_value_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "loud")
    assert finish(lambda: 0) == 2
    assert "RINGWIDE_LOG_LEVEL: 'loud': should be one of warning, error, info, debug" in capsys.readouterr().err


def test_as_json_every_line_is_an_object_also_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        logging.getLogger("ringwide.bootstrap").warning("two\nlines of %r", "ü")
        raise ConfigError("peers.txt:3: 'x': no port")

    assert finish(fail, options("--log-format", "json")) == 2
    warning, error = map(json.loads, capsys.readouterr().err.splitlines())
    assert (warning["level"], warning["logger"], warning["message"]) == (
        "warning",
        "ringwide.bootstrap",
        "two\nlines of 'ü'",
    )
    assert (error["level"], error["message"]) == ("error", "peers.txt:3: 'x': no port")
    assert datetime.fromisoformat(error["time"]).tzinfo is not None


async def test_who_joins_says_by_which_transport_and_algorithm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ringwide.runtime")

    async def act(ring: ringwide.Ring) -> None:
        await ring.barrier()

    await on_every_rank(2, act, same_host="tcp", lanes=2)
    said = [record.message for record in caplog.records if record.message.startswith("joined ")]
    assert len(said) == 2
    assert all("size=2 ranks_here=2 seconds=0." in line for line in said)
    assert all(
        line.endswith("transport=tcp algorithm='tree up to 262144 bytes, then ring' codec=none") for line in said
    )

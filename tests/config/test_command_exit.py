import errno
import logging
import subprocess
import sys

import pytest

from ringwide.config.command_exit import finish
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

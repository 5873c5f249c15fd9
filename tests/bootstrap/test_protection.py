"""The key file: made once, private, and never shown."""

import os
import resource
import shlex
import stat
from pathlib import Path

import pytest

from ringwide.bootstrap.protection import load_keys, make_key_file
from ringwide.errors import ConfigError


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make_key_file(tmp_path / "ring.key")
    return tmp_path / "ring.key"


def test_a_new_key_can_be_read_by_its_owner_alone(key_file: Path) -> None:
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    label, digits = key_file.read_text().split()
    assert (label, len(bytes.fromhex(digits))) == ("ringwide-key-1", 32)


@pytest.mark.parametrize("umask", [0, 0o777])
def test_no_umask_changes_that(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        make_key_file(tmp_path / "ring.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "ring.key").stat().st_mode) == 0o600


def test_every_key_is_another(tmp_path: Path) -> None:
    for name in "abc":
        make_key_file(tmp_path / name)
    assert len({(tmp_path / name).read_text() for name in "abc"}) == 3


def test_a_key_is_never_overwritten(key_file: Path) -> None:
    before = key_file.read_text()
    with pytest.raises(ConfigError, match=r"ring\.key: there is such a file already.*choose another name"):
        make_key_file(key_file)
    assert key_file.read_text() == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone/ring\.key: the key cannot be written: No such file or directory"):
        make_key_file(tmp_path / "gone" / "ring.key")


def test_the_same_file_gives_the_same_key(key_file: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    copied.touch(0o600)
    copied.write_bytes(key_file.read_bytes().rstrip() + b"\r\n")
    (one,), (other,) = (load_keys(path, origin="key_file") for path in (key_file, copied))
    assert one.sign(b"x") == other.sign(b"x")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620, 0o601])
def test_a_key_that_others_can_use_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load_keys(key_file, origin="key_file")
    assert str(caught.value) == (
        f"key_file: {key_file}: the key file has mode {mode:04o}, so that others on this machine can use it; "
        f"keep it to yourself: chmod 600 {key_file}"
    )


def test_the_cure_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "my key; rm x"
    make_key_file(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        load_keys(path, origin="key_file")
    assert shlex.split(str(caught.value).partition("yourself: ")[2]) == ["chmod", "600", str(path)]


@pytest.mark.parametrize(("owner", "user", "welcome"), [(0, 7, True), (7, 7, True), (8, 7, False), (8, 0, False)])
def test_a_key_of_another_user_is_refused(
    key_file: Path, owner: int, user: int, welcome: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for root's, who can read and change everything anyway."""
    as_if_owned_by(owner, user, monkeypatch)
    if welcome:
        load_keys(key_file, origin="key_file")
    else:
        with pytest.raises(ConfigError, match=r"ring\.key: the key file belongs to another user \(8\).*of your own"):
            load_keys(key_file, origin="key_file")


def as_if_owned_by(owner: int, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        found = list(look(descriptor))
        found[stat.ST_UID] = owner
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(os, "geteuid", lambda: user)


def test_a_key_that_cannot_be_written_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """The disk is full, as it were."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"ring\.key: the key cannot be written: File too large"):
            make_key_file(tmp_path / "ring.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    make_key_file(tmp_path / "ring.key")
    load_keys(tmp_path / "ring.key", origin="key_file")


# -- several keys in one file


def test_every_line_is_a_key_in_this_order(key_file: Path, other_key_file: Path) -> None:
    both = key_file.with_name("both.key")
    both.touch(0o600)
    both.write_text(key_file.read_text() + other_key_file.read_text() + "\n")
    alone = [load_keys(path, origin="key_file")[0] for path in (key_file, other_key_file)]
    assert [key.sign(b"x") for key in load_keys(both, origin="key_file")] == [key.sign(b"x") for key in alone]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["a", "a"], ": the same line twice; each must be another key"),
        (["a", "A"], ": the same line twice; each must be another key"),
        (["a", "b", "c", "d", "e"], ": more than 4 lines; a key that no rank uses any more must go"),
        (["a", "x", "b"], ", line 2: this is not a key; make one with `python -m ringwide keygen FILE`"),
        (["a", "", "b"], ", line 2: this is not a key; make one with `python -m ringwide keygen FILE`"),
    ],
)
def test_a_file_with_a_wrong_line_is_refused(key_file: Path, lines: list[str], problem: str) -> None:
    key_file.write_text("".join(f"ringwide-key-1 {line * 64}\n" if line else "\n" for line in lines))
    with pytest.raises(ConfigError) as caught:
        load_keys(key_file, origin="key_file")
    assert str(caught.value) == f"key_file: {key_file}{problem}"


def test_no_file_gets_a_name_that_would_be_taken_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="would be taken for a key itself; choose another name"):
        make_key_file(Path("ringwide-key-1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_key_is_read(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    load_keys(key_file, origin="key_file")


WRONG = {
    "nothing": "",
    "another text": "hunter2 is my password\n",
    "another label": "ringwide-key-2 {digits}\n",
    "digits alone": "{digits}\n",
    "too short": "ringwide-key-1 {digits:.62}\n",
    "too long": "ringwide-key-1 {digits}00\n",
    "not hexadecimal": "ringwide-key-1 {digits:.62}zz\n",
    "not even text": "\N{SNOWMAN}" * 500,
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_is_no_key_is_refused_without_being_shown(key_file: Path, text: str) -> None:
    digits = key_file.read_text().split()[1]
    key_file.write_text(text.format(digits=digits))
    with pytest.raises(ConfigError) as caught:
        load_keys(key_file, origin="RINGWIDE_KEY_FILE")
    assert str(caught.value) == (
        f"RINGWIDE_KEY_FILE: {key_file}: this is not a key; make one with `python -m ringwide keygen FILE`"
    )
    assert caught.value.__cause__ is None
    assert digits[:16] not in str(caught.value)


def test_a_key_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gone: there is no such key file; make one with `python -m ringwide keygen"):
        load_keys(tmp_path / "gone", origin="key_file")


def test_what_is_no_file_is_refused_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="this is not a file"):
            load_keys(path, origin="key_file")

from pathlib import Path

import pytest

from ringwide.bootstrap.peers import Address, check_rank, load_peers
from ringwide.errors import ConfigError


def written(directory: Path, text: str, name: str = "peers.txt") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_gives_one_address_per_rank() -> None:
    assert load_peers(["a.example:1", "[::1]:65535"]) == (Address("a.example", 1), Address("::1", 65535))


def test_ranks_are_lines_without_blanks_and_comments(tmp_path: Path) -> None:
    path = written(tmp_path, "# desk\n\n10.0.0.1:5000  # rank 0\n   \n[fe80::1%eth0]:5001\r\n\thost-c:5002\n")
    assert [str(address) for address in load_peers(path)] == ["10.0.0.1:5000", "[fe80::1%eth0]:5001", "host-c:5002"]
    assert load_peers(str(path)) == load_peers(path)


def test_a_yaml_list_is_read_as_text(tmp_path: Path) -> None:
    # 10:30 is the number 630 to a YAML 1.1 loader.
    path = written(tmp_path, '# two\n- 10:30\n- "[::1]:29500"\n- localhost:7\n', "peers.yaml")
    assert load_peers(path) == (Address("10", 30), Address("::1", 29500), Address("localhost", 7))


def test_a_byte_order_mark_is_not_part_of_the_host(tmp_path: Path) -> None:
    assert load_peers(written(tmp_path, "\ufeffa:1\n")) == (Address("a", 1),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("host", "needs a host and a port"),
        (":5000", "needs a host and a port"),
        ("[::1]", "needs a host and a port"),
        ("[::1:5000", "needs a host and a port"),
        ("::1:5000", "brackets"),
        ("[host]:5000", "not an IPv6 address"),
        ("host:", "number"),
        ("host:http", "number"),
        ("host:-1", "number"),
        ("host:²", "number"),
        ("host:0", "between 1 and 65535"),
        ("host:65536", "between 1 and 65535"),
        ("host:" + "9" * 5000, "between 1 and 65535"),
        ("tcp://host:5000", "cannot be a host name"),
        ("host/x:5000", "cannot be a host name"),
        ("a:1,b:2", "cannot be a host name"),
        ("two words:5000", "cannot be a host name"),
    ],
)
def test_a_bad_address_cites_its_line_its_text_and_the_cure(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, f"# ring\ngood:1\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_peers(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: {text!r}: ")
    assert problem in message
    assert "write host:port" in message


@pytest.mark.parametrize("second", ["a:1", "[0::1]:1"])
def test_a_duplicate_cites_both_places(second: str) -> None:
    with pytest.raises(ConfigError, match=r"peers\[2\].*peers\[\d\] has it already"):
        load_peers(["a:1", "[::1]:1", second])


def test_a_list_index_is_cited() -> None:
    with pytest.raises(ConfigError, match=r"^peers\[1\]: 'b'"):
        load_peers(["a:1", "b"])
    with pytest.raises(ConfigError, match=r"^peers\[0\]: 5000: each peer is a string"):
        load_peers([5000])  # type: ignore[list-item]


@pytest.mark.parametrize(("name", "text"), [("p.txt", ""), ("p.txt", "# nobody\n\n"), ("p.yaml", ""), ("p.yaml", "[]")])
def test_an_empty_file_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="no peers in it"):
        load_peers(written(tmp_path, text, name))


def test_an_empty_list_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^peers: no peers"):
        load_peers([])


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.txt: there is no such peers file"):
        load_peers(tmp_path / "gone.txt")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_peers(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_peers(binary)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a:1\n- [::1]:2\n", ":2: not YAML"),
        ("- a:1\n- b:2\n- bad\n", ":3: 'bad'"),
        ("- a:1\n- [b, 2]\n", ":2: not text"),
        ("- a:1\n- host: b\n", ":2: not text"),
        ("peers:\n- a:1\n", ":1: not a list"),
        ("- a:1\n--- \n- b:2\n", "not YAML"),
    ],
)
def test_a_yaml_mistake_cites_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text, "peers.yml")
    with pytest.raises(ConfigError) as caught:
        load_peers(path)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 4), (3, 4)])
def test_ranks_in_range_pass(rank: int, size: int) -> None:
    check_rank(rank, size, "peers.txt")


@pytest.mark.parametrize(
    ("rank", "size", "allowed"), [(4, 4, "0 to 3"), (-1, 2, "0 to 1"), (1, 1, "the only rank is 0")]
)
def test_a_rank_out_of_range_names_value_and_range(rank: int, size: int, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} is out of range: peers.txt names {size} peer.*{allowed}"):
        check_rank(rank, size, "peers.txt")


def test_a_rank_from_the_command_line_is_no_integer_yet() -> None:
    with pytest.raises(ConfigError, match="rank '0' is a str; it must be an integer"):
        check_rank("0", 2, "peers.txt")  # type: ignore[arg-type]

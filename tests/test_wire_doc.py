"""`docs/wire.md` says what the code does: every table of it is compared."""

import json
import struct
from dataclasses import fields
from pathlib import Path

import pytest

from ringwide.collectives import running_collective
from ringwide.compression.codecs import registry
from ringwide.protocol import frame, handshake, heartbeat, key_proof, p2p
from ringwide.transport import aead_wire
from ringwide.transport.link import EXPRESS_BYTES, EXPRESS_MEMORY_BYTES

WIRE = Path(__file__).parent.parent / "docs" / "wire.md"
TYPES = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"}


def table_under(heading: str, number: int = 0) -> list[list[str]]:
    """The rows of a section's table, without its head."""
    section = WIRE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    tables = [block.split("\n") for block in section.strip().split("\n\n") if block.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number][2:]]


def test_the_header() -> None:
    order, *codes = frame._LAYOUT.format
    assert order == "<"
    rows, offset = [], 0
    for name, code in zip(frame.Header._fields, codes, strict=True):
        width = struct.calcsize(order + code)
        rows.append([str(offset), str(width), name, TYPES[code]])
        offset += width
    assert [row[:4] for row in table_under("The header")] == rows


def test_magic_and_version() -> None:
    meanings = {row[2]: row[4] for row in table_under("The header")}
    packed = frame.news(frame.FrameKind.LOST, "")
    assert meanings["magic"] == f"the letters `{packed[:2].decode()}`"
    assert meanings["version"] == f"of this protocol: {packed[2]}"


def test_the_kinds() -> None:
    rows = [(row[0], int(row[1])) for row in table_under("The kinds")]
    assert rows == [(kind.name, int(kind)) for kind in frame.FrameKind]


@pytest.mark.parametrize(
    ("number", "shape"), [(0, handshake.Hello), (1, handshake.Difference), (2, key_proof.Challenge)]
)
def test_the_handshake(number: int, shape: type) -> None:
    assert [row[0] for row in table_under("The handshake", number)] == [field.name for field in fields(shape)]


def test_a_hello_has_exactly_these_types() -> None:
    hello = {"rank": 0, "size": 1, "lane": 0, "peers": "", "settings": {}, "checksum": True, "shares": False}
    types = {row[0]: row[1] for row in table_under("The handshake")}
    assert types == {name: type(value).__name__ for name, value in hello.items()}
    assert handshake.Hello(**hello) == handshake.read_hello(json.dumps(hello).encode())  # type: ignore[arg-type]


def test_the_codecs() -> None:
    rows = [(int(row[0]), row[1]) for row in table_under("Codecs")]
    assert rows == [(codec.number, codec.name) for codec in map(registry.make, registry.NAMES)]


def test_the_limits() -> None:
    assert [int(row[1]) for row in table_under("Limits")] == [
        frame.HEADER_BYTES,
        frame.NEWS_LIMIT_BYTES,
        EXPRESS_BYTES,
        EXPRESS_MEMORY_BYTES,
        running_collective.WINDOW,
        running_collective.LIMIT_BYTES_PER_PEER,
        aead_wire.RECORD_LIMIT_BYTES,
        handshake.RANKS_LIMIT,
        handshake.LANES_LIMIT,
        p2p.KEPT_LIMIT_BYTES,
    ]


def test_the_record() -> None:
    rows = [(row[0], row[1]) for row in table_under("Encryption")]
    length, tag = aead_wire._LENGTH.size, aead_wire.TAG_BYTES
    assert rows == [("0", f"{length}"), (f"{length}", "length"), (f"{length} + length", f"{tag}")]
    assert aead_wire._LENGTH.format == "<I"
    assert aead_wire._NONCE_BYTES * 8 == 96


def test_the_heartbeat() -> None:
    order, *codes = heartbeat._LAYOUT.format + heartbeat._CHECK.format.removeprefix("<")
    rows, offset = [], 0
    for name, code in zip(["kind", "", *heartbeat.Heartbeat._fields[1:], "check"], codes, strict=True):
        width = struct.calcsize(order + code)
        if name:
            rows.append([str(offset), str(width), name, TYPES[code]])
        offset += width
    assert [row[:4] for row in table_under("Heartbeats")] == rows
    assert offset == heartbeat.HEARTBEAT_BYTES
    assert f"lane {heartbeat.HEARTBEAT_LANE}" in WIRE.read_text()


@pytest.mark.parametrize(
    ("number", "layout", "names"),
    [(0, p2p._TERMS, p2p.Offer._fields[1:-1]), (1, p2p._WANTED, p2p.Offer._fields[1:3])],
)
def test_the_payloads_of_p2p(number: int, layout: struct.Struct, names: tuple[str, ...]) -> None:
    order, *codes = layout.format
    rows, offset = [], 0
    for name, code in zip(names, codes, strict=True):
        width = struct.calcsize(order + code)
        rows.append([str(offset), str(width), name, TYPES[code]])
        offset += width
    assert [row[:4] for row in table_under("Messages", number)] == rows
    assert offset == layout.size


def test_what_is_said_of_p2p() -> None:
    meanings = dict(part.split(": ") for part in table_under("Messages")[0][4].split(", "))
    assert meanings == {
        str(int(p2p.Space.MESSAGES)): "a message",
        str(int(p2p.Space.EXCHANGES)): "a part of an exchange",
    }
    text = " ".join(WIRE.read_text().split())
    assert f"lane {p2p.P2P_LANE}" in text
    beside, character = p2p.kept_bytes(""), p2p.kept_bytes("x") - p2p.kept_bytes("")
    assert f"takes {beside} bytes and {character} for each character" in text

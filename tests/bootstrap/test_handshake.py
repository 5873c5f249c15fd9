"""Input of ranks to a handshake: checksums, and the longest hello that fits."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

import ringwide
from local_ring import free_peers, on_every_rank
from ringwide import RingConfig
from ringwide.bootstrap.handshake import HandshakeTerms, Unproven, _wire
from ringwide.bootstrap.protection import Protection
from ringwide.bootstrap.untrusted_connection import HANDSHAKE_BYTES, UntrustedConnection
from ringwide.errors import ConfigError
from ringwide.protocol.frame import HEADER_BYTES
from ringwide.protocol.handshake import RANKS_LIMIT
from ringwide.protocol.key_proof import KEY_BYTES, KEYS_LIMIT, NONCE_BYTES, PROOF_BYTES, Challenge, Secret
from ringwide.runtime.connections import _PEERS_IN_FULL_BYTES
from ringwide.transport.wire import PlainWire

SECRET = Secret(bytes(range(KEY_BYTES)))


class Connected(socket.socket):
    """A connection between two places, as far as it is asked where they are."""

    def __init__(self, here: str, there: str) -> None:
        super().__init__()
        self._places = here, there

    def getsockname(self) -> Any:
        return self._places[0], 1

    def getpeername(self) -> Any:
        return self._places[1], 2


class Opaque(PlainWire):
    """A wire that somebody else guards."""

    plain = False


def wishes(protection: Protection, here: str, there: str, kind: type[PlainWire] = PlainWire) -> bool:
    with Connected(here, there) as sock:
        return HandshakeTerms(0, 2, "", {}, protection).hello(0, UntrustedConnection(kind(sock))).checksum


@pytest.mark.parametrize(
    ("here", "there", "wished"),
    [
        ("10.0.0.1", "10.0.0.2", True),
        ("10.0.0.1", "10.0.0.1", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("::1", "::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_auto_wishes_for_checksums_beyond_this_machine(here: str, there: str, wished: bool) -> None:
    assert wishes(Protection(), here, there) is wished
    assert wishes(Protection(checksum=True), here, there)
    assert not wishes(Protection(checksum=False), here, there)
    assert not wishes(Protection(encrypt=True, secrets=(SECRET,)), here, there), (
        "records that do not open are damage enough"
    )
    assert not wishes(Protection(), here, there, Opaque)


async def test_a_lane_is_sealed_if_either_side_wishes() -> None:
    peers_wishes = {"neither": (False, "auto"), "one": (True, False), "both": (True, True)}
    for who, checksums in peers_wishes.items():
        assert await sealed_lanes(checksums) == [{who != "neither"}] * 2


async def sealed_lanes(checksums: tuple[Any, Any]) -> list[set[bool]]:
    peers, both = free_peers(2), asyncio.Barrier(2)

    async def one(rank: int) -> set[bool]:
        config = RingConfig(checksum=checksums[rank], lanes=2)
        async with ringwide.join(rank=rank, peers=peers, config=config) as ring:
            await both.wait()
            return {lane.sealed for link in ring._engine.links.values() for lane in link.lanes.values()}

    return await asyncio.gather(one(0), one(1))


async def test_encrypted_rings_encrypt(key_file: Path) -> None:
    async def wires(ring: ringwide.Ring) -> set[str]:
        return {type(lane._wire).__name__ for link in ring._engine.links.values() for lane in link.lanes.values()}

    assert await on_every_rank(2, wires, key_file=key_file, encrypt=True) == [{"EncryptedWire"}] * 2
    assert await on_every_rank(2, wires, key_file=key_file, same_host="unix") == [{"PlainWire"}] * 2


def test_what_shall_be_encrypted_never_goes_in_the_clear() -> None:
    with pytest.raises(ConfigError, match="encrypt needs the key that all ranks share"):
        Protection(encrypt=True)
    terms = HandshakeTerms(0, 2, "", {}, Protection(encrypt=True, secrets=(SECRET,)))
    with (
        Connected("10.0.0.1", "10.0.0.2") as sock,
        pytest.raises(Unproven, match="nothing was proven from which encryption keys"),
    ):
        _wire(UntrustedConnection(PlainWire(sock)), terms, None, dialed=True)


def test_the_longest_handshake_fits() -> None:
    """A run's id of 128 characters, each of which is twelve when escaped, and as many peers as are sent in full."""
    config = RingConfig(run_id="\N{GRINNING FACE}" * 128, codec="lz4", tree_bytes="256KiB")
    settings = config.compared()
    terms = HandshakeTerms(
        RANKS_LIMIT - 2, RANKS_LIMIT, "x" * _PEERS_IN_FULL_BYTES, settings, Protection(run_id=config.run_id)
    )
    with Connected("10.0.0.1", "10.0.0.2") as sock:
        hello = terms.hello(255, UntrustedConnection(PlainWire(sock))).body()
    challenge = Challenge(terms.rank, terms.size, 255, "0" * 2 * NONCE_BYTES, "0" * 16 * KEYS_LIMIT, "0" * 64).body()
    assert 2 * HEADER_BYTES + len(challenge) + len(hello) + 2 * PROOF_BYTES <= HANDSHAKE_BYTES

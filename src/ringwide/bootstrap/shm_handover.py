"""Handover of shared memory between two ranks on one machine, when they have met and before their lane begins."""

import errno
import os
import socket
from functools import cache

from ringwide.bootstrap.untrusted_connection import HungUp, UntrustedConnection, until_readable
from ringwide.errors import RemoteProtocolError
from ringwide.transport.shm_arena import ArenaReader, ArenaShape, ArenaWriter
from ringwide.transport.shm_lane import SharedWire

_HERE_IT_IS = b"\0"
_FILES = 2  # the memory, and its bell


@cache
def can_share() -> bool:
    """Does this system have memory that can be handed over? Not every one does, or lets every process."""
    try:
        ArenaWriter(ArenaShape(1, 1)).close()
    except AttributeError:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not now, but it will be asked again
    return True


async def share(channel: UntrustedConnection, shape: ArenaShape) -> SharedWire:
    """Both sides have said that they do. Descriptors travel with a byte of their own."""
    outgoing, sock = ArenaWriter(shape), channel.wire.socket
    try:
        socket.send_fds(sock, [_HERE_IT_IS], outgoing.files)  # the kernel has room: all before it has been answered
        outgoing.handed_over()
        return SharedWire(sock, outgoing, ArenaReader(shape, *await _receive(sock)))
    except BaseException:
        outgoing.close()
        raise


async def _receive(sock: socket.socket) -> list[int]:
    while True:
        try:
            data, files, flags, _ = socket.recv_fds(sock, len(_HERE_IT_IS), _FILES, socket.MSG_CMSG_CLOEXEC)
            break
        except (BlockingIOError, InterruptedError):
            await until_readable(sock)
    if data == _HERE_IT_IS and len(files) == _FILES and not flags & socket.MSG_CTRUNC:
        return files
    for file in files:
        os.close(file)
    if not data:
        raise HungUp("the connection ended where memory was due")
    raise RemoteProtocolError("it shares something else than memory and a bell")

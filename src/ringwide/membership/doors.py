"""Where this rank is found: on TCP, and for ranks on this machine beside it on a Unix-domain socket."""

import errno
import logging
import socket

from ringwide.errors import AddressError
from ringwide.membership.listening import BACKLOG, adopted, listen, resolved
from ringwide.membership.peers import Address
from ringwide.membership.same_host import SameHost, is_wildcard, unix_name

logger = logging.getLogger("ringwide.membership")


def open_doors(
    where: Address | socket.socket, known_as: Address, *, rank: int, beyond_loopback: bool, same_host: SameHost
) -> tuple[socket.socket, ...]:
    """Sockets that listen, the one for TCP first.

    `where` is an address, or a socket that listens already; `known_as` is what the peers file says. Whoever can connect
    by TCP could do so by the other already: a dialer relies on it. Only a socket that listened before is an exception.
    """
    beside: list[socket.socket] = []

    def open_beside(tcp: socket.socket) -> None:
        if same_host != "tcp" and (unix := _listen_beside(tcp, known_as, rank, same_host)) is not None:
            beside.append(unix)

    try:
        if isinstance(where, Address):
            tcp = listen(where, rank=rank, beyond_loopback=beyond_loopback, when_bound=open_beside)
        else:
            tcp = adopted(where, rank=rank, beyond_loopback=beyond_loopback)
            open_beside(tcp)
    except BaseException:
        for unix in beside:
            unix.close()
        raise
    return (tcp, *beside)


def _listen_beside(tcp: socket.socket, known_as: Address, rank: int, same_host: SameHost) -> socket.socket | None:
    sockaddr = tcp.getsockname()
    if is_wildcard(sockaddr):
        # Dialers come with the address of the peers file, and it is ours: unless somebody else's port leads here.
        port, (_, sockaddr) = sockaddr[1], resolved(known_as)
        if known_as.port != port:
            return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(unix_name(sockaddr))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        problem = "somebody else has taken its name" if error.errno == errno.EADDRINUSE else error.strerror or error
        if same_host == "unix":
            raise AddressError(f"rank {rank} cannot listen on a Unix-domain socket", str(problem)) from error
        logger.warning("rank %d has no Unix-domain socket, and uses TCP on this machine: %s", rank, problem)
        return None
    return sock

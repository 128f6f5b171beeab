"""From a place to a connection: resolve once, judge every answer, connect to one that was judged.

Its job: the one decision about a name's addresses, and the connected socket.
Not its job: what is said on it (``tunnel.py``, ``stream.py``).
Laws:
1. A name of which any answer is refused is refused (tests/egress/test_dial.py).
2. A connection is made only to an address that was judged in the same lookup (tests/egress/test_dial.py).
3. Whatever a resolver does, it is an answer or none: nothing it raises gets further (tests/egress/test_dial.py).
4. An address that was named by its literal is judged as well (tests/egress/test_dial.py).
"""

import errno
import os
import socket
from collections.abc import Sequence

import trio

from engine.egress.address import named, own_addresses, refusal
from engine.egress.resolver import Resolver, bounded
from engine.egress.traffic import Denied
from engine.policy.network import Place, Rule


async def vetted(place: Place, rule: Rule, resolver: Resolver) -> Sequence[str]:
    """The addresses of a place, all of them allowed, in the order of the answers. Raises Denied."""
    if place.literal:
        answers: Sequence[str] = (place.host,)
    else:
        try:
            answers = bounded(await resolver.addresses(place.host))
        except Exception:  # security: a resolver of the operator's own may raise anything, with the name in it
            raise Denied("resolve") from None
    # security: a name with one good answer and one bad one leads to the bad one at the next try
    if any(refusal(answer, private=rule.private, own=()) is not None for answer in answers):
        raise Denied("address")
    if not all(named(answer, rule.private) for answer in answers):  # asking for this host's own takes 80 us
        own = own_addresses()
        if any(refusal(answer, private=rule.private, own=own) is not None for answer in answers):
            raise Denied("address")
    return answers


async def dialled(place: Place, port: int, rule: Rule, resolver: Resolver, seconds: float) -> socket.socket:
    """A connected socket, within that time for all of it. Raises Denied."""
    with trio.move_on_after(seconds) as within:
        answers = await vetted(place, rule, resolver)
        for number, answer in enumerate(answers):
            left = within.deadline - trio.current_time()
            # an address that swallows packets must not use up the time of those after it
            with trio.move_on_after(left / (len(answers) - number)):
                if (found := await _connected(answer, port)) is not None:
                    return found
        raise Denied("unreachable")
    raise Denied("unreachable")


async def _connected(address: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    except OSError:  # no such family on this host, or our own table of descriptors is full
        return None
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = made.connect_ex((address, port))
        if problem == errno.EINPROGRESS and (problem := made.connect_ex((address, port))) in (errno.EALREADY, errno.EINPROGRESS):
            await trio.lowlevel.wait_writable(made)  # a neighbour had it taken by the second try
            problem = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem not in (0, errno.EISCONN):
            raise OSError(problem, os.strerror(problem))
    except OSError:
        made.close()
        return None
    except BaseException:
        made.close()
        raise
    return made

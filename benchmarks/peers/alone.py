"""Run a command where there is no network but loopback (Linux): whatever it listens on, nobody else can reach.

    python alone.py command ...

Ray listens on every interface, whatever it is told. Runs on any Python of a peer.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
import time

NEW_USER, NEW_NET = 0x10000000, 0x40000000
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1


def unshare(what):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(what):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def leave():
    """Into a network namespace of its own; for whoever is not root, with a user namespace around it."""
    user, group = os.getuid(), os.getgid()
    try:
        unshare(NEW_NET)
    except OSError:
        unshare(NEW_USER | NEW_NET)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/self/{file}", "w") as out:
                out.write(text)


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(s, GET_FLAGS, asked))[1]
        fcntl.ioctl(s, SET_FLAGS, struct.pack("16sh14x", b"lo", flags | UP))


if __name__ == "__main__":
    try:
        leave()
        raise_loopback()
    except OSError as error:
        sys.exit(f"OSError: no network of its own for this process ({error}): it is not run on that of the machine")
    os.environ["PEER_BEGUN"] = repr(time.time())  # the peer's clock starts here
    os.execvp(sys.argv[1], sys.argv[1:])

"""Start a program as a system without POSIX would: python tests/without_posix.py CODE.

The modules and functions of POSIX are gone, folders cannot be opened, and a file that is open can be neither renamed,
replaced nor removed, nor the folder that it is in: as on Windows.
"""

import os
import signal
import sys
from pathlib import Path

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "pty", "tty")
OF_OS = (
    *("fork", "forkpty", "getuid", "geteuid", "getpgid", "setsid", "killpg", "sysconf", "mkfifo", "statvfs", "uname"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "kill"),
)
OF_SIGNAL = ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "setitimer", "pthread_sigmask", "pthread_kill")


class Blocked:
    """Finds none of the modules."""

    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ImportError(f"there is no {name} on this system")


def opened():
    """The paths of files that this process has open."""
    for number in os.listdir("/proc/self/fd"):
        try:
            yield Path(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the listing's own


def check_closed(path):
    path = Path(path).absolute()
    if any(path in (one, *one.parents) for one in opened()):
        raise PermissionError(13, "it is open", str(path))


def emulate():
    sys.meta_path.insert(0, Blocked())
    for name in MODULES:
        sys.modules.pop(name, None)
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in ("supports_dir_fd", "supports_fd"):
        setattr(os, name, set())
    opens, stats, renames, replaces, unlinks = os.open, os.stat, os.rename, os.replace, os.unlink

    def open_file(path, flags, mode=0o777, *, dir_fd=None):
        assert dir_fd is None
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opens(path, flags, mode)

    def stat(path, *, dir_fd=None, follow_symlinks=True):
        assert dir_fd is None
        return stats(path, follow_symlinks=follow_symlinks)

    def rename(old, new, *, src_dir_fd=None, dst_dir_fd=None):
        assert src_dir_fd is dst_dir_fd is None
        if os.path.exists(new):
            raise FileExistsError(17, "File exists", str(new))
        check_closed(old)
        renames(old, new)

    def replace(old, new, *, src_dir_fd=None, dst_dir_fd=None):
        assert src_dir_fd is dst_dir_fd is None
        check_closed(old)
        check_closed(new)
        replaces(old, new)

    def unlink(path, *, dir_fd=None):
        assert dir_fd is None
        check_closed(path)
        unlinks(path)

    os.open, os.stat, os.rename, os.replace, os.unlink = open_file, stat, rename, replace, unlink


if __name__ == "__main__":
    import logging  # noqa: F401 - others' modules find the system that they know
    import multiprocessing.connection  # noqa: F401
    import shutil  # noqa: F401
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401

    import filelock
    import jax.numpy  # noqa: F401
    import scipy.linalg  # noqa: F401

    filelock.FileLock = filelock.SoftFileLock  # the system's own is not asked
    emulate()
    exec(sys.argv[1], {"__name__": "__main__"})

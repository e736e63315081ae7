"""What does this system offer? A run needs no more than Python; what needs Linux or macOS says so here."""

from __future__ import annotations

import os
import sys

from fedpoint.core.errors import FedpointError

FOLDERS = os.open in os.supports_dir_fd  # folders can be opened, synced, and worked in whatever becomes of their names


def flags(*names: str) -> int:
    """The flags of `os.open` among these that the system knows."""
    known = vars(os)
    return sum(known.get(name, 0) for name in names)


READING = os.O_RDONLY | flags("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
NO_LINK = flags("O_NOFOLLOW")  # 0 where opening follows links: they are looked for first


def need_posix(what: str, instead: str) -> None:
    """Refuse what cannot be done without POSIX."""
    if not FOLDERS:
        raise FedpointError(f"{what} needs Linux or macOS, and this is {sys.platform}: {instead}")


def physical_memory() -> int:
    """Bytes of memory that the machine has; beyond all use where it does not say."""
    if sys.platform == "win32":
        import ctypes

        kilobytes = ctypes.c_ulonglong()
        asked = ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return 1024 * kilobytes.value if asked else sys.maxsize
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return sys.maxsize


def is_running(process: int) -> bool:
    """Whether there is a process of this number."""
    if sys.platform == "win32":  # os.kill ends processes there, whatever signal it is given
        import ctypes

        QUERY, STILL_ACTIVE, code = 0x1000, 259, ctypes.c_ulong()
        handle = ctypes.windll.kernel32.OpenProcess(QUERY, False, process)
        if not handle:
            return False
        asked = ctypes.windll.kernel32.GetExitCodeProcess(handle, ctypes.byref(code))
        ctypes.windll.kernel32.CloseHandle(handle)
        return bool(asked) and code.value == STILL_ACTIVE
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True

"""Sandbox of a kernel's process: a supervisor outside sees and refuses forbidden system calls.

The process installs a seccomp filter on itself before it imports the kernel's file. Calls that
touch neither files nor processes pass. All others block until the parent process, which imports
nothing of the kernel's, has inspected them. A forbidden call fails with an error and is recorded in
the parent. So it does not matter which library made the call, nor whether the kernel hides the
error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import sys
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path

__all__ = ["Supervisor", "Unsupported", "confine", "supported"]

_NUMBER = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7,
    "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13,
    "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19,
    "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25, "msync": 26,
    "mincore": 27, "madvise": 28, "dup": 32, "dup2": 33, "nanosleep": 35, "getpid": 39,
    "sendmsg": 46, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "kill": 62,
    "uname": 63, "fcntl": 72, "getcwd": 79, "rename": 82, "mkdir": 83, "unlink": 87,
    "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99,
    "times": 100, "ptrace": 101, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "sigaltstack": 131, "prctl": 157, "arch_prctl": 158, "gettid": 186,
    "futex": 202, "sched_getaffinity": 204, "getdents64": 217, "set_tid_address": 218,
    "restart_syscall": 219,
    "fadvise64": 221, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "tgkill": 234, "openat": 257, "newfstatat": 262, "readlinkat": 267,
    "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292,
    "prlimit64": 302, "getcpu": 309, "getrandom": 318, "memfd_create": 319, "execveat": 322,
    "membarrier": 324, "statx": 332, "rseq": 334, "socket": 41, "connect": 42, "socketpair": 53,
    "pipe": 22, "pipe2": 293, "process_vm_readv": 310, "process_vm_writev": 311, "clone3": 435,
    "openat2": 437, "faccessat2": 439, "io_uring_setup": 425,
}  # fmt: skip
_NAME = {number: name for name, number in _NUMBER.items()}
# Index of the path argument; the one before it, if any, is the descriptor of the starting folder.
_METADATA = {
    "stat": 0, "lstat": 0, "access": 0, "readlink": 0, "newfstatat": 1, "readlinkat": 1,
    "faccessat": 1, "statx": 1, "faccessat2": 1,
}  # fmt: skip
_OPENING = {"open": 0, "openat": 1}
_SEEN = {*_METADATA, *_OPENING, "openat2", "clone", "clone3", "fork", "vfork", "execve", "kill"} | {
    "rename", "mkdir", "unlink", "ptrace", "tgkill", "prlimit64", "memfd_create", "execveat",
    "socket", "connect", "socketpair", "pipe", "pipe2", "process_vm_readv", "process_vm_writev",
    "io_uring_setup",
}  # fmt: skip
_FREE = tuple(number for name, number in _NUMBER.items() if name not in _SEEN)
_X86_64 = 0xC000003E
_SECCOMP, _SET_FILTER, _NEW_LISTENER, _NO_NEW_PRIVS = 317, 1, 8, 38
_ALLOW, _NOTIFY, _KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_CONTINUE = 1
_AT_FDCWD = -100
_THREAD = 0x10000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_NOTES, _LONGEST_PATH = 50, 4096
_DEVICES: tuple[str, ...] = ("/dev/null", "/dev/urandom", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES += ("/sys/devices/system/cpu/online", "/proc/stat", "/proc/sys/vm/overcommit_memory")
_CODE = (".py", ".pyc", ".so")


class Unsupported(Exception):
    """Error for an operating system, or a host of it, that offers no such filter."""


def supported() -> bool:
    """Return whether the system calls of this platform are known."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def confine(channel: socket.socket) -> None:
    """Install the filter in this process permanently, and send its listener to the supervisor.

    Raises:
        Unsupported: The filter cannot be installed.
    """
    if not supported():
        raise Unsupported(f"there is no filter for {sys.platform} on {platform.machine()}")
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, _X86_64), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    for left, number in zip(range(len(_FREE), 0, -1), _FREE, strict=True):
        code.append((0x15, left, 0, number))
    code += [(0x06, 0, 0, _NOTIFY), (0x06, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("HBBI", *each) for each in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise Unsupported("new privileges cannot be ruled out")
    listener = libc.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise Unsupported(os.strerror(ctypes.get_errno()))
    socket.send_fds(channel, [b"!"], [listener])
    os.close(listener)


class Supervisor:
    """Supervisor that decides on the system calls of one process, from outside.

    Attributes:
        notes: Refused calls, as texts, each once.
    """

    def __init__(self, own: str | None, readable: Collection[str], threads: bool) -> None:
        self.notes: dict[str, None] = {}
        self._threads = threads
        self._readable = {os.path.realpath(path) for path in readable}
        folders = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
        installed = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
        package = str(Path(__file__).parents[3])
        system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
        self._roots = _real([*folders, *installed, package, *system])
        here = [os.path.realpath(own)] if own else []
        known = [*self._roots, *_DEVICES, *here, *self._readable, os.getcwd(), sys.executable]
        self._ancestors = {str(each) for path in known for each in Path(path).parents} | set(here)
        self._caches = {str(Path(path).parent / "__pycache__") for path in (*self._readable, *here)}
        self._folders = {str(Path(path).parent) for path in self._readable}
        self._folders |= {
            os.path.realpath(path) for path in sys.path if path
        }  # where Python looks for modules

    def watch(self, listener: int, pid: int) -> None:
        """Answer system calls until the process has ended."""
        ended = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            poll.register(ended, select.POLLIN)
            while True:
                ready = dict(poll.poll())
                if ready.get(listener, 0) & select.POLLIN:
                    self._answer(listener, pid)
                elif ended in ready or listener in ready:
                    return
        finally:
            os.close(ended)

    def _answer(self, listener: int, pid: int) -> None:
        asked = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
        except OSError:  # the process has ended meanwhile
            return
        identity, thread, _, number, arch, _, *arguments = struct.unpack("QIIiIQ6Q", asked)
        name = (
            _NAME.get(number, f"system call {number}")
            if arch == _X86_64
            else "a call of another architecture"
        )
        error = self._error(name, arguments, pid, thread)
        flags = 0 if error else _CONTINUE
        with contextlib.suppress(OSError):
            fcntl.ioctl(listener, _ANSWER, struct.pack("QqiI", identity, 0, -error, flags))

    def _error(self, name: str, arguments: Sequence[int], pid: int, thread: int) -> int:
        """Return 0 if a call may proceed, else the number of the error that it gets."""
        if name == "clone3":  # its flags cannot be seen; the C library then calls clone
            return errno.ENOSYS
        if name == "clone" and arguments[0] & _THREAD and self._threads:
            return 0
        if name in ("tgkill", "kill") and arguments[0] == pid:
            return 0
        if name == "prlimit64" and not arguments[2] and arguments[0] in (0, pid):
            return 0
        if name in _METADATA or name in _OPENING:
            return self._path_error(name, arguments, thread)
        self._note(f"calls {name}")
        return errno.EPERM

    def _path_error(self, name: str, arguments: Sequence[int], thread: int) -> int:
        place = _METADATA.get(name, _OPENING.get(name, 0))
        path = _text(thread, arguments[place])
        if path is None:
            self._note(f"calls {name}")
            return errno.EPERM
        if not path and name not in _OPENING:
            return 0  # the call is on an open file
        if not path.startswith("/"):
            descriptor = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value if place else _AT_FDCWD
            start = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
            try:
                path = str(Path(os.readlink(f"/proc/{thread}/{start}"), path))
            except OSError:
                return errno.ENOENT
        real = os.path.realpath(path)
        if any(real.startswith(f"{cache}/") or real == cache for cache in self._caches):
            return errno.ENOENT  # only the source that was read beforehand counts
        if name in _METADATA:
            allowed = self._is_near(real)
        else:
            flags = arguments[place + 1]
            allowed = not flags & _WRITING and self._may_open(real)
            allowed |= path == "/dev/null"
        if allowed:
            return 0
        self._note(f"{'looks at' if name in _METADATA else 'opens'} {path}")
        return errno.EACCES

    def _is_near(self, path: str) -> bool:
        inside = path.startswith(tuple(f"{root}/" for root in self._roots))
        known = path in self._roots or path in self._ancestors or path in self._readable
        beside = not self._folders.isdisjoint({path, str(Path(path).parent)})
        return inside or known or beside or path in _DEVICES

    def _may_open(self, path: str) -> bool:
        if path in _DEVICES or path in self._readable or path in self._folders:
            return True
        if not path.startswith(tuple(f"{root}/" for root in self._roots)):
            return path in self._roots
        return path.endswith(_CODE) or ".so." in path or Path(path).is_dir()

    def _note(self, text: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes[text[:300]] = None


def _real(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for path in paths for each in (path, os.path.realpath(path))))


def _text(thread: int, address: int) -> str | None:
    """Return the text at an address of another process; None if it cannot be read."""
    found = b""
    try:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            while b"\0" not in found and len(found) < _LONGEST_PATH:
                memory.seek(address + len(found))
                part = memory.read(256 - (address + len(found)) % 256)
                if not part:
                    return None
                found += part
    except (OSError, OverflowError, ValueError):
        return None
    return os.fsdecode(found.split(b"\0")[0])

"""Files that are whole or not there, and directories that one process writes to."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file by way of a temporary one beside it: a kill leaves the old file or the new one.

    A symbolic link stays one: what it points to is written.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # `tempfile` would keep others from reading
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_directory(path.parent)


def make_writable_directory(path: Path) -> None:
    """Makes the directory, and proves by a file that something can be written in it.

    Raises:
        OSError: it cannot be made or written to (read-only, a full disk, a file in its place).
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".writable.") as file:
            file.write(b"\0" * 4096)  # a full disk lets empty files through
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise type(error)(error.errno, f"cannot write in the directory {path}: {error.strerror}") from error


def lock(path: Path) -> int | None:
    """Takes a lock file, until its descriptor is closed or the process ends in whatever way.

    Returns:
        The descriptor; None where the system or the file system has no such locks.

    Raises:
        BlockingIOError: somebody else has it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

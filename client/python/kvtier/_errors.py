"""Errors as exceptions: one class for each of kvtier's error codes (core/include/kvtier/result.h)."""


class KvtierError(Exception):
    """Whatever kvtier refuses or fails at. The text says what, where, and the mend where there is one."""

    code: str = ""


class UnavailableError(KvtierError, ConnectionError):
    """No daemon is there, the connection ended, the client was closed, or it is of a process that was forked from."""

    code = "unavailable"


class DeadlineError(KvtierError, TimeoutError):
    """The time that was given passed first."""

    code = "deadline"


class RefusedError(KvtierError, PermissionError):
    """The daemon understood and said no."""

    code = "refused"


class MalformedError(KvtierError):
    """Bytes that do not follow their format."""

    code = "malformed"


class VersionError(KvtierError):
    """The daemon speaks another version."""

    code = "version"


class InvalidError(KvtierError, ValueError):
    """An argument is out of its range, or does not fit the others."""

    code = "invalid"


class NotFoundError(KvtierError, LookupError):
    """The named thing is not there."""

    code = "not_found"


class NoSpaceError(KvtierError):
    """A cap or a bounded queue is full."""

    code = "no_space"


class IoError(KvtierError, OSError):
    """The kernel or a device failed."""

    code = "io"


class CorruptError(KvtierError):
    """Header, proof or checksum of a block does not hold."""

    code = "corrupt"


class StaleError(KvtierError):
    """A lease ended before what was asked of it."""

    code = "stale"


_CLASSES: dict[str, type[KvtierError]] = {kind.code: kind for kind in KvtierError.__subclasses__()}


def error_of(code: str, message: str) -> KvtierError:
    """The exception of an error code's name."""
    return _CLASSES.get(code, KvtierError)(message)


def exception_of(parts: tuple[str, str] | None) -> KvtierError | None:
    """Of a code's name and a message, where there is one."""
    return None if parts is None else error_of(*parts)

"""Parses and prints addresses: `host:port`, IPv6 hosts in brackets, port 0 for any free one."""

from ipaddress import ip_address

from strobe.errors import UsageError


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Return host and port of `text`; `what` is the setting that contains it."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{what} {text!r} is ambiguous: write an IPv6 address in brackets, like [::1]:7400")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(f"{what} {text!r} is no address; write host:port, like 127.0.0.1:7400, or port 0 for any")
    return host, int(port)


def print_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_anywhere(host: str) -> bool:
    """Return whether `host` means all addresses of the machine, which no other machine can connect to."""
    return host in ("0.0.0.0", "::", "")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

"""What the text of an XID line says beyond its number. Pure readers; None or empty where the text says nothing."""

import re

_BDF = re.compile(
    r"(?<![0-9a-fA-F.])([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?(?![0-9a-fA-F]|:[0-9a-fA-F])"
)
_MIG = re.compile(r"GPU-I:(\w{1,8})")
_RESET = re.compile(r"(D-)?RST:\s{0,4}(Yes|No)", re.IGNORECASE)
_RECOVERY = re.compile(r"changed from 0x[0-9a-fA-F]{1,8} \([^)]{0,60}\) to 0x([0-9a-fA-F]{1,8}) ?\(([^)]{0,60})\)")
_PLACE = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})(?:, SM \d{1,3})?\)")
_LINK_EVENT = re.compile(r"NETIR_LINK_EVT.{0,120}?\(0x([0-9a-fA-F]{1,8})\b")
_NAMED = re.compile(r"\bXID[ :_=#-]{0,3}(\d{1,4})\b", re.IGNORECASE)


def pci_address(text: str) -> str | None:
    """`0000:ab:00` of the first PCI address in any of its spellings (case, 8-digit domain, function)."""
    found = _BDF.search(text)
    if found is None:
        return None
    domain, bus, device = (part.lower() for part in found.groups())
    if len(domain) > 4:
        domain = domain[:-4].lstrip("0") + domain[-4:]
    return f"{domain}:{bus}:{device}"


def mig_instance(text: str) -> str | None:
    """GPU instance of a MIG line: the fault is that instance's, not the node's."""
    found = _MIG.search(text)
    return found.group(1) if found else None


def needs_reset(text: str) -> bool | None:
    """What the `RST:` and `D-RST:` flags say; None on drivers without them."""
    flags = [yes.lower() == "yes" for _, yes in _RESET.findall(text)]
    return any(flags) if flags else None


def recovery_action(text: str) -> tuple[int, str] | None:
    """New value and name of the recovery action in an XID 154 line."""
    found = _RECOVERY.search(text)
    return (int(found.group(1), 16), found.group(2).strip()) if found else None


def place(text: str) -> str | None:
    """`GPC 1, TPC 3` of an XID 13 line: two faults at one place point at the hardware; the SM may differ."""
    found = _PLACE.search(text)
    return f"GPC {int(found.group(1))}, TPC {int(found.group(2))}" if found else None


def link_down_reason(text: str) -> int | None:
    """Reason of an XID 149 link event: bits 25 to 20 of its first debug word (as gpud reads it)."""
    found = _LINK_EVENT.search(text)
    return (int(found.group(1), 16) >> 20) & 0x3F if found else None


def named_xid(text: str) -> int | None:
    """The XID that a reason or a tail of free text names (`healthcheck: XID 79 GPU lost`)."""
    found = _NAMED.search(text)
    return int(found.group(1)) if found else None


def signature(code: str, text: str) -> tuple[object, ...]:
    """Equal for sibling lines of one fault, unequal where the text would change the verdict."""
    return (code, mig_instance(text), needs_reset(text), recovery_action(text), link_down_reason(text))

"""What the text of an XID line says beyond its number. Pure readers; None or empty where the text says nothing."""

import re
from typing import NamedTuple

_BDF = re.compile(
    r"(?<![0-9a-fA-F.])([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?(?![0-9a-fA-F]|:[0-9a-fA-F])"
)
_MIG = re.compile(r"GPU-I:(\w{1,8})")
_RESET = re.compile(r"(D-)?RST:\s{0,4}(Yes|No)", re.IGNORECASE)
_RECOVERY = re.compile(r"changed from 0x[0-9a-fA-F]{1,8} \([^)]{0,60}\) to 0x([0-9a-fA-F]{1,8}) ?\(([^)]{0,60})\)")
_PLACE = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})(?:, SM \d{1,3})?\)")
_LINK_EVENT = re.compile(r"NETIR_LINK_EVT.{0,120}?\(0x([0-9a-fA-F]{1,8})\b")
_WORDS = r"(0x[0-9a-fA-F]{1,8}(?:,? 0x[0-9a-fA-F]{1,8}){0,15})"
_NVLINK5 = re.compile(
    r"\b([A-Z][A-Z0-9_]{2,35})\s{1,8}([A-Z][a-z-]{2,12})\s{1,8}XC ?(-?\d{1,4})\s{1,4}i ?(-?\d{1,4})"
    rf"\s{{1,4}}Link\s{{1,4}}(-?\d{{1,4}})\s{{0,4}}[\[(]{_WORDS}[\])]"
)
_REGISTERS = re.compile(rf"NVLink: .{{0,80}}?\blink (-?\d{{1,4}})\s{{0,4}}\({_WORDS}\)")
_SEVERITY = re.compile(r"(?<![\w-])(Non-fatal|Fatal|Severity\s{1,3}(\d{1,3}))\b", re.IGNORECASE)
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


def number(code: str | None) -> int:
    """An XID's code as a number; -1, which no table has, for what is none."""
    return int(code) if code and re.fullmatch(r"[0-9]{1,7}", code) else -1


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


class NvlinkEvent(NamedTuple):
    """One NVLink 5 line (XID 144 to 150) with its debug words."""

    unit: str
    """`NETIR_LINK_EVT`, `RLW_SRC_TRACK`: the part of the link hardware."""
    severity: str
    """As the line says it: `Fatal`, `Nonfatal`."""
    link: int
    """Index of the link; -1 where the driver does not know it."""
    words: tuple[int, ...]
    """Debug words; the first holds the subcode."""

    @property
    def down_reason(self) -> int:
        """Bits 25 to 20 of the first word, the reason of a lost link (as gpud reads it)."""
        return (self.words[0] >> 20) & 0x3F

    @property
    def status(self) -> int | None:
        """Error status: the second word; None in a line that is cut before it."""
        return self.words[1] if len(self.words) > 1 else None

    @property
    def high(self) -> bool:
        """The bit above the subcode is set. The subcode is bits 9 to 5 of the first word before the driver R575 and
        bits 6 to 0 since; the unit's own number tells which of them a word is."""
        return self.words[0] & 0x7FF == 0x4C2 or self.words[0] & 0xFF == 0x86


class LinkRegisters(NamedTuple):
    """One XID 74 line of NVLink 4 and older with its register words."""

    link: int
    words: tuple[int, ...]
    """Seven on A100 and H100, counted from 1 in NVIDIA's rules; a cut line has fewer."""

    def bits(self, word: int) -> frozenset[int]:
        """Set bits of a word, counted from 1 as in NVIDIA's catalogue; empty for one that the line lacks."""
        value = self.words[word - 1] if 0 < word <= len(self.words) else 0
        return frozenset(bit for bit in range(32) if value >> bit & 1)


def nvlink_event(text: str) -> NvlinkEvent | None:
    """What an NVLink 5 line says; None for another line, or one that is cut."""
    found = _NVLINK5.search(text)
    if found is None:
        return None
    return NvlinkEvent(found.group(1), found.group(2), int(found.group(5)), _words(found.group(6)))


def link_registers(text: str) -> LinkRegisters | None:
    """Link and register words of an XID 74 line; None where it has none."""
    found = _REGISTERS.search(text)
    return LinkRegisters(int(found.group(1)), _words(found.group(2))) if found else None


def _words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]{1,8}", text))


def sxid_severity(text: str) -> str | None:
    """`fatal`, `non-fatal` or `severity N` of an SXid line; None for one that is cut before it."""
    found = _SEVERITY.search(text)
    if found is None:
        return None
    return f"severity {int(found.group(2))}" if found.group(2) else found.group(1).lower()


def named_xid(text: str) -> int | None:
    """The XID that a reason or a tail of free text names (`healthcheck: XID 79 GPU lost`)."""
    found = _NAMED.search(text)
    return int(found.group(1)) if found else None


def nvsentinel_xid(condition: str, text: str) -> int | None:
    """The XID that a node condition of NVSentinel's log monitor names (`ErrorCode:79 PCI:0000:1b:00 ...`)."""
    found = re.search(r"ErrorCode:(\d{1,4})\b", text) if condition == "SysLogsXIDError" else None
    return int(found.group(1)) if found else None


def signature(code: str, text: str) -> tuple[object, ...]:
    """Equal for sibling lines of one fault, unequal where the text would change the verdict."""
    return (
        code,
        mig_instance(text),
        needs_reset(text),
        recovery_action(text),
        nvlink_event(text),
        link_registers(text),
    )

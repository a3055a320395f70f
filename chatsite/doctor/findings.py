"""What a look at the system finds, and how it is told. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

SHOWN = 5  # subjects named in the text of a finding


@dataclass(frozen=True)
class Finding:
    """Something that must not be. `subjects`: what it is about (ids, keys, days), at most a few hundred of them.

    `is_problem` False: worth knowing, and no reason to act.
    """

    check: str
    what: str
    advice: str
    subjects: tuple[str, ...] = ()
    is_problem: bool = True


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """What two looks have in common: what was only under way at one of them is no finding."""
    earlier = {finding.check: finding for finding in first}
    kept = []
    for finding in second:
        before = earlier.get(finding.check)
        if before is None:
            continue
        subjects = tuple(subject for subject in finding.subjects if subject in before.subjects)
        if subjects or not finding.subjects:
            kept.append(replace(finding, subjects=subjects))
    return kept


def as_text(findings: Sequence[Finding]) -> str:
    """For people: what is wrong, about what, and what to do."""
    if not findings:
        return "Everything is as it should be."
    parts = []
    for finding in sorted(findings, key=lambda one: not one.is_problem):
        head = "PROBLEM" if finding.is_problem else "note"
        count = f" ({len(finding.subjects)})" if finding.subjects else ""
        lines = [f"{head}  {finding.check}{count}: {finding.what}"]
        if finding.subjects:
            more = len(finding.subjects) - SHOWN
            named = ", ".join(finding.subjects[:SHOWN])
            lines.append(f"         {named}{f' and {more} more' if more > 0 else ''}")
        parts.append("\n".join([*lines, f"         → {finding.advice}"]))
    return "\n".join(parts)


def as_json(findings: Sequence[Finding]) -> str:
    """For programs."""
    return json.dumps({"healthy": healthy(findings), "findings": [asdict(finding) for finding in findings]}, indent=2)


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing calls for action."""
    return not any(finding.is_problem for finding in findings)

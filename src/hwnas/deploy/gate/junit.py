"""Results of the regression gate as JUnit XML, which continuous integration reads."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from hwnas.deploy.gate.gate import CostCheck

__all__ = ["junit"]


def junit(suite: str, verdicts: Sequence[CostCheck]) -> str:
    """Return a JUnit test suite as XML, with a test case for each check.

    Args:
        suite: Name of the suite, such as that of the checked file.
        verdicts: Results of the regression gate.
    """
    failures = sum(not verdict.ok for verdict in verdicts)
    counts = {"tests": str(len(verdicts)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", counts)
    inner = ElementTree.SubElement(root, "testsuite", {"name": suite, **counts})
    for verdict in verdicts:
        case = {"classname": "hwnas.check", "name": verdict.name}
        element = ElementTree.SubElement(inner, "testcase", case)
        if verdict.failure:
            ElementTree.SubElement(element, "failure", {"message": verdict.failure})
        said = f"{verdict.value:.6g} {verdict.unit} ({verdict.kind}) {verdict.note}".strip()
        ElementTree.SubElement(element, "system-out").text = said
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

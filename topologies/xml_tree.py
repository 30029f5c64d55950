"""Reading XML into elements that know their line and what of them was read; document types and entities are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from foreshard.topologies.errors import InputError

__all__ = ["XmlElement", "parse_xml"]

_DEEPEST = 40
_MOST_ELEMENTS = 20_000


@dataclass(slots=True)
class XmlElement:
    """An element with its attributes, children, text between them and the line it begins on.

    `seen` and `used` are set while the element is read, so that what nobody read can be told.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[XmlElement] = field(default_factory=list)
    text: str = ""
    seen: bool = False
    used: set[str] = field(default_factory=set)

    def get(self, name: str, default: str = "") -> str:
        """An attribute; it counts as read from now on."""
        self.used.add(name)
        return self.attributes.get(name, default)

    def all(self, tag: str) -> list[XmlElement]:
        """Direct children of a tag."""
        return [child for child in self.children if child.tag == tag]

    def below(self) -> Iterator[XmlElement]:
        """This element and everything below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.below()


class _Builder:
    def __init__(self, where: str) -> None:
        self.where = where
        self.root: XmlElement | None = None
        self.open: list[XmlElement] = []
        self.count = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.parser.StartDoctypeDeclHandler = self.doctype

    def refuse(self, why: str) -> InputError:
        return InputError(f"line {self.parser.CurrentLineNumber}: {why}", where=self.where)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= _DEEPEST or self.count > _MOST_ELEMENTS:
            raise self.refuse(
                f"more than {_DEEPEST} levels or {_MOST_ELEMENTS} elements are not a topology of one node"
            )
        element = XmlElement(tag, attributes, self.parser.CurrentLineNumber)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, _tag: str) -> None:
        self.open.pop()

    def characters(self, text: str) -> None:
        if text.strip():
            self.open[-1].text += text.strip()

    def doctype(self, *_arguments: object) -> None:
        raise self.refuse("document types and entities are refused: NCCL writes none")


def parse_xml(text: str, where: str) -> XmlElement:
    """Return the root element. Raises InputError naming the line for broken XML, a document type or an entity."""
    builder = _Builder(where)
    try:
        builder.parser.Parse(text.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise InputError(f"line {error.lineno}: is not XML: {expat.ErrorString(error.code)}", where=where) from error
    assert builder.root is not None
    return builder.root

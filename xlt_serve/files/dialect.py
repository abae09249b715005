"""How a text file is written: its encoding, and what stands between the fields of CSV."""

from __future__ import annotations

import codecs as registry
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import codecs
from xlt_serve.files.places import Source, opened
from xlt_serve.text.language import detect, evidence

DELIMITERS = (",", ";", "\t", "|")
SAMPLE = 1 << 16
"""Bytes that are looked at."""
RECORDS = 50
SURE = 0.9
"""From here on the language of a text says which encoding it is in."""
MARGIN = 1.05
"""By which the evidence for a reading must exceed that for another."""

MARKS = {
    registry.BOM_UTF8: "utf-8",
    registry.BOM_UTF32_LE: "utf-32",
    registry.BOM_UTF32_BE: "utf-32",
    registry.BOM_UTF16_LE: "utf-16",
    registry.BOM_UTF16_BE: "utf-16",
}
"""What a file begins with; a longer mark before a shorter one that it begins with."""

LEGACY = {
    "cp1252": ("de", "en", "es", "fr", "it", "nl", "pt"),
    "cp1250": ("pl",),
    "cp1251": ("bg", "ru"),
    "cp1253": ("el",),
    "cp1254": ("tr",),
    "cp1256": ("ar", "ur"),
    "cp874": ("th",),
    "cp1258": ("vi",),
    "gb18030": ("zh",),
    "shift_jis": ("ja",),
    "cp949": ("ko",),
    "mac_roman": ("de", "en", "es", "fr", "it", "nl", "pt"),
    "iso8859_2": ("pl",),
    "iso8859_5": ("bg", "ru"),
    "koi8_r": ("ru",),
    "iso8859_7": ("el",),
    "cp1255": ("he",),
    "euc_jp": ("ja",),
}
"""Encodings of before, and the languages that were written in them."""


MARKED = 4
"""Characters beyond ASCII from which on text that is valid UTF-8 is no text in another encoding."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How files are said to be written; "" for what they shall show themselves."""

    encoding: str = ""
    delimiter: str = ""

    def problems(self) -> dict[str, tuple[str, str]]:
        """By name, the rule that a value breaks, and the remedy."""
        out = {}
        if self.encoding and not _is_encoding(self.encoding):
            out["encoding"] = "is no encoding that Python knows", "name one, as utf-8 or cp1252"
        if self.delimiter and (len(self.delimiter) > 1 or self.delimiter in '"\r\n\0'):
            rule = "must be one character, neither a quote nor a line's end"
            out["delimiter"] = rule, "name one, as ; or \\t"
        return out

    def check(self) -> Dialect:
        for name, (rule, remedy) in self.problems().items():
            raise UsageError(f"{name} {getattr(self, name)!r}", rule, remedy)
        return self


UNSAID = Dialect()


def said(encoding: str, delimiter: str) -> Dialect:
    """As a user writes it: a tab may be ``\\t``, which shells leave alone."""
    return Dialect(encoding, {"\\t": "\t"}.get(delimiter, delimiter))


def sniffed(source: Source, given: Dialect = UNSAID) -> Source:
    """With its encoding and delimiter, as they are ``given``, else by what it begins with; pipes and
    Parquet have nothing to be looked at."""
    found = as_said(source, given)
    if source.is_pipe or source.format == "parquet":
        return found
    sample = beginning(source)
    if not given.encoding:
        found = replace(found, encoding=encoding_of(sample))
    if source.format != "csv" or given.delimiter:
        return found
    text = _decoded(sample, found.encoding)
    if (
        text is None
    ):  # the delimiter is ASCII in any of them; rows that can't be read say so themselves
        text = sample.decode("latin-1")
    return replace(found, delimiter=delimiter_of(text))


def as_said(source: Source, given: Dialect) -> Source:
    """With what is ``given`` alone; an error where the file shows that it is not so. Of a pipe it is
    believed."""
    if given == UNSAID:
        return source
    given.check()
    _refuse_format(source, given)
    encoding = _named(given.encoding) if given.encoding else source.encoding
    found = replace(source, encoding=encoding, delimiter=given.delimiter or source.delimiter)
    if source.is_pipe:
        return found
    sample = beginning(source)
    if given.encoding:
        _refuse_encoding(source, sample, encoding)
    elif given.delimiter:
        encoding = encoding_of(sample)
    text = sample.decode(encoding, "replace").lstrip("\ufeff")
    first = next((line for line in text.splitlines() if line.strip()), "")
    if given.delimiter and first and given.delimiter not in first:
        raise DataError(
            source.url,
            f"has no {given.delimiter!r} in its first line: {first[:60]!r}",
            "name another delimiter, or none: it is detected",
        )
    return found


def _refuse_format(source: Source, given: Dialect) -> None:
    """What a format does not leave open."""
    if given.encoding and source.format == "parquet":
        raise UsageError(
            f"encoding {given.encoding!r}", f"{source.url} is Parquet, always UTF-8", "leave it out"
        )
    fixed = "\t" if source.format == "tsv" else ""
    if given.delimiter not in ("", fixed) and source.format != "csv":
        raise UsageError(
            f"delimiter {given.delimiter!r}",
            f"{source.url} is {source.format}: only CSV has one to choose",
            "leave it out",
        )


def _refuse_encoding(source: Source, sample: bytes, encoding: str) -> None:
    """Most encodings of before take any bytes: that others fit better must be told."""
    remedy = "name another encoding, or none: it is detected"
    for mark, other in MARKS.items():
        if sample.startswith(mark):
            if encoding.startswith(other):
                return
            raise DataError(source.url, f"begins with the mark of {other}, not {encoding}", remedy)
    if encoding == "utf-8":
        return  # rows that it does not fit say so themselves
    if _decoded(sample, encoding) is None:
        raise DataError(source.url, f"is not valid {encoding}", remedy)
    as_utf = _decoded(sample, "utf-8")
    if as_utf and sum(character > "\x7f" for character in as_utf) >= MARKED:
        raise DataError(source.url, f"is valid UTF-8, not {encoding}", remedy)


def _is_encoding(name: str) -> bool:
    try:
        return isinstance(registry.getincrementaldecoder(name)().decode(b""), str)
    except (LookupError, UnicodeError, ValueError):
        return False


def _named(encoding: str) -> str:
    """One name for all of an encoding's; a mark before UTF-8 is read over anyway."""
    name = registry.lookup(encoding).name
    return "utf-8" if name == "utf-8-sig" else name


def beginning(source: Source) -> bytes:
    with opened(source) as raw:
        try:
            return codecs.decompressed(raw, source.codec).read(SAMPLE)
        except codecs.ERRORS as error:
            if codecs.is_damage(error, source.codec):
                raise codecs.damaged(source.url, error) from None
            raise


def encoding_of(sample: bytes) -> str:
    """UTF-8 where most of it can be; else an encoding in which the text is surely in a language that was
    written in it. UTF-8 again where there is none: the rows that it does not fit say so themselves."""
    for mark, encoding in MARKS.items():
        if sample.startswith(mark):
            return encoding
    zeros = [sample[start::2].count(0) for start in (0, 1)]
    if max(zeros) > len(sample) // 8:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    marked = [line for line in sample.splitlines() if not line.isascii()]
    if 2 * sum(_decoded(line, "utf-8") is not None for line in marked) >= len(marked):
        return "utf-8"
    texts = {encoding: text for encoding in LEGACY if (text := _likely(sample, encoding))}
    strength = {encoding: evidence(text) for encoding, text in texts.items()}
    best = max(strength, key=lambda encoding: strength[encoding], default="utf-8")
    others = [strength[encoding] for encoding, text in texts.items() if text != texts[best]]
    # Two readings about as likely: better no guess than a wrong one that nobody sees.
    return "utf-8" if others and MARGIN * max(others) > strength[best] else best


def _likely(sample: bytes, encoding: str) -> str:
    """The lines beyond ASCII, where they are surely in one of its languages, read so; else ""."""
    text = _decoded(sample, encoding)
    if text is None or any("\x7f" <= character <= "\x9f" for character in text):
        return ""
    lines = "\n".join(line for line in text.splitlines() if not line.isascii())
    found = detect(lines)
    sure = found.language in LEGACY[encoding] and found.confidence >= SURE
    return lines if sure else ""


def delimiter_of(text: str) -> str:
    """That which gives the most records as many fields as the first line, and several."""
    scores = {delimiter: _consistent(text, delimiter) for delimiter in DELIMITERS}
    best = max(scores, key=lambda delimiter: scores[delimiter])
    return best if scores[best] > (0.0, 1) else DELIMITERS[0]


def _consistent(text: str, delimiter: str) -> tuple[float, int]:
    """The share of records that are as long as the header, and its length."""
    records: list[int] = []
    try:
        for record in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            if record:
                records.append(len(record))
            if len(records) > RECORDS:
                break
    except csv.Error:
        return 0.0, 1
    if len(records) < RECORDS and len(records) > 1:
        records.pop()  # it may be cut
    if not records or records[0] == 1:
        return 0.0, 1
    return sum(length == records[0] for length in records) / len(records), records[0]


def _decoded(sample: bytes, encoding: str) -> str | None:
    """None where it is not in this encoding; its last character may be cut."""
    try:
        return registry.getincrementaldecoder(encoding)().decode(sample)
    except (UnicodeDecodeError, UnicodeError):
        return None


def as_utf8(stream: IO[bytes], encoding: str, place: str) -> IO[bytes]:
    """The same text in UTF-8."""
    if encoding in ("utf-8", "utf_8"):
        return stream
    return io.BufferedReader(_Transcoded(_pieces(stream, encoding, place)), SAMPLE)


def _pieces(stream: IO[bytes], encoding: str, place: str) -> Iterator[bytes]:
    decoder = registry.getincrementaldecoder(encoding)()
    done, last = 0, False
    while not last:
        piece = stream.read(SAMPLE)
        last = not piece
        try:
            text = decoder.decode(piece, final=last)
        except UnicodeDecodeError as error:
            raise DataError(
                place,
                f"is not valid {encoding} (near byte {done + error.start})",
                "name its encoding, or save it as UTF-8",
            ) from None
        done += len(piece)
        if text:
            yield text.encode("utf-8", "surrogatepass")


class _Transcoded(io.RawIOBase):
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._rest = self._rest or next(self._pieces, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

"""Tables of synonyms: the file that a user brings, and what a word may be drawn as.

A table is JSON in UTF-8, for one language:

    {"big": ["large", "huge"], "large": ["big"]}

gives each word its *neighbours*, the nearest first: single words, case ignored. What certificates
rest on is a partition of the words into *groups*, any two words of which are neighbours. It is made
of the lists (``partition``), or given beside or instead of them:

    {"neighbours": {"big": ["large", "huge"]}, "groups": [["big", "large"], ["house", "home"]]}

Word lists of thesauri are read too, as TSV: a word, a tab, and its neighbours apart by bars
(``big⇥large|huge``); a header (word, synonyms) is passed over.

Drawn in groups, a word and its synonyms are drawn from the same set, so that no substitution inside
a group changes the smoothed prediction at all. Drawn from the raw lists, the sets differ, and the
certificate pays for that by the number of words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError
from xlt_serve.text.words import Case, case_of, in_case, parts, refuse_unspaced

Draws: TypeAlias = Literal["groups", "neighbours"]
DRAWS: tuple[Draws, ...] = get_args(Draws)

Lists: TypeAlias = Mapping[str, Sequence[str]]
"""Word → its neighbours, all in lower case."""


@dataclass(frozen=True)
class Table:
    """``neighbours`` and ``groups`` of words in lower case; groups are disjoint, of two or more, and
    in alphabetical order: where a table was read from changes no draw."""

    language: str
    neighbours: Lists
    groups: tuple[tuple[str, ...], ...]

    def lists(self, draws: Draws) -> Lists:
        """Word → the others that it may be drawn as."""
        if draws == "neighbours":
            return self.neighbours
        return {word: [o for o in group if o != word] for group in self.groups for word in group}

    def choices(self, word: str, draws: Draws) -> tuple[str, ...]:
        """What a word of a text is drawn from, as it would stand there; empty: it stays as it is.

        Only words that the case leaves recognisable: whatever is drawn, or put there by an attacker,
        is looked up to the same list again. In Turkish upper case, *ısı* would come back as *isi*.
        """
        case = case_of(word)
        known = self._known(draws)
        found = known.get(word.casefold())
        if found is None or not recognisable(found[0], case):
            return ()
        choices = tuple(in_case(other, case) for other in found if recognisable(other, case))
        return choices if len(choices) > 1 else ()

    def _known(self, draws: Draws) -> Mapping[str, tuple[str, ...]]:
        return self._groups_by_key if draws == "groups" else self._lists_by_key

    @cached_property
    def _groups_by_key(self) -> Mapping[str, tuple[str, ...]]:
        return {
            word.casefold(): (word, *(other for other in group if other != word))
            for group in self.groups
            for word in group
        }

    @cached_property
    def _lists_by_key(self) -> Mapping[str, tuple[str, ...]]:
        return {word.casefold(): (word, *others) for word, others in self.neighbours.items()}

    def to_json(self) -> str:
        """The one way to write this table: equal tables have equal files."""
        return json.dumps(
            {
                "neighbours": {w: list(self.neighbours[w]) for w in sorted(self.neighbours)},
                "groups": [list(group) for group in self.groups],
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def recognisable(word: str, case: Case) -> bool:
    """Whether a word put into a case is read as this word in this case again."""
    written = in_case(word, case)
    return case_of(written) == case and written.casefold() == word.casefold() and is_word(written)


def is_word(word: str) -> bool:
    """One word, without punctuation at its ends, and not of accents alone."""
    whole = word.split() == [word] and parts(word) == ("", word, "")
    return whole and any(character.isalnum() for character in word)


def partition(neighbours: Lists, seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """Disjoint groups of two or more, any two words of which are neighbours (one names the other).

    Greedy: the word with fewest neighbours first, as it has the least choice, equal ones in an order
    that a hash of ``seed`` and word gives. It takes those of its neighbours that are still free and
    neighbours of all it took before: first those that it names, in their order, then the others.
    """
    edges: dict[str, set[str]] = {}
    for word, others in neighbours.items():
        for other in others:
            if other != word:
                edges.setdefault(word, set()).add(other)
                edges.setdefault(other, set()).add(word)
    hashed = {word: hashlib.sha256(f"{seed}/{word}".encode()).digest() for word in edges}
    out, taken = [], set()
    for word in sorted(edges, key=lambda w: (len(edges[w]), hashed[w])):
        if word in taken:
            continue
        named = neighbours.get(word, ())
        rest = sorted(edges[word].difference(named), key=hashed.__getitem__)
        group = [word]
        for other in (*named, *rest):
            if other not in taken and all(other in edges[member] for member in group):
                group.append(other)
        if len(group) > 1:
            taken.update(group)
            out.append(tuple(group))
    return tuple(out)


# Reading


def read(file: Path, language: str, seed: int = 0) -> Table:
    """A table from its file; the module says what that looks like."""
    refuse_unspaced("a table of synonyms for", language, "leave it out")
    barred = file.suffix == ".tsv"
    try:
        text = file.read_text(encoding="utf-8-sig" if barred else "utf-8")
        raw = _barred(text, str(file)) if barred else json.loads(text)
    except FileNotFoundError:
        raise DataError(file, "is not there", "give a file of words, JSON or TSV") from None
    except IsADirectoryError:
        raise DataError(file, "is a folder", "give a file of words, JSON or TSV") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        kind = "TSV" if barred else "JSON"
        raise DataError(file, f"is not {kind} in UTF-8 ({error})") from None
    return table(raw, language, str(file), seed)


def _barred(text: str, name: str) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        columns = line.rstrip("\r").split("\t")
        if not line.strip() or (number == 1 and columns == ["word", "synonyms"]):
            continue
        if len(columns) != 2:
            raise DataError(
                f"{name} line {number}",
                f"has {len(columns)} columns, not a word and its synonyms",
                "write word, tab, one|other",
            )
        out.setdefault(columns[0].strip(), []).extend(n.strip() for n in columns[1].split("|"))
    return out


def table(raw: Any, language: str, name: str, seed: int = 0) -> Table:
    if not isinstance(raw, dict):
        raise DataError(name, "is not a JSON object", 'write {"word": ["neighbour", …], …}')
    lists: Any = raw
    given = None
    if isinstance(raw.get("neighbours"), dict) or _is_lists(raw.get("groups")):
        if unknown := sorted(set(raw) - {"neighbours", "groups"}):
            raise DataError(name, f"has unknown keys {unknown}", "known: neighbours, groups")
        lists, given = raw.get("neighbours"), raw.get("groups")
    groups = None if given is None else _groups(given, name)
    if lists is None:
        assert groups is not None
        neighbours = {w: [o for o in group if o != w] for group in groups for w in group}
    else:
        neighbours = _neighbours(lists, name)
    if groups is None:
        groups = partition(neighbours, seed)
    if not groups and not neighbours:
        raise DataError(name, "has no word with a neighbour")
    return Table(language, neighbours, tuple(sorted(tuple(sorted(group)) for group in groups)))


def _neighbours(raw: Mapping[str, Any], name: str) -> dict[str, list[str]]:
    """Lower case, single words, each once; entries that only differ in case are joined."""
    spelling: dict[str, str] = {}  # of words that are equal but for case, as ß and ss, the first

    def one(word: str) -> str:
        return spelling.setdefault(word.casefold(), word.lower())

    out: dict[str, dict[str, None]] = {}
    for word, near in raw.items():
        if not isinstance(near, list) or not all(isinstance(n, str) for n in near):
            raise DataError(f"{name}, {word!r}", "must have a list of words")
        if is_word(word):
            mine = out.setdefault(one(word), {})
            mine.update((one(n), None) for n in near if is_word(n))
            mine.pop(one(word), None)
    return {word: list(near) for word, near in out.items() if near}


def _groups(raw: Sequence[Any], name: str) -> tuple[tuple[str, ...], ...]:
    seen: set[str] = set()
    for group in raw:
        for word in group:
            if not isinstance(word, str) or not is_word(word):
                raise DataError(f"{name}, {word!r}", "a group is a list of single words")
            if word.casefold() in seen:
                raise DataError(f"{name}, {word!r}", "stands in the groups twice", "keep one")
            seen.add(word.casefold())
    return tuple(tuple(word.lower() for word in group) for group in raw if len(group) > 1)


def _is_lists(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(part, list) for part in value)


def files(options: Iterable[str]) -> dict[str, Path]:
    """language → file, of ``en=FILE`` as the command line has it."""
    out = {}
    for option in options:
        language, equals, file = option.partition("=")
        if not (language and equals and file):
            raise UsageError(f"--synonyms {option}", "must be LANGUAGE=FILE, as en=synonyms.json")
        if language in out:
            raise UsageError(f"--synonyms {option}", f"is the second table of {language}")
        out[language] = Path(file)
    return out


class Tables:
    """Those of a bundle, and those given beside it, which go before the bundle's. The bundle's are
    read when they are first asked for: most requests are not about words."""

    def __init__(self, bundle: Bundle, given: Mapping[str, str | Path] | None = None) -> None:
        self.bundle = bundle
        self._read = {lg: read(Path(file), lg) for lg, file in (given or {}).items()}
        self.languages = sorted({*self._read, *bundle.manifest.synonyms})

    def of(self, language: str) -> Table | None:
        if language not in self._read and language in self.bundle.manifest.synonyms:
            file = self.bundle.file(self.bundle.manifest.synonyms[language])
            self._read[language] = read(file, language)
        return self._read.get(language)

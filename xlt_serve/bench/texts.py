"""The texts of requests: a mix of languages and lengths, the same each time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from xlt_serve.errors import DataError

# Article 1 of the Universal Declaration of Human Rights, in the words of its official translations.
SENTENCES = (
    "All human beings are born free and equal in dignity and rights.",
    "They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geiste der Brüderlichkeit begegnen.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
    "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "人人生而自由，在尊严和权利上一律平等。",
    "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "Всички хора се раждат свободни и равни по достойнство и права.",
)


def mixed(count: int, seed: int = 0) -> list[str]:
    """Texts of one to six sentences, short ones more often."""
    generator = random.Random(seed)
    out = []
    for _ in range(count):
        sentences = min(6, 1 + int(generator.expovariate(1.0)))
        first = generator.randrange(len(SENTENCES))
        out.append(" ".join(SENTENCES[(first + n) % len(SENTENCES)] for n in range(sentences)))
    return out


def read(file: Path) -> list[str]:
    """Lines of a file that are not blank."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except FileNotFoundError:
        raise DataError(file, "is not there", "give a file of texts, one a line") from None
    except UnicodeDecodeError:
        raise DataError(file, "is not valid UTF-8", "save it as UTF-8") from None
    if not lines:
        raise DataError(file, "has no text", "give a file of texts, one a line")
    return lines


def lengths(texts: list[str]) -> dict[str, Any]:
    """In characters: tokens depend on the tokenizer."""
    sizes = sorted(map(len, texts))
    return {
        "count": len(sizes),
        "characters": {
            "p50": sizes[len(sizes) // 2],
            "p90": sizes[int(len(sizes) * 0.9)],
            "max": sizes[-1],
        },
    }

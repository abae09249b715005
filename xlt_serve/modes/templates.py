"""“This text is about {}.” in the languages of the shipped encoder, for labels that nobody trained for."""

from __future__ import annotations

TEMPLATES = {
    "ar": "هذا النص عن {}.",
    "bg": "Този текст е за {}.",
    "de": "In diesem Text geht es um {}.",
    "el": "Αυτό το κείμενο αφορά {}.",
    "en": "This text is about {}.",
    "es": "Este texto trata de {}.",
    "fr": "Ce texte parle de {}.",
    "hi": "यह पाठ {} के बारे में है।",
    "it": "Questo testo parla di {}.",
    "ja": "この文章は{}についてのものです。",
    "ko": "이 글은 {}에 관한 글입니다.",
    "nl": "Deze tekst gaat over {}.",
    "pl": "Ten tekst jest na temat: {}.",
    "pt": "Este texto é sobre {}.",
    "ru": "Этот текст на тему: {}.",
    "sw": "Maandishi haya yanahusu {}.",
    "th": "ข้อความนี้เกี่ยวกับ{}",
    "tr": "Bu metin {} hakkındadır.",
    "ur": "یہ متن {} کے بارے میں ہے۔",
    "vi": "Văn bản này nói về {}.",
    "zh": "这段文字是关于{}的。",
}
TEMPLATE = TEMPLATES["en"]
NATIVE = "native"
"""Asks for the one in the language of each text, where there is one."""

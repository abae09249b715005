"""Strings in, token ids out: tokens, languages, words and their synonyms."""

"""Rows of files: CSV, TSV, JSON lines, lines of text and Parquet, wherever they lie."""

"""How good is a classifier on labelled rows: scores, intervals, comparisons, reports. No torch."""

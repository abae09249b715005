"""How good is a classifier: scores on labelled rows, intervals, comparisons, reports; estimates where
there are no labels. No torch."""

"""How rows run: steps, batches, graphs' inputs, sessions."""

"""Any model behind one call: ours at a budget, the full-attention control, a teacher, a baseline, `hf:ID`."""

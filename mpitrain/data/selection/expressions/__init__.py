"""Variables, levels, lags and dates by their text, and what is computed of them: the grammar of names and masks."""

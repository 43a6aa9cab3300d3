"""The grammar of names and masks: variables with levels and lags, dates, and expressions of these."""

"""Tables of named columns, CSV and Parquet, and what the text in them means."""

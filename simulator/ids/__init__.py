"""How ids fall on rows: access distributions, their samplers and their counts in files."""

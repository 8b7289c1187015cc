"""The league of credit signals: one line each, from committed tables, and one measured here."""

"""Pages: tables, figures, and the form that every study's page has."""

"""A study: arms compared under conditions, each under the same training seeds."""

"""What the embedded tasks share: splits, a word-level tokenizer, and the teaching of a base model that is kept by its hash."""
